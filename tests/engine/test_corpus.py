"""What a run says of its data: in its record, its summary, its report and on the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from remote_run import CLIENTS, Clients, home_of, served
from rich.console import Console
from support import TINY, Finished, RunTiny, executed, write_lines

from fedstrata.core.settings.source import read_source
from fedstrata.data.synthetic import generate
from fedstrata.display.run import Display
from fedstrata.planning.plan import make_plan
from fedstrata.record.log import read_events
from fedstrata.record.report import report_page

OWN = tuple(each for each in TINY if "synthetic" not in each)
DIALOGUES = (
    "data.format=jsonl",
    "data.types=null",
    "task={name: summarize, max_length: 96, answer_length: 24}",
    "method={name: fedavg}",
)


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites: one has no mention, and of one two test documents are trained on."""
    lines = []
    for number, each in enumerate(generate(seed=3, sites=3, notes=30, imbalance=1.0)):
        spans = [{"start": own.start, "end": own.end, "label": own.label} for own in each.spans]
        kept = [] if each.site == "site-3" else spans
        part = "test" if number % 4 == 0 else "validation" if number % 4 == 1 else "train"
        line = {"id": each.id, "text": each.text, "site": each.site, "spans": kept}
        lines.append({**line, "metadata": {"split": part}})
    trained = [line for line in lines if line["site"] == "site-1" and line["metadata"]["split"] == "train"]
    copies = [{**line, "id": f"copy-{line['id']}", "metadata": {"split": "test"}} for line in trained[:2]]
    return write_lines(tmp_path_factory.mktemp("doubtful") / "notes.jsonl", [*lines, *copies])


def of_doubtful(file: Path, *more: str) -> tuple[str, ...]:
    return (*OWN, "data.format=jsonl", f"data.path={file}", "data.split.by=document", *more)


@pytest.fixture(scope="module")
def doubted(doubtful: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("doubted") / "run"
    return executed(folder, of_doubtful(doubtful, "federation.rounds=0"))


def test_a_run_tells_of_doubtful_data_everywhere(doubted: Finished) -> None:
    (start,) = doubted.of("run")
    told = start["corpus"]["warnings"]
    assert any("training documents" in line and "site-3" in line for line in told)
    assert any(line.startswith("test documents ") for line in told)
    page = report_page([doubted.folder])
    assert all(line.partition(" (")[0] in page for line in told)
    screen = io.StringIO()
    Display(Console(file=screen, width=300))("run", start)
    assert screen.getvalue().splitlines() == [f"warning: {line}" for line in told]


def test_a_plan_warns_as_the_run_does(doubtful: Path, doubted: Finished) -> None:
    plan = make_plan(read_source(None, list(of_doubtful(doubtful))), seconds=0.0)
    (start,) = doubted.of("run")
    assert set(start["corpus"]["warnings"]) <= set(plan.warnings)


def test_clean_data_is_not_warned_of(run_once: RunTiny) -> None:
    (start,) = run_once("federation.rounds=1").of("run")
    assert start["corpus"]["warnings"] == []
    assert start["corpus"]["small_counts"] == "show"
    assert start["corpus"]["documents"] == start["clients"]


@pytest.mark.slow
def test_hidden_counts_are_neither_in_the_record_nor_on_the_page(run_tiny: RunTiny) -> None:
    run = run_tiny("federation.rounds=1", "data.synthetic.notes=40", "report.small_counts=hide", out="hidden")
    shown = run_tiny("federation.rounds=1", "data.synthetic.notes=40")
    (hidden,), (whole,) = run.of("run"), shown.of("run")
    for what in ("documents", "patients", "classes"):
        for before, after in leaves(whole["corpus"][what], hidden["corpus"][what]):
            assert after == (None if 0 < before < 5 else before)
    pairs = leaves(whole["corpus"]["documents"], hidden["corpus"]["documents"])
    small = sum(after is None for _, after in pairs)
    assert small > 2
    assert hidden["clients"] == hidden["corpus"]["documents"]
    page = report_page([run.folder])
    assert page.count("&lt; 5") > small
    assert "report.small_counts" in page
    assert {**run.summary, "time": None, "memory": None} == {**shown.summary, "time": None, "memory": None}


def leaves(one: Any, other: Any) -> list[tuple[int, int | None]]:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return [pair for key in one for pair in leaves(one[key], other[key])]
    return [(one, other)]


def test_what_is_cut_is_in_plan_summary_and_report(tmp_path: Path) -> None:
    words = "Doctor: any pain? Patient: in my chest, since this morning, and down the left arm. "
    lines = [
        {
            "id": f"{site}-{part}-{number}",
            "text": f"{number} {words * (1 if number % 2 else 12)}",
            "text_pair": "Chest pain.",
            "site": site,
            "metadata": {"split": part},
        }
        for site in ("a", "b")
        for part in ("train", "validation", "test")
        for number in range(4)
    ]
    file = write_lines(tmp_path / "dialogues.jsonl", lines)
    overrides = (*[each for each in OWN if "task" not in each], *DIALOGUES, f"data.path={file}")
    plan = make_plan(read_source(None, list(overrides)), seconds=0.0)
    assert plan.cut is not None and plan.cut["train"] is not None
    assert plan.cut["train"]["documents"] == 0.5
    assert 0.5 < plan.cut["train"]["tokens"] < 1.0
    (line,) = [each for each in plan.warnings if "are cut" in each]
    assert line.startswith("50 % ")
    assert line.endswith("(task.max_length 96, task.answer_length 24)")
    run = executed(tmp_path / "run", [*overrides, "federation.rounds=0"])
    assert run.summary["cut"] == plan.cut
    page = report_page([run.folder])
    assert line.partition(" (")[0] in page
    assert "50.0 %" in page


@pytest.mark.slow
def test_what_documents_hold_is_in_the_report_of_their_site_alone(tmp_path: Path, clients: Clients) -> None:
    run = served(tmp_path, clients, "federation.rounds=1", "method={name: fedavg}")
    (start,) = run.of("run")
    assert "corpus" not in start
    counts = [count for client in CLIENTS for count in start["clients"][client].values()]
    assert None in counts  # of 12 notes some client has few
    assert not any(count is not None and 0 < count < 5 for count in counts)
    page = report_page([run.folder])
    assert "&lt; 5" in page
    assert "the site's own report" in page
    assert run.summary["cut"] is None
    for client in CLIENTS:
        home = home_of(run, client)
        (own,) = [event for event in read_events(home / "record.jsonl") if event["event"] == "run"]
        assert own["corpus"]["small_counts"] == "hide"
        assert own["corpus"]["documents"] == own["clients"] == {client: start["clients"][client]}
        assert own["corpus"]["partition"] is None
        assert "Types of mentions" in report_page([home])
        sent = [line for line in (home / "egress.jsonl").read_text().splitlines() if "corpus" in line]
        assert not sent
        classes = own["corpus"]["classes"]["mentions"][client]["train"]
        assert not any(count is not None and 0 < count < 5 for count in classes.values())
