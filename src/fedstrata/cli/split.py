"""`fedstrata split`: a divided model that answers, its server and its clients as processes of their own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstrata.cli import lines
from fedstrata.cli.line_options import with_options
from fedstrata.cli.options import Arguments, Debug, number
from fedstrata.cli.run import INTERRUPTED
from fedstrata.cli.serve import join, serve

if TYPE_CHECKING:
    from fedstrata.core.documents import Document

app = typer.Typer(no_args_is_help=True, help="A divided model: the server and its clients as processes.")
app.command(hidden=True)(serve)  # whoever divides a model may look for these two here
app.command(hidden=True)(join)


@app.command()
@with_options(lines.ServerLine)
def answer(
    line: lines.ServerLine,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY.PATH=VALUE", help="device or threads, other than the run's.", show_default=False
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Hold the middle of a run's model for clients that generate, until interrupted.

    Example: fedstrata split answer runs/first --listen 10.0.0.1:7447 --tokens tokens --certificate server.pem
    --key server.key --authority clients.pem
    """
    from fedstrata.engine.remote.answering import Answers  # noqa: PLC0415 - heavy

    guests = line.guests()
    typer.echo("preparing the model ...")
    answers = Answers(run, overrides or [], guests.names, int(line.cache_megabytes * 2**20))
    agreements = answers.agreements(line.megabytes * 2**20)
    hub = guests.hub(agreements, lambda client: {"committed": answers.committed, "run": answers.id})
    try:
        where = hub.listen(line.address)
        who = ", ".join(guests.names)
        typer.echo(f"round {answers.committed} of {run} on {where} for {who}; Ctrl-C to stop")
        answers.serve(hub)
    except KeyboardInterrupt:
        typer.echo("stopped")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        hub.stop()


@app.command()
@with_options(lines.ClientLine)
def generate(
    line: lines.ClientLine,
    out: Annotated[
        Path, typer.Option(help="The file of JSON lines to write.", metavar="FILE", show_default=False)
    ],
    arguments: Arguments = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="A .txt with a prompt in each line, or a .jsonl with `text`; when not given the test "
            "documents of the data are answered by the task's own prompts.",
            metavar="FILE",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of an answer at most; 128, or what the task allows.", min=1)
    ] = None,
    temperature: Annotated[
        float, number("Logits are divided by it to draw tokens; 0: the likeliest.", 0, 1e6)
    ] = 0.0,
    debug: Debug = False,
) -> None:
    """Generate with the ends of a model here and its middle at a server; tokens and texts stay here.

    Example: fedstrata split generate site.yaml --server 10.0.0.1:7447 --client north --prompts questions.txt
    --out answers.jsonl --token token --certificate north.pem --key north.key --authority server.pem
    """
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.progress import Progress  # noqa: PLC0415

    from fedstrata.core.files import private_folder, write_atomically  # noqa: PLC0415
    from fedstrata.data.readers import read_prompts  # noqa: PLC0415
    from fedstrata.data.writers import jsonl  # noqa: PLC0415
    from fedstrata.engine.prepare import prepare_client, prepare_prompts  # noqa: PLC0415
    from fedstrata.engine.remote.generating import Generating  # noqa: PLC0415

    session_of = line.sessions()
    source, _ = line.site_source(arguments)
    asked = read_prompts(prompts) if prompts is not None else None
    prepare = prepare_client if asked is None else prepare_prompts
    private_folder(out.parent)
    console = Console()
    try:
        with Progress(console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("answers", total=len(asked) if asked is not None else None)
            generating = Generating(
                prepare(source, line.name),
                line.name,
                line.place,
                asked,
                tokens=max_new_tokens,
                temperature=temperature,
                advance=lambda count: progress.advance(bar, count),
            )
            found: list[Document] = generating.run(lambda: session_of(generating))
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was written", err=True)
        raise typer.Exit(INTERRUPTED) from None
    write_atomically(out, (jsonl.line(document, document.id).encode() for document in found))
    for name, score in generating.scores.items():
        typer.echo(f"{name}: {score:.4g}")
    typer.echo(f"{len(found):,} answers in {out}")
