"""`fedstrata split`: the server and the clients of a divided model as processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli.options import Arguments, Debug, configuration, sort_arguments
from fedstrata.core.errors import ConfigurationError, Problem, SessionOverError

if TYPE_CHECKING:
    from fedstrata.split.transport.credentials import Certificates
    from fedstrata.split.transport.timing import Timing

app = typer.Typer(no_args_is_help=True, help="A divided model: the server and its clients as processes.")

INTERRUPTED = 130
LOOPBACK = "127.0.0.1:7447"
_TLS = "certificate, key and authority"

Certificate = Annotated[Path | None, typer.Option(help="This side's certificate, PEM.", metavar="FILE")]
Key = Annotated[
    Path | None, typer.Option(help="Its private key, PEM; readable by you alone.", metavar="FILE")
]
Authority = Annotated[
    Path | None, typer.Option(help="Certificate that signed those of the other side, PEM.", metavar="FILE")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS; only between processes of one machine.")
]
Deadline = Annotated[
    float, typer.Option(help="Seconds to wait for an answer before the other side is given up.", min=1.0)
]
Reconnect = Annotated[
    float, typer.Option(help="Seconds for the other side to come back after a connection broke.", min=0.1)
]
Keepalive = Annotated[
    float, typer.Option(help="Seconds between signs of life of an idle connection.", min=0.1)
]
Delay = Annotated[
    float, typer.Option(help="Seconds to hold back every message, as a slow network would.", min=0.0)
]


@app.command()
def serve(
    arguments: Arguments = None,
    listen: Annotated[str, typer.Option(help="Address to listen on.", metavar="HOST:PORT")] = LOOPBACK,
    tokens: Annotated[
        Path | None,
        typer.Option(help="A client and its token in each line; readable by you alone.", metavar="FILE"),
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(
            help="Who takes part, if not all that have a token.", metavar="ID,ID", show_default=False
        ),
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    insecure: Insecure = False,
    out: Annotated[Path | None, typer.Option(help="The run directory; runs/NAME when not given.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last committed round of --out.")
    ] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait for clients that have not joined.")] = 3600,
    megabytes: Annotated[int, typer.Option(help="Size of a message at most.", min=1, max=2047)] = 1024,
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
    from fedstrata.engine.folder import serving_folder  # noqa: PLC0415
    from fedstrata.engine.serving import Serving, prepare_server  # noqa: PLC0415
    from fedstrata.split.transport.credentials import Tokens, require_safe  # noqa: PLC0415
    from fedstrata.split.transport.hub import Hub  # noqa: PLC0415

    require_safe(listen, insecure=insecure, setting="--listen")
    certificates = _certificates(certificate, key, authority, insecure=insecure)
    known = Tokens.read(tokens) if tokens is not None else None
    if certificates is not None and known is None:
        raise ConfigurationError([Problem("--tokens", "must be given: every client has a token of its own")])
    names = tuple(clients.split(",")) if clients else known.clients if known else ()
    if not names:
        raise ConfigurationError([Problem("--clients", "must name those who may join")])
    display = Display()
    display.say("preparing the model ...")
    source, folder = serving_folder(configuration_of(arguments, out, resume=resume), out, resume=resume)
    experiment = prepare_server(source, names)
    serving = Serving(experiment, names, folder, display)
    largest = megabytes * 2**20
    hub = Hub(
        Agreements(experiment, names, largest, known=serving.weights),
        largest=largest,
        clients=names,
        tokens=known,
        certificates=certificates,
        timing=_timing(deadline, reconnect, keepalive, delay),
        welcome=lambda: {"committed": serving.committed},
    )
    try:
        display.say(f"waiting on {hub.listen(listen)} for {', '.join(names)}")
        with display:
            summary = serving.execute(hub, patience=patience)
    except KeyboardInterrupt:
        display.say(f"stopped; go on with: fedstrata split serve --resume --out {folder}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        hub.stop()
    display.show(summary, folder, personal=True)


@app.command()
def join(
    client: Annotated[str, typer.Option(help="This client's name.", metavar="ID", show_default=False)],
    arguments: Arguments = None,
    server: Annotated[str, typer.Option(help="The server's address.", metavar="HOST:PORT")] = LOOPBACK,
    token: Annotated[
        Path | None, typer.Option(help="A file with this client's token alone.", metavar="FILE")
    ] = None,
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
    from fedstrata.engine.joining import RemoteClient, prepare_client  # noqa: PLC0415 - heavy
    from fedstrata.split.transport.credentials import read_token  # noqa: PLC0415
    from fedstrata.split.transport.membership import Membership  # noqa: PLC0415

    certificates = _certificates(certificate, key, authority, insecure=insecure)
    if certificates is not None and token is None:
        raise ConfigurationError([Problem("--token", "must be given: the file with this client's token")])
    secret = read_token(token) if token is not None else None
    source = configuration(*sort_arguments(arguments or []))
    remote = RemoteClient(prepare_client(source, client), client, home, _tell)
    timing = _timing(deadline, reconnect, keepalive, delay)
    membership_of: Any = lambda: Membership(  # noqa: E731
        server,
        client,
        remote.agreement,
        greeting=remote.greeting,
        token=secret,
        certificates=certificates,
        timing=timing,
    )
    try:
        while True:
            with membership_of() as membership:
                typer.echo(f"joined {server} as {client}")
                try:
                    remote.serve(membership)
                    break
                except SessionOverError as error:
                    typer.echo(f"joining again: {error}")
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
    from fedstrata.engine.folder import resumable  # noqa: PLC0415 - heavy

    return resumable(out, file, overrides)


def _certificates(
    certificate: Path | None, key: Path | None, authority: Path | None, *, insecure: bool
) -> Certificates | None:
    """Returns the certificates; none where plain text was asked for.

    Raises:
        ConfigurationError: Some are missing, or both or neither were asked for.
    """
    from fedstrata.split.transport.credentials import Certificates  # noqa: PLC0415 - heavy

    if insecure:
        if certificate or key or authority:
            raise ConfigurationError([Problem("--insecure", f"has no use for {_TLS}")])
        return None
    if not (certificate and key and authority):
        message = f"needed: {_TLS}; or --insecure, between processes of one machine"
        raise ConfigurationError([Problem("--certificate", message)])
    return Certificates(certificate, key, authority)


def _timing(deadline: float, reconnect: float, keepalive: float, delay: float) -> Timing:
    from fedstrata.split.transport.timing import Timing  # noqa: PLC0415 - heavy

    return Timing(answer=deadline, reconnect=reconnect, keepalive=keepalive, delay=delay)


def _tell(event: str, facts: Any) -> None:
    """Shows what a client does, a line a turn."""
    if event == "turn":
        typer.echo(f"round {facts['round']}: {facts['handler'].removeprefix('@')}")
    elif event == "turn_failed":
        typer.echo(f"round {facts['round']} has failed here: {facts['message']}", err=True)
