"""`fedstrata split answer` and `generate`: texts from a divided model whose middle a server holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstrata.cli.lines import (
    CACHE_MEGABYTES,
    LOOPBACK,
    Authority,
    CacheMegabytes,
    Certificate,
    Client,
    Clients,
    Deadline,
    Delay,
    Insecure,
    Keepalive,
    Key,
    Listen,
    Megabytes,
    Reconnect,
    Server,
    Token,
    TokenFile,
    certificates_of,
    sessions_of,
    timing_of,
    who_may_join,
)
from fedstrata.cli.options import Arguments, Debug, configuration, sort_arguments
from fedstrata.cli.run import INTERRUPTED

if TYPE_CHECKING:
    from fedstrata.core.documents import Document


def answer(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY.PATH=VALUE", help="device or threads, other than the run's.", show_default=False
        ),
    ] = None,
    listen: Listen = LOOPBACK,
    tokens: TokenFile = None,
    clients: Clients = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    insecure: Insecure = False,
    cache_megabytes: CacheMegabytes = CACHE_MEGABYTES,
    megabytes: Megabytes = 1024,
    deadline: Deadline = 600,
    reconnect: Reconnect = 60,
    keepalive: Keepalive = 20,
    delay: Delay = 0,
    debug: Debug = False,
) -> None:
    """Hold the middle of a run's model for clients that generate, until interrupted.

    Example: fedstrata split answer runs/first --listen 10.0.0.1:7447 --tokens tokens --certificate server.pem
    --key server.key --authority clients.pem
    """
    from fedstrata.engine.answering import Answers  # noqa: PLC0415 - heavy
    from fedstrata.split.transport.credentials import require_safe  # noqa: PLC0415
    from fedstrata.split.transport.hub import Hub  # noqa: PLC0415

    require_safe(listen, insecure=insecure, setting="--listen")
    certificates = certificates_of(certificate, key, authority, insecure=insecure)
    known, names = who_may_join(tokens, clients, certificates)
    typer.echo("preparing the model ...")
    answers = Answers(run, overrides or [], names, int(cache_megabytes * 2**20))
    largest = megabytes * 2**20
    hub = Hub(
        answers.agreements(largest),
        largest=largest,
        clients=names,
        tokens=known,
        certificates=certificates,
        timing=timing_of(deadline, reconnect, keepalive, delay),
        welcome=lambda client: {"committed": answers.committed, "run": answers.id},
    )
    try:
        where = hub.listen(listen)
        typer.echo(f"round {answers.committed} of {run} on {where} for {', '.join(names)}; Ctrl-C to stop")
        answers.serve(hub)
    except KeyboardInterrupt:
        typer.echo("stopped")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        hub.stop()


def generate(
    client: Client,
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
        int | None,
        typer.Option(help="Tokens of an answer at most; 128, or what the task allows.", min=1),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Logits are divided by it to draw tokens; 0: the likeliest.", min=0.0)
    ] = 0.0,
    server: Server = LOOPBACK,
    token: Token = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    insecure: Insecure = False,
    home: Annotated[
        Path, typer.Option(help="The folder of what this client keeps, if its ends are its own.")
    ] = Path("split-client"),
    deadline: Deadline = 600,
    reconnect: Reconnect = 60,
    keepalive: Keepalive = 20,
    delay: Delay = 0,
    debug: Debug = False,
) -> None:
    """Generate with the ends of a model here and its middle at a server; tokens and texts stay here.

    Example: fedstrata split generate site.yaml --server 10.0.0.1:7447 --client north --prompts questions.txt
    --out answers.jsonl --token token --certificate north.pem --key north.key --authority server.pem
    """
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.progress import Progress  # noqa: PLC0415

    from fedstrata.core.files import write_atomically  # noqa: PLC0415
    from fedstrata.data.writers import jsonl  # noqa: PLC0415
    from fedstrata.engine.generating import Drawing, Generating, read_prompts  # noqa: PLC0415
    from fedstrata.engine.sides import prepare_client, prepare_prompts  # noqa: PLC0415

    certificates = certificates_of(certificate, key, authority, insecure=insecure)
    timing = timing_of(deadline, reconnect, keepalive, delay)
    session_of = sessions_of(server, client, token=token, certificates=certificates, timing=timing)
    source = configuration(*sort_arguments(arguments or []))
    asked = read_prompts(prompts) if prompts is not None else None
    prepare = prepare_client if asked is None else prepare_prompts
    drawing = Drawing(max_new_tokens, temperature)
    out.parent.mkdir(parents=True, exist_ok=True)
    console = Console()
    try:
        with Progress(console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("answers", total=len(asked) if asked is not None else None)
            generating = Generating(
                prepare(source, client),
                client,
                home,
                drawing,
                asked,
                lambda count: progress.advance(bar, count),
            )
            found: list[Document] = generating.run(lambda: session_of(generating))
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was written", err=True)
        raise typer.Exit(INTERRUPTED) from None
    write_atomically(out, (jsonl.line(document, document.id).encode() for document in found))
    for name, score in generating.scores.items():
        typer.echo(f"{name}: {score:.4g}")
    typer.echo(f"{len(found):,} answers in {out}")
