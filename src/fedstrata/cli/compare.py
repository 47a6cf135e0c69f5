"""`fedstrata compare`: several runs on the same data and seeds, and one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import Debug, sort_files
from fedstrata.cli.run import INTERRUPTED


def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG.yaml|KEY.PATH=VALUE",
            help="A configuration with a `sweep` section, or several configurations, one a row of the table; "
            "and settings that override every row's.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where everything is kept; comparisons/NAME when not given.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of every row, for example 0,1,2; short for sweep.seeds=[0,1,2].")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="ROW", help="Row that every other row is compared with; short for sweep.baseline=ROW."
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns to show, with commas between; short for sweep.columns=[...].")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs side by side.", min=1)] = 1,
    debug: Debug = False,
) -> None:
    """Compare methods or settings: mean and spread over seeds, the best in bold.

    What has finished is not run again and what has begun is resumed: to go on, give the same command again.

    Example: fedstrata compare site.yaml sweep.grid.method.top=[2,4] --seeds 0,1,2 --jobs 2
    """
    files, overrides = sort_files(arguments)
    overrides += [f"sweep.seeds=[{seeds}]"] if seeds is not None else []
    overrides += [f"sweep.baseline={json.dumps(baseline)}"] if baseline is not None else []
    overrides += [f"sweep.columns=[{columns}]"] if columns is not None else []

    from fedstrata.api.comparison import executed  # noqa: PLC0415 - heavy
    from fedstrata.core.settings.sweep import folder_name, read_sweep  # noqa: PLC0415
    from fedstrata.display.comparison import Display  # noqa: PLC0415

    display = Display()
    try:
        sweep = read_sweep(files, overrides)
        folder = out if out is not None else Path("comparisons") / (folder_name(sweep.name) or "comparison")
        display.say("checking every run ...")
        comparison = executed(sweep, folder, jobs, display)
    except KeyboardInterrupt:
        display.say("stopped; to go on, give the same command again")
        raise typer.Exit(INTERRUPTED) from None
    display.show(comparison.raw, folder)
    comparable = sweep.settings.allow_different_data or all(
        row["same_data"] for row in comparison.raw["rows"]
    )
    if not (comparison.finished and comparable):
        raise typer.Exit(1)
