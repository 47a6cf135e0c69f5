"""`fedstrata report`: run directories to one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import Debug


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file; report.html in the run directory, or here for several runs, when not given.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a report of a run, or a comparison of several, as one HTML file that needs no network.

    Example: fedstrata report runs/top4 runs/fedavg --out comparison.html
    """
    from fedstrata.record.report import write_report  # noqa: PLC0415 - heavy

    file = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    write_report(runs, file)
    typer.echo(f"report: {file}")
