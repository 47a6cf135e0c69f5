"""`fedstrata watch`: the report of a run as a live page."""

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import Debug
from fedstrata.cli.run import INTERRUPTED


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0 for any that is free.", min=0, max=65535)
    ] = 0,
    debug: Debug = False,
) -> None:
    """Show a run's report as a page that stays up to date, to browsers on this machine, until Ctrl-C.

    Example: fedstrata watch runs/top4
    """
    from fedstrata.operations.live_page import LivePage  # noqa: PLC0415 - heavy
    from fedstrata.operations.local_server import LocalServer  # noqa: PLC0415

    try:
        page = LivePage(run)
        with LocalServer(f"127.0.0.1:{port}", page.routes(), setting="--port") as server:
            typer.echo(f"watching {run} at {server.url} (Ctrl-C to stop)")
            server.wait()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
