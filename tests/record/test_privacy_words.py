"""What people read of differential privacy: `privacy.md`, the report, a comparison, trackers and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from figures import draw_only
from markupsafe import Markup
from private_client import PRIVATE
from support import RunTiny

from fedstrata.engine.run import Run
from fedstrata.privacy.accounting import Mechanism, epsilon_of
from fedstrata.privacy.ledger_summary import sent_by_all
from fedstrata.record.privacy import NOT_COVERED, OF_A_SIMULATION, epsilon_rows, spent_by
from fedstrata.record.privacy_statement import statement
from fedstrata.record.report import write_report
from fedstrata.record.table import CellResult, RowResult, tabulate
from fedstrata.record.table_text import grid, notes
from fedstrata.record.trackers import round_values
from fedstrata.record.words import epsilon

FACTS = {
    "mechanism": "local", "unit": "patient", "adjacency": "zero-out", "delta": 1e-5, "sigma": 0.75,
    "clip": 2.0, "noise": "secure", "asked": 8.0,
    "units": {"a": 400, "b": 200}, "rates": {"a": 0.02, "b": 0.04},
    "windows": 4, "expected_batch": 8, "steps": 25, "turns": 5, "spare_turns": 2, "scores": "none",
}  # fmt: skip
"""Of the mechanism, as a `run` event has them."""


def private(events: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    """Those events, of a run with differential privacy."""
    facts = FACTS | changes
    for event in events:
        if event["event"] == "run":
            event["privacy"] = facts
        elif event["event"] == "round":
            number = event["round"]
            spent = {"a": {"turns": number, "epsilon": 1.2345 * number}, "b": {"turns": 1, "epsilon": 1.0}}
            event["privacy"] = {"clients": spent, "clipped": {"a": 0.25, "b": 0.75}}
    last = [event for event in events if event["event"] == "round"][-1]
    told = {"event": "privacy", "time": last["time"], "round": 3, "clients": last["privacy"]["clients"]}
    return [*events, told | {"at_two": 4.5678}]


def test_the_statement_has_the_numbers(events: Any) -> None:
    text = statement(private(events()))
    assert text is not None
    for said in (
        "25 steps a turn",
        "at most 4 rows is clipped to L2 norm 2",
        "deviation 0.75 x 2",
        "divided by the configured 8",
        "| Delta | 1e-05 |",
        "| Epsilon | 3.71, the largest over clients",
        "| a | 400 | 0.02 | 3 | 5 | 3.71 |",
        "| b | 200 | 0.04 | 1 | 5 | 1.00 |",
        "spend no more than epsilon 8.00",
        "is **4.57** at delta 1e-05",
        "a 400, b 200 | **no**, public |",
    ):
        assert said in text, said
    assert "protects nobody" not in text
    assert statement(private(events())) == text


def test_the_statement_goes_by_what_was_spent_last_even_after_a_failure(events: Any) -> None:
    """A turn that was begun after the last round has spent what a whole one spends."""
    told = private(events(2, final=False))
    told[-1]["clients"] = {"a": {"turns": 3, "epsilon": 6.0}, "b": {"turns": 1, "epsilon": 1.0}}
    text = statement(told)
    assert text is not None
    assert "has not finished all its rounds" in text
    assert "| a | 400 | 0.02 | 3 | 5 | 6.00 |" in text
    assert "| Epsilon | 6.00" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise": "seeded"}, "protects nobody"),
        ({"sigma": 0.0}, "There was no noise"),
        ({"unit": "window"}, "whose epsilon is larger"),
        ({"unit": "document"}, "say nothing of a patient who has several"),
        ({"mechanism": "central", "unit": "client"}, "the server, which sees every client's change"),
    ],
)
def test_the_statement_says_what_takes_from_the_claim(
    events: Any, changes: dict[str, Any], said: str
) -> None:
    assert said in (statement(private(events(), **changes)) or "")
    assert said not in (statement(private(events())) or "")


def test_a_served_run_says_what_of_scores_was_sent(events: Any) -> None:
    for scores, said in (("none", "| scores | none were sent |"), ("summed", "`privacy.scores: summed`")):
        text = statement(private(events(id="run-1", ends={}), scores=scores))
        assert text is not None
        assert said in text and "simulated" not in text


def test_names_do_not_break_the_tables(events: Any) -> None:
    told = private(events())
    told[-1]["clients"] = {"a | b": {"turns": 1, "epsilon": 1.0}}
    assert "| a \\| b |" in (statement(told) or "")


@pytest.mark.claim("security_review#no-epsilon")
def test_without_privacy_nothing_is_stated(events: Any) -> None:
    assert statement(events()) is None


def test_an_epsilon_that_nothing_bounds_is_no_number(events: Any) -> None:
    told = private(events(), sigma=0.0)
    for event in told:
        if event["event"] == "round":
            event["privacy"]["clients"] = {"a": {"turns": 1, "epsilon": None}}
    told[-1]["clients"] = {"a": {"turns": 1, "epsilon": None}}
    assert "| Epsilon | infinite" in (statement(told) or "")
    assert "privacy/epsilon" not in round_values(told[1], "f1")
    assert epsilon_rows(told[1:2])[0]["epsilon"] == {}


def test_trackers_are_told_the_largest_epsilon(events: Any) -> None:
    told = private(events())
    values = [round_values(event, "f1").get("privacy/epsilon") for event in told if event["event"] == "round"]
    assert values == pytest.approx([1.2345, 2.469, 3.7035])
    assert "privacy/epsilon" not in round_values(events()[1], "f1")


def page_of(folder: Path, *others: Path) -> str:
    write_report([folder, *others], folder.parent / "page.html")
    return " ".join((folder.parent / "page.html").read_text(encoding="utf-8").split())


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is drawn of curves and points, by the keys of figures."""
    asked: dict[str, Any] = {}

    def note(key: str, title: str, what: Any, *_: Any, **__: Any) -> Markup:
        asked[key] = what
        return Markup("<svg></svg>")

    draw_only(monkeypatch)
    for name in ("curves", "points"):
        monkeypatch.setattr(f"fedstrata.record.report.plots.{name}", note)
    return asked


