"""Runs that version 0.1 left can be used, and gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from figures import draw_only
from support import REPOSITORY, Call

LEFT = REPOSITORY / "tests" / "fixtures" / "version-0.1"
RUNS = {"shared": (), "personal": ("--client", "site-1")}
"""Each with what says whose model is meant."""


@pytest.fixture(autouse=True)
def left(tmp_path: Path) -> None:
    shutil.copytree(LEFT, tmp_path, dirs_exist_ok=True)


@pytest.mark.parametrize("run", RUNS)
def test_its_model_answers_as_it_did(call: Call, tmp_path: Path, run: str) -> None:
    done = call("predict", run, "unseen", "--out", "found", *RUNS[run])
    assert done.status == 0, done.err
    expected = (tmp_path / "expected" / f"{run}.ann").read_text()
    assert expected
    assert (tmp_path / "found" / "note.ann").read_text() == expected


@pytest.mark.parametrize("run", RUNS)
def test_its_model_is_exported(call: Call, tmp_path: Path, run: str) -> None:
    done = call("export", run, "--out", "model", *RUNS[run])
    assert done.status == 0, done.err
    assert {"config.json", "model.safetensors", "README.md"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }


@pytest.mark.parametrize("run", RUNS)
def test_it_has_a_report(call: Call, tmp_path: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "curves")
    done = call("report", run)
    assert done.status == 0, done.err
    assert (tmp_path / run / "report.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_it_goes_on(call: Call, tmp_path: Path, run: str) -> None:
    before = json.loads((tmp_path / run / "summary.json").read_text())
    done = call("run", "--resume", "--out", run, "federation.rounds=3")
    assert done.status == 0, done.err
    assert "after round 2" in done.out
    after = json.loads((tmp_path / run / "summary.json").read_text())
    assert (before["rounds"], after["rounds"]) == (2, 3)
    assert after["communication"]["bytes_up"] == pytest.approx(
        1.5 * before["communication"]["bytes_up"], rel=0.01
    )
    assert before.keys() <= after.keys()
