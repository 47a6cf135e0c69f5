"""`fedstrata serve --on nvflare` and `fedstrata nvflare-kit`: a run over a federation of NVFlare's."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli.options import Debug
from fedstrata.cli.run import INTERRUPTED
from fedstrata.core.errors import refused

if TYPE_CHECKING:
    from fedstrata.cli.lines import ServerLine


def serve_on_nvflare(
    line: ServerLine, source: Any, out: Path | None, admin: Path | None, patience: float
) -> None:
    """Has NVFlare serve a run, and shows its record.

    Args:
        line: The options of a server.
        source: The configuration.
        out: The run directory; `runs/NAME` when none.
        admin: The startup kit of the administrator who submits the job.
        patience: Seconds to wait for a client that has not joined.

    Raises:
        ConfigurationError: The configuration is wrong, or something is said that has no effect here.
        JobError: The run has failed.
    """
    from fedstrata.display.run import Display  # noqa: PLC0415 - heavy
    from fedstrata.engine.prepare import check_served  # noqa: PLC0415
    from fedstrata.engine.run_folder import free_folder  # noqa: PLC0415
    from fedstrata.nvflare.handover import Handover  # noqa: PLC0415
    from fedstrata.nvflare.supervisor import Supervisor  # noqa: PLC0415
    from fedstrata.record.log import read_events  # noqa: PLC0415
    from fedstrata.record.summary import summarise  # noqa: PLC0415

    if admin is None:
        raise refused("--admin", "must be given: who submits the job, by its kit", "missing")
    timing, serving = line.timing(), line.serving(line.names(), patience)
    checked = check_served(source, serving.clients)
    folder = (out or free_folder(Path("runs"), checked.settings.name)).absolute()
    handover = Handover(
        submission=0,
        directory=str(Path.cwd()),
        clients=list(serving.clients),
        cache_bytes=serving.cache_bytes,
        largest=serving.largest,
        patience=patience,
        timing=asdict(timing),
    )
    display = Display()
    logging.getLogger().addHandler(logging.NullHandler())  # what NVFlare has to say of a line that broke
    supervisor = Supervisor(admin, folder, checked.settings, handover, display, display.say)
    try:
        with display:
            supervisor.run()
    except KeyboardInterrupt:
        display.say(f"stopped; go on with --resume --out {folder}")
        raise typer.Exit(INTERRUPTED) from None
    summary, method = summarise(read_events(folder / "record.jsonl")), checked.method
    display.show(summary, folder, personal=method is not None and method.personal)


def nvflare_kit(
    kit: Annotated[
        Path, typer.Argument(metavar="KIT", help="The folder of a server or a client.", show_default=False)
    ],
    debug: Debug = False,
) -> None:
    """Make an NVFlare startup kit ready for runs of fedstrata.

    Its `local/resources.json` lets jobs start what serves a run, or takes part in one, and nothing else of
    fedstrata; has NVFlare start that again when it is killed; and keeps what NVFlare stores in the kit.
    """
    from fedstrata.nvflare.kit import prepare_kit  # noqa: PLC0415 - not for --help

    typer.echo(f"wrote {prepare_kit(kit)}; it counts when NVFlare is started again")
