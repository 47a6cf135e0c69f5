from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from figures import draw_only
from support import Call, RunTiny


def test_one_run_gets_its_report_and_several_a_comparison(
    call: Call, run_once: RunTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch)
    one = shutil.copytree(run_once("federation.rounds=1").folder, tmp_path / "one")
    other = shutil.copytree(one, tmp_path / "other")
    assert call("report", one).out.strip() == f"report: {one / 'report.html'}"
    assert "<title>one: layer_skipping on ner</title>" in (one / "report.html").read_text()
    assert call("report", one, other).status == 0
    assert "of 2 runs" in (tmp_path / "report.html").read_text()
    assert call("report", one, "--out", tmp_path / "elsewhere.html").status == 0
    assert (tmp_path / "elsewhere.html").read_bytes() == (one / "report.html").read_bytes()
