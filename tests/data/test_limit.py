"""Fewer documents for a quick try."""

from __future__ import annotations

from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from support import RunTiny

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import Division, divide
from fedstrata.data.limit import Limited, limit
from fedstrata.data.split import PARTS, Split
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.display.plan import show_plan
from fedstrata.display.run import Display
from fedstrata.engine.check import check_settings
from fedstrata.planning.plan import make_plan

TYPES = "types: [problem, test, treatment, drug]"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    write(generate(seed=1, sites=3, notes=60, imbalance=0.0), tmp_path / "notes", "jsonl")
    write(generate(seed=2, sites=1, notes=9), tmp_path / "other", "jsonl")
    return tmp_path


def divided(folder: Path, more: str) -> Division:
    data = f"data={{format: jsonl, path: {folder / 'notes'}, {TYPES}, {more}}}"
    checked = check_settings(read_source(None, [data]))
    assert not checked.problems
    return divide(checked.settings, checked.task)


def ids(own: Split, part: str) -> set[str]:
    return {document.id for document in getattr(own, part)}


def test_so_many_of_each_site_and_part_and_each_in_its_own(
    notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = (
        f"external: {{other: {{format: jsonl, path: {notes / 'other'}}}}}, split: {{test_sites: [site-3]}}"
    )
    whole, few, fewer = (divided(notes, f"limit: {most}, {others}") for most in ("null", 5, 3))
    assert whole.limited is None
    assert whole.clients.keys() == few.clients.keys() == {"site-1", "site-2", "site-3", "other"}
    for name, own in whole.clients.items():
        for part in PARTS:
            there = ids(own, part)
            assert ids(fewer.clients[name], part) <= ids(few.clients[name], part) <= there
            assert len(ids(few.clients[name], part)) == min(5, len(there))
    assert few.limited == Limited(5, 5 + 2 + 4 + 5 + 2 + 4 + 5 + 5, 69)
    assert "(data.limit): 32 of 69" in caplog.text


def test_which_documents_are_kept_goes_by_the_seed_and_their_ids_alone() -> None:
    documents = tuple(generate(seed=0, sites=2, notes=40))
    kept = limit(Split(train=documents), 4, Seed(0)).train
    assert Counter(document.site for document in kept) == {"site-1": 4, "site-2": 4}
    one_site = tuple(document for document in reversed(documents) if document.site == "site-2")
    assert limit(Split(train=one_site), 4, Seed(0)).train == tuple(
        document for document in kept if document.site == "site-2"
    )
    assert limit(Split(train=documents), 4, Seed(1)).train != kept


@pytest.mark.slow
def test_plan_record_terminal_and_report_say_so(run_tiny: RunTiny, notes: Path) -> None:
    data = f"data={{format: jsonl, path: {notes / 'notes'}, {TYPES}, limit: 3}}"
    said = "(data.limit): 24 of 60"
    run = run_tiny(data, "federation.rounds=1", report=True)
    assert run.of("run")[0]["limit"] == run.summary["limit"] == {"most": 3, "kept": 24, "of": 60}
    assert said in (run.folder / "report.html").read_text()
    console = Console(file=StringIO(), width=200)
    Display(console).show(run.summary, run.folder, personal=False)
    show_plan(console, make_plan(read_source(run.folder / "config.yaml", []), seconds=0))
    assert console.file.getvalue().count(said) == 2
