from __future__ import annotations

import shutil
from pathlib import Path

from support import Call, RunTiny


def test_one_run_gets_its_report_and_several_a_comparison(
    call: Call, run_tiny: RunTiny, tmp_path: Path
) -> None:
    one = run_tiny("federation.rounds=1", out="one").folder
    other = shutil.copytree(one, tmp_path / "other")
    assert call("report", one).out.strip() == f"report: {one / 'report.html'}"
    assert "<title>one: layer_skipping on ner</title>" in (one / "report.html").read_text()
    assert call("report", one, other).status == 0
    assert "Comparison of 2 runs" in (tmp_path / "report.html").read_text()
    assert call("report", one, "--out", tmp_path / "elsewhere.html").status == 0
    assert (tmp_path / "elsewhere.html").read_bytes() == (one / "report.html").read_bytes()


def test_a_folder_without_a_run_is_named(call: Call, tmp_path: Path) -> None:
    done = call("report", tmp_path)
    assert done.status == 2
    assert f"{tmp_path} holds no run: there is no config.yaml in it" in done.err
    assert not (tmp_path / "report.html").exists()
