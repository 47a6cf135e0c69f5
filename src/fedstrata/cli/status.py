"""`fedstrata status`: where a run stands, and each of its sites."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli.options import Debug
from fedstrata.cli.run import INTERRUPTED
from fedstrata.core.errors import printable, refused

if TYPE_CHECKING:
    from rich.console import Group

_PAUSE = 1.0
"""Seconds between two pictures."""


def status(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run directory; the one in runs/ at work last when not given.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Show it once, and not until the run has ended.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, a line each time.")] = False,
    debug: Debug = False,
) -> None:
    """Show which sites of a served run are there, what they do, and what has travelled, as it changes.

    Example: fedstrata status runs/first
    """
    folder = run or _latest(Path("runs"))
    try:
        if as_json:
            for picture in _pictures(folder, once=once):
                typer.echo(json.dumps(picture))
        else:
            _show(folder, once=once)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _latest(runs: Path) -> Path:
    """Returns the run whose record was written last.

    Raises:
        ConfigurationError: There is none.
    """
    latest = max(runs.glob("*/record.jsonl"), key=lambda path: path.stat().st_mtime, default=None)
    if latest is None:
        raise refused("RUN", "must be given: there is no run in runs/", "missing")
    return latest.parent


def _pictures(folder: Path, *, once: bool) -> Iterator[Mapping[str, Any]]:
    """Yields where a run stands, time and again as long as its server is there and it goes on."""
    from fedstrata.operations.serving import GONE, SILENT, picture_of  # noqa: PLC0415 - heavy
    from fedstrata.operations.standing import ENDS  # noqa: PLC0415

    while True:
        picture = picture_of(folder)
        yield picture
        ended = picture["state"] in ENDS and picture["server"] != SILENT
        if once or ended or picture["server"] == GONE:
            return
        time.sleep(_PAUSE)


def _show(folder: Path, *, once: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.live import Live  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        for picture in _pictures(folder, once=once):
            console.print(_drawn(picture))
        return
    with Live(console=console, auto_refresh=False) as live:
        for picture in _pictures(folder, once=once):
            live.update(_drawn(picture), refresh=True)


def _drawn(picture: Mapping[str, Any]) -> Group:
    """Returns a picture for people: what holds for the run, then a row for each site."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - heavy
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from fedstrata.display.tables import new_table  # noqa: PLC0415
    from fedstrata.record.words import ABSENT, size  # noqa: PLC0415

    known = _knows_who_is_there(picture)
    headings = ["site", *(["there", "doing"] if known else []), "last\nseen", "round", "sent", "got"]
    table = new_table("", [*headings, "done", "lost"], box=SIMPLE_HEAD)
    table.title, table.padding, table.pad_edge = None, (0, 1, 0, 0), False  # it fits 80 columns so
    for site in picture["sites"]:
        here = ["yes" if site["there"] else "no", site["doing"]] if known else []
        sent = (size(site["bytes_up"]), size(site["bytes_down"]), site["delivered"], site["lost"])
        row = (printable(site["site"]), *here, _since(site["seen"]), site["round"] or ABSENT, *sent)
        table.add_row(*(Text(str(cell)) for cell in row))
    failures = [
        Text(printable(f"{site['site']} was lost to round {site['round']}: {site['failure']}"))
        for site in picture["sites"]
        if site["failure"]
    ]
    return Group(*map(Text, _lines(picture)), *([table] if picture["sites"] else []), *failures)


def _lines(picture: Mapping[str, Any]) -> list[str]:
    """Returns what is said of the run."""
    from fedstrata.operations.serving import GONE  # noqa: PLC0415 - heavy
    from fedstrata.record.words import duration, score  # noqa: PLC0415

    sites, rounds = picture["sites"], picture["rounds"]
    parts = [f"{printable(picture['name'])}: {picture['state']}"]
    if rounds is not None:
        parts.append(f"{picture['committed']} of {rounds} rounds committed")
    if picture["round_began"] is not None and picture["round"] > picture["committed"]:
        parts.append(f"round {picture['round']} for {_since(picture['round_began'])}")
    if _knows_who_is_there(picture):
        parts.append(f"{sum(bool(site['there']) for site in sites)} of {len(sites)} sites there")
    numbers, version = [], f"fedstrata {picture['fedstrata']}"
    if picture["loss"] is not None:
        numbers.append(f"loss {picture['loss']:.3f}")
    if picture["score"] is not None:
        numbers.append(f"validation {picture['metric']} {score(picture['score'])}")
    if picture["round_seconds"] is not None:
        numbers.append(f"the last round took {duration(picture['round_seconds'])}")
    lines = [", ".join(parts), *([", ".join(numbers)] if numbers else [])]
    gone = picture["server"] == GONE
    lines.append("no server of it is running" if gone else f"its server is {picture['server']}, {version}")
    if picture["message"]:
        lines += [printable(line, len(line)) for line in str(picture["message"]).split("\n")]
    return lines


def _knows_who_is_there(picture: Mapping[str, Any]) -> bool:
    """Whether it was the run's server that has told."""
    return any(site["there"] is not None for site in picture["sites"])


def _since(moment: str | None) -> str:
    """Returns how long it is since a moment."""
    from fedstrata.record.words import ABSENT, duration  # noqa: PLC0415 - heavy

    if moment is None:
        return ABSENT
    seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    return duration(max(0.0, seconds))
