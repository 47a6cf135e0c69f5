"""`fedstrata serve` and `fedstrata join`: the server of a run and its clients as processes of their own."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli import lines, log
from fedstrata.cli.log import LogJson
from fedstrata.cli.options import (
    Arguments,
    Debug,
    Resume,
    configuration,
    on_command_line,
    seconds,
    sort_arguments,
)
from fedstrata.cli.run import INTERRUPTED
from fedstrata.core.errors import ConfigurationError, PolicyError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedstrata.cli.display import Display
    from fedstrata.core.settings.source import Source
    from fedstrata.engine.remote import RemoteEngine
    from fedstrata.engine.run import Run
    from fedstrata.operations.serving import Operations
    from fedstrata.transport.hub import Hub


@lines.with_options(lines.ServerLine, deadline=3600)
def serve(
    line: lines.ServerLine,
    arguments: Arguments = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; runs/NAME when not given.")] = None,
    resume: Resume = False,
    resume_if_begun: Annotated[
        bool,
        typer.Option(
            "--resume-if-begun",
            help="Begin a run, or go on with that of --out; one that has ended is left as it is.",
        ),
    ] = False,
    patience: Annotated[float, seconds("to wait, once, for a client that has not joined.", 0.0)] = 3600,
    operations: Annotated[
        str | None,
        typer.Option(help="Loopback address to tell /healthz and /metrics at.", metavar="HOST:PORT"),
    ] = None,
    log_json: LogJson = False,
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
    from fedstrata.engine.run_folder import (  # noqa: PLC0415
        has_begun,
        has_ended,
        open_served,
        require_free_folder,
    )
    from fedstrata.engine.shared_settings import shared_settings  # noqa: PLC0415
    from fedstrata.operations.serving import Operations, require_operations  # noqa: PLC0415
    from fedstrata.operations.standing import Standing  # noqa: PLC0415
    from fedstrata.transport.addresses import require_free  # noqa: PLC0415

    log.take_over()
    if resume_if_begun and has_ended(out):
        log.tell(f"the run in {out} has ended; nothing is left to do", event="ended")
        return
    resume = resume or (resume_if_begun and has_begun(out))
    guests = line.guests()
    require_operations(operations)
    require_free(line.address)
    display = Display()
    display.say("preparing the model ...")
    if not resume:
        require_free_folder(out)
    source = configuration_of(line, arguments, out, resume=resume)
    experiment = prepare_server(source, guests.names)
    log.about(run=experiment.settings.name)
    cache_bytes = int(line.cache_megabytes * 2**20)
    engine_of = partial(RemoteEngine, names=guests.names, cache_bytes=cache_bytes, patience=patience)
    agreements = Agreements(experiment, guests.names, line.megabytes * 2**20)  # before anything is written
    standing = Standing(guests.names, display)
    run = open_served(source, experiment, out, standing, engine_of, resume=resume)
    agreements.known = run.engine.weights
    hub = guests.hub(agreements, run.engine.welcome, shared_settings(experiment))
    run.engine.connect(hub)
    told = Operations(run.folder, hub, standing, operations)
    summary = _executed(run, hub, line.address, told, display)
    display.show(summary, run.folder, personal=experiment.method.personal)


def _executed(
    run: Run[RemoteEngine], hub: Hub, listen: str, told: Operations, display: Display
) -> Mapping[str, Any]:
    """Returns the summary of a run whose clients come to an address; it ends their sessions."""
    complete = False
    try:
        everybody = f"; /healthz and /metrics on {told.place}" if told.public else ""
        display.say(f"waiting on {hub.listen(listen)} for {', '.join(run.engine.clients())}{everybody}")
        with told, display:
            summary = run.execute()
        complete = True
    except KeyboardInterrupt:
        display.say(f"stopped; go on with: fedstrata serve --resume --out {run.folder}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        hub.stop(complete=complete)
    return summary


@lines.with_options(lines.ClientLine, reconnect=600)
def join(
    line: lines.ClientLine,
    arguments: Arguments = None,
    identity: Annotated[
        Path | None, typer.Option(help="This site's identity (fedstrata keys new), for secure aggregation.")
    ] = None,
    lock: Annotated[Path | None, typer.Option(help="Whom this site sums with (fedstrata keys lock).")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="What this site allows, YAML; a run that asks for more is refused.")
    ] = None,
    log_json: LogJson = False,
    debug: Debug = False,
) -> None:
    """Take part in a federation that a server runs; texts and labels stay here.

    The site's configuration names its data, its device and its cache; the server says all else. At the end
    the model that was learnt lies here too, unless it is divided.

    Example: fedstrata join site.yaml --server 10.0.0.1:7447 --client north --token token
    --certificate north.pem --key north.key --authority server.pem
    """
    from fedstrata.engine.check import check_settings  # noqa: PLC0415 - heavy
    from fedstrata.engine.joining import RemoteClient  # noqa: PLC0415
    from fedstrata.engine.prepare import prepare_client  # noqa: PLC0415
    from fedstrata.engine.shared_settings import with_shared  # noqa: PLC0415
    from fedstrata.engine.site_policy import PolicyGuard  # noqa: PLC0415
    from fedstrata.transport.kit import IDENTITY, LOCK, POLICY  # noqa: PLC0415

    log.take_over()
    client = line.name
    log.about(client=client)
    policy = policy or line.own(POLICY)
    guard = PolicyGuard.read(policy) if policy is not None else None
    session_of = line.sessions()
    source = _site(*line.sorted(arguments))
    log.tell(f"asking {line.address} what is to be trained", event="asking")
    source = with_shared(source, line.settings())
    log.about(run=source.values["name"])
    try:
        if guard is not None:
            guard.require_settings(check_settings(source).settings)
        experiment = prepare_client(source, client)
        if guard is not None:
            guard.require_experiment(experiment, client)
    except PolicyError:
        line.settings(refused=True)
        raise
    files = {"identity": identity or line.kept(IDENTITY), "lock": lock or line.kept(LOCK)}
    remote = RemoteClient(experiment, client, line.place, _tell, **files, policy=guard)
    try:
        remote.take_part(session_of)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    log.tell("the run has ended", event="ended")


def _site(file: Path | None, overrides: list[str]) -> Source:
    """Returns a site's own configuration: of the demo's, which stands where none is named, its documents."""
    from fedstrata.engine.shared_settings import SHARED  # noqa: PLC0415 - heavy

    source = configuration(file, overrides)
    if file is None:
        for section in SHARED:
            if not on_command_line(source, section):
                source.values.pop(section, None)
    return source


def configuration_of(
    line: lines.ServerLine, arguments: list[str] | None, out: Path | None, *, resume: bool
) -> Any:
    """Returns the configuration to serve: the one that is named, or that of the run to go on with."""
    if not resume:
        return configuration(*line.sorted(arguments))
    file, overrides = sort_arguments(arguments or [])
    if out is None:
        raise ConfigurationError([Problem("", "--resume needs --out: the run directory to go on with")])
    from fedstrata.engine.run_folder import resumable  # noqa: PLC0415 - heavy

    return resumable(out, file, overrides, command="fedstrata serve")


def _tell(event: str, facts: Any) -> None:
    """Shows what a client does, a line a turn."""
    from fedstrata.record.privacy import budget_line  # noqa: PLC0415 - not for --help

    say = partial(log.tell, event=event, round=facts.get("round"))
    if event == "joined":
        say(f"joined as {facts['client']}")
    elif event == "session_over":
        say(f"joining again: {facts['message']}")
    elif event == "turn":
        say(f"round {facts['round']}: {facts['handler']}")
    elif event == "scoring":
        say(f"scoring the {facts['part']} split")
    elif event in {"budget_refused", "policy_refused"}:
        say(facts["message"], level=logging.WARNING)
    elif event == "budget":
        say(budget_line(facts["clients"].popitem()[1], facts))
    elif event == "kept":
        say(f"what was learnt is in {facts['folder']}")
    elif event == "turn_failed":
        say(f"round {facts['round']} has failed here: {facts['message']}", level=logging.WARNING)
