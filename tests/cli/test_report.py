from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import RunTiny


def report(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedstrata", "report", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_one_run_gets_its_report_and_several_a_comparison(run_tiny: RunTiny, tmp_path: Path) -> None:
    one, other = (run_tiny("federation.rounds=1", out=name).folder for name in ("one", "other"))
    (one / "report.html").unlink()
    assert report(one, cwd=tmp_path).stdout.strip() == f"report: {one / 'report.html'}"
    assert "<title>one: layer_skipping on ner</title>" in (one / "report.html").read_text()
    assert report(one, other, cwd=tmp_path).returncode == 0
    assert "Comparison of 2 runs" in (tmp_path / "report.html").read_text()
    assert report(one, "--out", tmp_path / "elsewhere.html", cwd=tmp_path).returncode == 0
    assert (tmp_path / "elsewhere.html").read_bytes() == (one / "report.html").read_bytes()


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    done = report(tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path} holds no run: there is no config.yaml in it" in done.stderr
    assert not (tmp_path / "report.html").exists()