def test_the_report_has_a_section_of_privacy(write_run: Any, events: Any, drawn: dict[str, Any]) -> None:
    page = page_of(write_run(private(events())))
    assert "<h2>Differential privacy</h2>" in page
    assert OF_A_SIMULATION in page
    assert page.count(NOT_COVERED) == 2
    assert "delta 1e-05: a 3.71, b 1.00" in page
    assert "protects nobody" not in page
    one, other = (list(line.y) for line in drawn["epsilon"])
    assert (one, other) == (pytest.approx([1.2345, 2.469, 3.7035]), [1.0] * 3)
    assert [list(line.y) for line in drawn["clipped"]] == [[0.25] * 3, [0.75] * 3]


def test_of_many_clients_the_report_draws_the_largest_and_a_band(
    write_run: Any, events: Any, drawn: dict[str, Any]
) -> None:
    told = private(events())
    for event in told:
        if event["event"] == "round":
            names = [f"site-{number}" for number in range(9)]
            spent = {name: {"turns": 1, "epsilon": 1.0 + place} for place, name in enumerate(names)}
            event["privacy"] = {"clients": spent, "clipped": {}}
    page_of(write_run(told))
    (line,) = drawn["epsilon"]
    assert (list(line.y), list(line.low), list(line.high)) == ([9.0] * 3, [1.0] * 3, [9.0] * 3)
    assert "clipped" not in drawn


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(
    ("changes", "said"),
    [({"noise": "seeded"}, "experiment and protects nobody"), ({"sigma": 0.0}, "There was no noise")],
)
def test_what_protects_nobody_cannot_be_missed_in_the_report(
    write_run: Any, events: Any, changes: dict[str, Any], said: str
) -> None:
    page = page_of(write_run(private(events(), **changes)))
    assert page.index(said) < page.index('<dl class="tiles">')


@pytest.mark.claim("security_review#no-epsilon")
@pytest.mark.usefixtures("drawn")
def test_without_privacy_a_report_has_no_epsilon(write_run: Any, events: Any) -> None:
    page = page_of(write_run(events())).partition("Whole configuration")[0]
    assert "psilon" not in page
    assert OF_A_SIMULATION not in page and NOT_COVERED not in page


