"""`fedstrata synth`: writes the synthetic clinical corpus to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedstrata.cli.options import Debug


def synth(
    out: Annotated[Path, typer.Option(help="The folder to write; must not exist yet or be empty.")],
    sites: Annotated[int, typer.Option(help="Number of sites (hospitals).", min=1)] = 4,
    notes: Annotated[int, typer.Option(help="Notes in all, over all sites.", min=1)] = 200,
    imbalance: Annotated[
        float | None,
        typer.Option(
            help="How unequal sites are in size: the exponent of Zipf's law, 0 for equal. Sizes differ a "
            "little when not given.",
            min=0.0,
            max=10.0,
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        Literal["i2b2", "brat", "conll", "jsonl", "mimic"], typer.Option(help="The format.")
    ] = "brat",
    seed: Annotated[int, typer.Option(help="The same seed gives the same notes.")] = 0,
    debug: Debug = False,
) -> None:
    """Write synthetic clinical notes with their annotations.

    Example: fedstrata synth --sites 4 --notes 200 --format brat --out notes
    """
    from fedstrata.data.synthetic import generate  # noqa: PLC0415 - reads its lexicons
    from fedstrata.data.writers import write  # noqa: PLC0415

    documents = generate(seed=seed, sites=sites, notes=notes, imbalance=imbalance)
    write(documents, out, format)
    spans = sum(len(document.spans) for document in documents)
    typer.echo(f"{len(documents)} notes of {sites} sites with {spans} annotated spans in {out} ({format})")
