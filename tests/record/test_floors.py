"""Scores and their floors as people read them: on a terminal, in reports and in comparisons."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from figures import draw_only
from rich.console import Console

from fedstrata.display.run import Display
from fedstrata.record.floors import cautions, floor_text, highest
from fedstrata.record.log import read_events
from fedstrata.record.report import write_report
from fedstrata.record.summary import summarise
from fedstrata.record.table import CellResult, RowResult, tabulate
from fedstrata.record.table_text import grid, markdown, notes

CLIENTS = {"north": 0.5, "south": 0.5}
DEGENERATE = "no mention was predicted in any of 9 documents"


def floor(value: float, clients: float | None = None) -> dict[str, Any]:
    return {"global": value, "mean_client": value if clients is None else clients, "documents": 9}


def events_of(events: Any, **final: Any) -> list[dict[str, Any]]:
    """Of a finished run whose score is 0.5."""
    every: list[dict[str, Any]] = events(clients=CLIENTS)
    every[-1] |= final
    return every


@pytest.mark.parametrize(
    ("value", "falling", "beaten"),
    [(0.4, False, True), (0.5, False, False), (0.6, True, True), (0.4, True, False)],
)
def test_a_score_beats_a_floor_that_it_is_better_than(value: float, falling: bool, beaten: bool) -> None:
    worse = 10.0 if falling else 0.0
    found = highest({"easy": worse, "hard": value}, 0.5, falling=falling)
    assert found == {"name": "hard", "value": value, "beaten": beaten}
    assert highest({}, 0.5, falling=falling) is None


def test_the_summary_has_the_floors_of_the_score_it_is_judged_by(events: Any) -> None:
    floors = {"look-up table": floor(0.5, 0.1), "untrained model": floor(0.2, 0.3)}
    summary = summarise(events_of(events, floors=floors, degenerate=DEGENERATE))
    assert summary["floors"] == {"look-up table": 0.5, "untrained model": 0.2}
    assert summary["floor"] == {"name": "look-up table", "value": 0.5, "beaten": False}
    told, degenerate = cautions(summary)
    assert told.endswith(": look-up table 0.500")
    assert degenerate == DEGENERATE
    own_models = events_of(events, floors=floors)
    own_models[-1]["global"] = None
    assert summarise(own_models)["floor"] == {"name": "untrained model", "value": 0.3, "beaten": True}


def test_older_runs_have_none(events: Any) -> None:
    summary = summarise(events(clients=CLIENTS))
    assert (summary["floors"], summary["floor"], summary["degenerate"]) == ({}, None, None)
    assert cautions({}) == []
    assert floor_text({}) == ""


def test_the_terminal_and_the_report_say_that_scores_mean_little(
    write_run: Any, events: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch)
    floors = {"look-up table": floor(0.5)}
    folder = write_run(events_of(events, floors=floors, degenerate=DEGENERATE))
    console = Console(record=True, width=200, force_terminal=False)
    summary = summarise(read_events(folder / "record.jsonl"))
    with Display(console) as display:
        display.show(summary, folder, personal=False)
    said = console.export_text()
    write_report([folder], tmp_path / "one.html")
    for text in (said, (tmp_path / "one.html").read_text()):
        assert ": look-up table 0.500" in text and DEGENERATE in text
    better = write_run(events_of(events, floors={"look-up table": floor(0.1)}), "better")
    write_report([folder, better], tmp_path / "two.html")
    page = (tmp_path / "two.html").read_text()
    assert page.count("0.500 ‡") == 1
    assert re.search(r"\brun: [^<]*: look-up table 0\.500", page)


def cell(seed: int, summary: Mapping[str, Any], value: float, *, beaten: bool) -> CellResult:
    own = {"name": "look-up table", "value": value, "beaten": beaten}
    run = {"metric": "f1", "data": f"d{seed}", "threads": 1, "device": "cpu", "versions": {}}
    return CellResult(seed, "folder", {**summary, "floor": own}, run)


def test_a_comparison_marks_the_cell_and_names_the_runs(events: Any) -> None:
    summary = summarise(events(clients=CLIENTS))
    rows = [
        RowResult("learns", (cell(0, summary, 0.1, beaten=True), cell(1, summary, 0.3, beaten=True))),
        RowResult("does not", (cell(0, summary, 0.1, beaten=True), cell(1, summary, 0.5, beaten=False))),
    ]
    machine = {"cores": 1, "processor": "one", "system": "one", "jobs": 1}
    table = tabulate(rows, name="test", machine=machine)
    titles, cells = grid(table)
    shown = {row[0][0]: dict(zip(titles, (text for text, _ in row), strict=True)) for row in cells}
    assert shown["learns"]["f1"] == "50.0"
    assert shown["does not"]["f1"] == "50.0 ‡"
    assert shown["learns"]["f1, floor"].startswith("20.0")
    (marked,) = [note for note in notes(table) if note.startswith("‡")]
    assert ": does not, seed 1 (look-up table)" in marked
    assert "points (hundredths)" in markdown(table)