def test_a_comparison_has_scores_by_epsilon_where_runs_differ_in_it(
    write_run: Any, events: Any, drawn: dict[str, Any]
) -> None:
    more = private(events())
    for event in more:
        if event["event"] == "round":
            event["privacy"]["clients"]["a"]["epsilon"] *= 2
    runs = {"low": private(events()), "high": more, "none": events()}
    folders = [write_run(own, name=name) for name, own in runs.items()]
    page = page_of(*folders)
    assert [(round(x, 3), y) for x, y, _ in drawn["epsilon"]] == [(3.704, 0.5), (7.407, 0.5)]
    assert "<td>3.71</td><td>1e-05</td><td>0.75</td>" in page
    del drawn["epsilon"]
    page_of(folders[0], folders[2])
    assert "epsilon" not in drawn
    assert "Differential privacy" not in page_of(folders[2], write_run(events(), name="other"))


def summary_of(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    events = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    (run,) = [event for event in events if event["event"] == "run"]
    return json.loads((folder / "summary.json").read_text()), run


def test_a_run_leaves_its_statement_and_a_table_shows_its_epsilon(run_once: RunTiny) -> None:
    run, seeded = (
        run_once(*PRIVATE, f"privacy.noise={noise}", "federation.rounds=1") for noise in ("secure", "seeded")
    )
    text = (run.folder / "privacy.md").read_text()
    assert text == statement(run.events, sent_by_all(run.folder))
    assert text != statement(run.events)
    assert "| update (train) | 3 |" in text
    turns, told = run.of("privacy")
    assert {name: own["turns"] for name, own in turns["clients"].items()} == {
        name: own["turns"] for name, own in told["clients"].items()
    }
    assert told["clients"] == spent_by(run.events) == run.of("round")[-1]["privacy"]["clients"]
    start = run.of("run")[0]["privacy"]
    both = epsilon_of([Mechanism(start["sigma"], 2 / 8, 2 * 3)], 0.01)
    assert told["at_two"] == both > max(own["epsilon"] for own in told["clients"].values())
    assert f"**{epsilon(both)}** at delta 0.01" in text
    assert "| Epsilon | infinite" in (seeded.folder / "privacy.md").read_text()
    assert seeded.summary["privacy"]["epsilon"] is None
    other = run_once("federation.rounds=1")
    assert not (other.folder / "privacy.md").exists()
    assert not other.of("privacy")
    rows = [
        RowResult(name, (CellResult(0, name, *summary_of(each.folder)),))
        for name, each in (("private", run), ("seeded", seeded), ("plain", other))
    ]
    machine = {"cores": 1, "processor": "x", "jobs": 1}
    table = tabulate(rows, name="t", machine=machine, different_data=True)
    titles, cells = grid(table)
    column = titles.index("epsilon")
    assert [row[column][0] for row in cells] == [f"{run.summary['privacy']['epsilon']:.2f}", "infinite", "-"]
    shown = " ".join(notes(table))
    assert "document at delta 0.01" in shown
    assert "seeded: " in shown
    plain = tabulate(rows[2:], name="t", machine=machine)
    assert "epsilon" not in grid(plain)[0]
    assert "psilon" not in " ".join(notes(plain))


@pytest.mark.parametrize("stops", [KeyboardInterrupt, pytest.param(ValueError, marks=pytest.mark.slow)])
def test_a_run_that_stops_leaves_its_statement(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stops: type[BaseException]
) -> None:
    """With the turn that was under way, which has been spent."""

    def stop(*_: Any, **__: Any) -> None:
        raise stops

    monkeypatch.setattr(Run, "_score", stop)
    with pytest.raises(stops):
        run_tiny(*PRIVATE, "privacy.noise=secure", "federation.rounds=1")
    (folder,) = [path.parent for path in tmp_path.rglob("record.jsonl")]
    text = (folder / "privacy.md").read_text()
    assert "has not finished all its rounds" in text
    assert "| site-1 | 8 | 0.25 | 1 | 3 |" in text
