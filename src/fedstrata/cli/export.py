"""`fedstrata export`: a finished run's model as a folder for transformers and the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import Debug, FinishedRun, Owner


def export(
    run: FinishedRun,
    out: Annotated[Path, typer.Option(help="The folder to write; must not exist yet or be empty.")],
    client: Owner = None,
    licence: Annotated[
        str | None,
        typer.Option(help="The model's licence, as the Hugging Face hub names it: apache-2.0, mit ..."),
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="The language of the texts, as a code: en, de ...")
    ] = None,
    site_names: Annotated[
        bool, typer.Option("--site-names", help="Keep the names of the clients; they are numbered otherwise.")
    ] = False,
    adapter: Annotated[
        bool,
        typer.Option("--adapter", help="Keep a LoRA as an adapter; it is merged into the model otherwise."),
    ] = False,
    debug: Debug = False,
) -> None:
    """Write a run's model as a Hugging Face folder with a model card.

    Example: fedstrata export runs/first --out tagger --licence apache-2.0
    """
    from fedstrata.core.files import require_new  # noqa: PLC0415
    from fedstrata.results.export import export as write_folder  # noqa: PLC0415 - heavy
    from fedstrata.results.result import open_result  # noqa: PLC0415

    require_new(out)
    result = open_result(run, client=client, dequantized=not adapter)
    write_folder(result, out, licence=licence, language=language, with_names=site_names, keep_adapter=adapter)
    typer.echo(f"model, tokenizer and model card in {out}")
    if licence is None:
        typer.echo(f"no licence is stated; name one with --licence, or in the head of {out / 'README.md'}")
