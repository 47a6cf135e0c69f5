"""`fedstrata serve` and `fedstrata join`: the server of a run and its clients as processes of their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli import lines
from fedstrata.cli.options import Arguments, Debug, Resume, configuration, on_command_line, sort_arguments
from fedstrata.cli.run import INTERRUPTED
from fedstrata.core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from fedstrata.core.settings.source import Source


def serve(
    arguments: Arguments = None,
    listen: lines.Listen = lines.LOOPBACK,
    tokens: lines.TokenFile = None,
    clients: lines.Clients = None,
    certificate: lines.Certificate = None,
    key: lines.Key = None,
    authority: lines.Authority = None,
    insecure: lines.Insecure = False,
    out: Annotated[Path | None, typer.Option(help="The run directory; runs/NAME when not given.")] = None,
    resume: Resume = False,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait, once, for a client that has not joined.")
    ] = 3600,
    cache_megabytes: lines.CacheMegabytes = lines.CACHE_MEGABYTES,
    megabytes: lines.Megabytes = 1024,
    deadline: lines.Deadline = 3600,
    reconnect: lines.Reconnect = 60,
    keepalive: lines.Keepalive = 20,
    delay: lines.Delay = 0,
    debug: Debug = False,
) -> None:
    """Run a federation whose clients join it, each a process of its own wherever its documents are.

    The method, the model, the task, the training and the federation are said here; of a divided model the
    middle is held here.

    Example: fedstrata serve run.yaml --listen 10.0.0.1:7447 --tokens tokens --certificate server.pem
    --key server.key --authority clients.pem
    """
    from fedstrata.cli.display import Display  # noqa: PLC0415 - heavy
    from fedstrata.engine.agreeing import Agreements  # noqa: PLC0415
    from fedstrata.engine.prepare import prepare_server  # noqa: PLC0415
    from fedstrata.engine.remote import RemoteEngine  # noqa: PLC0415
    from fedstrata.engine.run import Run  # noqa: PLC0415
    from fedstrata.engine.run_folder import (  # noqa: PLC0415
        require_free_folder,
        serving_folder,
        with_trackers,
    )
    from fedstrata.engine.shared_settings import shared_settings  # noqa: PLC0415
    from fedstrata.transport.hub import require_free  # noqa: PLC0415

    guests = lines.guests_of(listen, tokens, clients, certificate, key, authority, insecure=insecure)
    require_free(listen)
    display = Display()
    display.say("preparing the model ...")
    if not resume:
        require_free_folder(out)
    source = configuration_of(arguments, out, resume=resume)
    experiment = prepare_server(source, guests.names)
    folder = serving_folder(source, out)
    cache_bytes = int(cache_megabytes * 2**20)
    run = Run(
        experiment,
        folder,
        with_trackers(experiment.settings, folder, display),
        partial(RemoteEngine, names=guests.names, cache_bytes=cache_bytes, patience=patience),
    )
    if resume:
        run.load()
    agreements = Agreements(experiment, guests.names, megabytes * 2**20, known=run.engine.weights)
    timing = lines.timing_of(deadline, reconnect, keepalive, delay)
    hub = guests.hub(agreements, timing, run.engine.welcome, shared_settings(experiment))
    run.engine.connect(hub)
    complete = False
    try:
        display.say(f"waiting on {hub.listen(listen)} for {', '.join(guests.names)}")
        with display:
            summary = run.execute()
        complete = True
    except KeyboardInterrupt:
        display.say(f"stopped; go on with: fedstrata serve --resume --out {folder}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        hub.stop(complete=complete)
    display.show(summary, folder, personal=experiment.method.personal)


def join(
    client: lines.Client,
    arguments: Arguments = None,
    server: lines.Server = lines.LOOPBACK,
    token: lines.Token = None,
    certificate: lines.Certificate = None,
    key: lines.Key = None,
    authority: lines.Authority = None,
    insecure: lines.Insecure = False,
    home: Annotated[Path, typer.Option(help="The folder for what this client keeps between rounds.")] = Path(
        "fedstrata-client"
    ),
    deadline: lines.Deadline = 600,
    reconnect: lines.Reconnect = 600,
    keepalive: lines.Keepalive = 20,
    delay: lines.Delay = 0,
    debug: Debug = False,
) -> None:
    """Take part in a federation that a server runs; texts and labels stay here.

    The site's configuration names its data, its device and its cache; the server says all else. At the end
    the model that was learnt lies here too, unless it is divided.

    Example: fedstrata join site.yaml --server 10.0.0.1:7447 --client north --token token
    --certificate north.pem --key north.key --authority server.pem
    """
    from fedstrata.engine.joining import RemoteClient  # noqa: PLC0415 - heavy
    from fedstrata.engine.prepare import prepare_client  # noqa: PLC0415
    from fedstrata.engine.shared_settings import with_shared  # noqa: PLC0415
    from fedstrata.transport.membership import settings_of  # noqa: PLC0415

    certificates = lines.certificates_of(certificate, key, authority, insecure=insecure)
    timing = lines.timing_of(deadline, reconnect, keepalive, delay)
    secret = lines.secret_of(token, certificates)
    session_of = lines.sessions_of(server, client, secret, certificates, timing)
    source = _site(*sort_arguments(arguments or []))
    typer.echo(f"asking {server} what is to be trained")
    said = settings_of(server, client, secret, certificates, timing, partial(typer.echo, err=True))
    source = with_shared(source, said)
    remote = RemoteClient(prepare_client(source, client), client, home, _tell)
    try:
        remote.take_part(session_of)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    typer.echo("the run has ended")


def _site(file: Path | None, overrides: list[str]) -> Source:
    """Returns a site's own configuration: of the demo's, which stands where none is named, its documents."""
    from fedstrata.engine.shared_settings import SHARED  # noqa: PLC0415 - heavy

    source = configuration(file, overrides)
    if file is None:
        for section in SHARED:
            if not on_command_line(source, section):
                source.values.pop(section, None)
    return source


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
    elif event == "kept":
        typer.echo(f"what was learnt is in {facts['folder']}")
    elif event == "turn_failed":
        typer.echo(f"round {facts['round']} has failed here: {facts['message']}", err=True)
