"""`fedstrata split`: the server and the clients of a divided model as processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
from fedstrata.cli.split_answers import answer, generate
from fedstrata.core.errors import ConfigurationError, Problem

app = typer.Typer(no_args_is_help=True, help="A divided model: the server and its clients as processes.")


@app.command()
def serve(
    arguments: Arguments = None,
    listen: Listen = LOOPBACK,
    tokens: TokenFile = None,
    clients: Clients = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    insecure: Insecure = False,
    out: Annotated[Path | None, typer.Option(help="The run directory; runs/NAME when not given.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last committed round of --out.")
    ] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait for clients that have not joined.")] = 3600,
    cache_megabytes: CacheMegabytes = CACHE_MEGABYTES,
    megabytes: Megabytes = 1024,
    deadline: Deadline = 600,
    reconnect: Reconnect = 60,
    keepalive: Keepalive = 20,
    delay: Delay = 0,
    debug: Debug = False,
) -> None:
    """Hold the middle of a model and train it with clients that join.

    Example: fedstrata split serve run.yaml --listen 10.0.0.1:7447 --tokens tokens --certificate server.pem
    --key server.key --authority clients.pem
    """
    from fedstrata.cli.display import Display  # noqa: PLC0415 - heavy
    from fedstrata.engine.agreeing import Agreements  # noqa: PLC0415
    from fedstrata.engine.run_folder import require_free_folder, serving_folder  # noqa: PLC0415
    from fedstrata.engine.serving import Serving  # noqa: PLC0415
    from fedstrata.engine.sides import prepare_server  # noqa: PLC0415
    from fedstrata.split.transport.credentials import require_safe  # noqa: PLC0415
    from fedstrata.split.transport.hub import Hub, require_free  # noqa: PLC0415

    require_safe(listen, insecure=insecure, setting="--listen")
    require_free(listen)
    certificates = certificates_of(certificate, key, authority, insecure=insecure)
    known, names = who_may_join(tokens, clients, certificates)
    display = Display()
    display.say("preparing the model ...")
    if not resume:
        require_free_folder(out)
    source = configuration_of(arguments, out, resume=resume)
    experiment = prepare_server(source, names)
    folder = serving_folder(source, out, resume=resume)
    serving = Serving(experiment, names, folder, display, cache_bytes=int(cache_megabytes * 2**20))
    largest = megabytes * 2**20
    hub = Hub(
        Agreements(experiment, names, largest, known=serving.weights),
        largest=largest,
        clients=names,
        tokens=known,
        certificates=certificates,
        timing=timing_of(deadline, reconnect, keepalive, delay),
        welcome=serving.welcome,
    )
    complete = False
    try:
        display.say(f"waiting on {hub.listen(listen)} for {', '.join(names)}")
        with display:
            summary = serving.execute(hub, patience=patience)
        complete = True
    except KeyboardInterrupt:
        display.say(f"stopped; go on with: fedstrata split serve --resume --out {folder}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        hub.stop(complete=complete)
    display.show(summary, folder, personal=experiment.method.personal)


@app.command()
def join(
    client: Client,
    arguments: Arguments = None,
    server: Server = LOOPBACK,
    token: Token = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    insecure: Insecure = False,
    home: Annotated[Path, typer.Option(help="The folder for what this client keeps between rounds.")] = Path(
        "split-client"
    ),
    deadline: Deadline = 600,
    reconnect: Reconnect = 600,
    keepalive: Keepalive = 20,
    delay: Delay = 0,
    debug: Debug = False,
) -> None:
    """Hold the ends of a model and train them through a server; texts and labels stay here.

    Example: fedstrata split join site.yaml --server 10.0.0.1:7447 --client north --token token
    --certificate north.pem --key north.key --authority server.pem
    """
    from fedstrata.engine.joining import RemoteClient  # noqa: PLC0415 - heavy
    from fedstrata.engine.sides import prepare_client  # noqa: PLC0415

    certificates = certificates_of(certificate, key, authority, insecure=insecure)
    timing = timing_of(deadline, reconnect, keepalive, delay)
    session_of = sessions_of(server, client, token=token, certificates=certificates, timing=timing)
    source = configuration(*sort_arguments(arguments or []))
    remote = RemoteClient(prepare_client(source, client), client, home, _tell)
    try:
        remote.take_part(session_of)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    typer.echo("the run has ended")


def configuration_of(arguments: list[str] | None, out: Path | None, *, resume: bool) -> Any:
    """Returns the configuration to serve: the one that is named, or that of the run to go on with."""
    file, overrides = sort_arguments(arguments or [])
    if not resume:
        return configuration(file, overrides)
    if out is None:
        raise ConfigurationError([Problem("", "--resume needs --out: the run directory to go on with")])
    from fedstrata.engine.run_folder import resumable  # noqa: PLC0415 - heavy

    return resumable(out, file, overrides)


def _tell(event: str, facts: Any) -> None:
    """Shows what a client does, a line a turn."""
    if event == "joined":
        typer.echo(f"joined as {facts['client']}")
    elif event == "session_over":
        typer.echo(f"joining again: {facts['message']}")
    elif event == "turn":
        typer.echo(f"round {facts['round']}: {facts['handler'].removeprefix('@')}")
    elif event == "turn_failed":
        typer.echo(f"round {facts['round']} has failed here: {facts['message']}", err=True)


app.command()(answer)
app.command()(generate)
