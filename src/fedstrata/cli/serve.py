"""`fedstrata serve` and `fedstrata join`: the server of a run and its clients as processes of their own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli import lines
from fedstrata.cli.line_options import with_options
from fedstrata.cli.nvflare import serve_on_nvflare
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
from fedstrata.core.errors import ConfigurationError, Problem, refused
from fedstrata.display import log
from fedstrata.display.log import LogJson

if TYPE_CHECKING:
    from fedstrata.core.settings.source import Source
    from fedstrata.display.run import Display
    from fedstrata.engine.remote.engine import RemoteEngine
    from fedstrata.engine.run import Run
    from fedstrata.operations.serving import Operations
    from fedstrata.transport.grpc.hub import GrpcHub


class Carrier(StrEnum):
    """What a run may be served on, other than connections of its own."""

    NVFLARE = "nvflare"


@with_options(lines.ServerLine, deadline=3600)
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
    on: Annotated[
        Carrier | None,
        typer.Option(help="What carries the run, if not connections of its own.", show_default=False),
    ] = None,
    admin: Annotated[
        Path | None,
        typer.Option(
            help="The startup kit of the NVFlare administrator who submits the run.",
            metavar="KIT",
            show_default=False,
        ),
    ] = None,
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
    from fedstrata.display.run import Display  # noqa: PLC0415 - heavy
    from fedstrata.engine.remote.serving import open_service  # noqa: PLC0415
    from fedstrata.engine.run_folder import has_begun, has_ended, require_free_folder  # noqa: PLC0415
    from fedstrata.operations.serving import Operations, require_operations  # noqa: PLC0415
    from fedstrata.operations.standing import Standing  # noqa: PLC0415
    from fedstrata.transport.addresses import require_free  # noqa: PLC0415

    log.take_over()
    if resume_if_begun and has_ended(out):
        log.tell(f"the run in {out} has ended; nothing is left to do", event="ended")
        return
    resume = resume or (resume_if_begun and has_begun(out))
    if on is not None:
        if operations is not None:
            raise ConfigurationError(
                [Problem("--operations", "has no use with --on: NVFlare serves the run", code="no_effect")]
            )
        if not resume:
            require_free_folder(out)
        source = configuration_of(line, arguments, out, resume=resume)
        serve_on_nvflare(line, source, out, admin, patience)
        return
    if admin is not None:
        raise refused("--admin", "has no use without --on nvflare", "no_effect")
    guests = line.guests()
    require_operations(operations)
    require_free(line.address)
    display = Display()
    display.say("preparing the model ...")
    if not resume:
        require_free_folder(out)
    source, standing = configuration_of(line, arguments, out, resume=resume), Standing(guests.names, display)
    serving = line.serving(guests.names, patience)
    run, hub = open_service(source, out, standing, serving, guests.hub, resume=resume)
    log.about(run=run.experiment.settings.name)
    told = Operations(run.folder, hub, standing, operations)
    summary = _executed(run, hub, line.address, told, display)
    display.show(summary, run.folder, personal=run.experiment.method.personal)


def _executed(
    run: Run[RemoteEngine], hub: GrpcHub, listen: str, told: Operations, display: Display
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


@with_options(lines.ClientLine, reconnect=600)
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
    allow_without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Accept one masked sum without SITE over a model that was summed with it before: the server "
            "then learns that site's update. It holds for the first such sum of this process. Repeat for "
            "several sites.",
        ),
    ] = None,
    new_run: Annotated[
        bool,
        typer.Option(
            "--new-run",
            help="Accept one other run than the one that was joined. The counters of the policy and of "
            "differential privacy begin again for it (a budget over runs still holds), released sums stay "
            "recorded. Use it once, and only if the people of the federation agreed on a new run.",
        ),
    ] = False,
    log_json: LogJson = False,
    debug: Debug = False,
) -> None:
    """Take part in a federation that a server runs; texts and labels stay here.

    The site's configuration names its data, its device and its cache; the server says all else. At the end
    the model that was learnt lies here too, unless it is divided.

    Example: fedstrata join site.yaml --server 10.0.0.1:7447 --client north --token token
    --certificate north.pem --key north.key --authority server.pem
    """
    from fedstrata.core.plugins import search_here  # noqa: PLC0415 - heavy

    search_here(False)  # before anything else is imported, and as long as the site's own files name no code
    from fedstrata.engine.remote.joined_runs import JoinedRuns  # noqa: PLC0415
    from fedstrata.engine.remote.joining import join_run  # noqa: PLC0415
    from fedstrata.engine.remote.shared_settings import names_code  # noqa: PLC0415
    from fedstrata.engine.remote.site_policy import PolicyGuard  # noqa: PLC0415
    from fedstrata.transport.kit import IDENTITY, LOCK, POLICY  # noqa: PLC0415

    log.take_over()
    client = line.name
    log.about(client=client)
    policy = policy or line.own(POLICY)
    guard = PolicyGuard.read(policy) if policy is not None else None
    session_of = line.sessions()
    source = _site(line, arguments)
    search_here(names_code(source.values, guard))
    runs = JoinedRuns(line.place, client).count + 1 if new_run else 1
    log.tell(f"asking {line.address} what is to be trained", event="asking")

    def settings_of(refused: bool) -> Mapping[str, Any]:
        told = line.settings(refused=refused)
        if isinstance(said := told.get("settings"), Mapping):
            log.about(run=str(said.get("name")))
        return told

    try:
        join_run(
            source,
            client,
            settings_of,
            session_of,
            line.place,
            _tell,
            identity=identity or line.kept(IDENTITY),
            lock=lock or line.kept(LOCK),
            guard=guard,
            allow_without=allow_without or (),
            runs=runs,
        )
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    log.tell("the run has ended", event="ended")


def _site(line: lines.ClientLine, arguments: list[str] | None) -> Source:
    """Returns a site's own configuration: of the demo's, which stands where none is named, its documents."""
    from fedstrata.engine.agreed import SHARED  # noqa: PLC0415 - heavy

    source, file = line.site_source(arguments)
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
        raise ConfigurationError(
            [Problem("", "--resume needs --out: the run directory to go on with", code="missing")]
        )
    from fedstrata.engine.run_folder import resumable  # noqa: PLC0415 - heavy

    return resumable(out, file, overrides, command="fedstrata serve")


def _tell(event: str, facts: Any) -> None:
    """Shows what a client does, a line a turn."""
    from fedstrata.record.client_events import TROUBLE, line_of  # noqa: PLC0415 - not for --help

    if told := line_of(event, facts):
        level = logging.WARNING if event in TROUBLE else logging.INFO
        log.tell(told, level=level, event=event, round=facts.get("round"))
