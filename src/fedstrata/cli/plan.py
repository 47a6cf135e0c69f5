"""`fedstrata plan`: what a run will train, send and cost, before it starts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli import options
from fedstrata.cli.options import Arguments, Debug, configuration, sort_arguments
from fedstrata.display.plan import show_plan
from fedstrata.display.tables import say


def plan(
    arguments: Arguments = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
    seconds: Annotated[float, options.seconds("to measure; longer is surer.", 0.0)] = 10.0,
    out: Annotated[Path, typer.Option(help="Where runs will go; its free space is looked up.")] = Path(
        "runs"
    ),
    debug: Debug = False,
) -> None:
    """Say what a run will train, send and cost, and list every problem.

    A few batches are run through the real engine and thrown away; nothing is left behind.

    Example: fedstrata plan site.yaml method.top=4 federation.rounds=20
    """
    file, overrides = sort_arguments(arguments or [])

    from rich.console import Console  # noqa: PLC0415 - heavy

    from fedstrata.planning.plan import make_plan  # noqa: PLC0415

    console = Console()
    if not as_json:
        say(console, "preparing the data and the model, then rehearsing a few batches ...")
    made = make_plan(configuration(file, overrides), folder=out, seconds=seconds)
    if as_json:
        typer.echo(json.dumps(asdict(made), indent=2, allow_nan=False))
        return
    show_plan(console, made)
