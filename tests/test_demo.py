"""The demo as a new user sees it: it learns what no look-up table holds."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from support import Call, in_terminal

from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import divide
from fedstrata.engine.check import check_settings
from fedstrata.metrics.spans import match_spans, scores_of
from fedstrata.tasks.lookup import LookupTagger

DEMO = Path(str(files("fedstrata.core.settings") / "demo.yaml"))


@pytest.mark.slow
def test_a_look_up_table_is_at_least_15_f1_points_below_the_centralised_model(tmp_path: Path) -> None:
    checked = check_settings(read_source(DEMO, []))
    clients = divide(checked.settings, checked.task).clients.values()
    train, test = (
        [document for own in clients for document in getattr(own, part)] for part in ("train", "test")
    )
    tagger = LookupTagger.fit(train)
    found = [tagger.predict(document) for document in test]
    pairs = match_spans([document.spans for document in test], found)
    lookup = scores_of(pairs, checked.settings.data.types)["f1"]
    # The whole model wants a lower rate, and comes far enough in two rounds.
    settings = ["method={name: centralized}", "training.learning_rate=2e-4", "federation.rounds=2"]
    command = [sys.executable, "-m", "fedstrata", "run", *settings, "--out", str(tmp_path / "run")]
    subprocess.run(command, check=True, capture_output=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metrics"]["global"]["f1"] >= lookup + 0.15


def assert_shows_progress_table_and_path(text: str, folder: Path) -> None:
    for part in ("rounds", "clients", "loss", "validation f1", "all documents", "mean of clients", "site-4"):
        assert part in text
    assert text.rstrip().endswith(str(folder))


def test_it_shows_progress_and_ends_with_the_table_and_the_path(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if this were a terminal, since the bars are for people only."""
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "120", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    small = ("data.synthetic.notes=12", "federation.rounds=1", "threads=1")
    told = call("run", *small, "--out", tmp_path / "run")
    assert told.status == 0
    assert_shows_progress_table_and_path(told.out, tmp_path / "run")


@pytest.mark.slow
def test_a_terminal_shows_progress_and_ends_with_the_table_and_the_path(tmp_path: Path) -> None:
    """In a pseudo-terminal, since the bars are for people only."""
    small = ["data.synthetic.notes=12", "federation.rounds=2", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "fedstrata", "run", *small]
    status, text = in_terminal(command, columns=120)
    assert status == 0
    assert_shows_progress_table_and_path(text, tmp_path / "run")
