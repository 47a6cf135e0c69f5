"""What runs leave is for their owner alone: real processes under the usual mask, 022."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from figures import draw_only
from processes import Started, fedstrata, free_address, output_of
from support import TINY, RunTiny


@pytest.fixture(autouse=True)
def _usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Returns what other users may read, write or enter, of a folder and all in it."""
    return [
        str(path.relative_to(folder))
        for path in (folder, *folder.rglob("*"))
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ]


@pytest.mark.claim("security_review#private-folders")
def test_a_run_leaves_nothing_that_others_may_read(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch)
    assert open_to_others(run_tiny("federation.rounds=1", report=True).folder) == []


@pytest.mark.slow
@pytest.mark.claim("security_review#private-folders")
def test_a_run_closes_its_folder_and_none_above_it(tmp_path: Path) -> None:
    out = tmp_path / "study" / "run"
    out.mkdir(parents=True)
    output_of(fedstrata("run", *TINY, "model.tokenizer={train: words}", "--out", out, folder=tmp_path))
    assert {"checkpoints", "clients", "model", "documents.json", "record.jsonl"} <= {
        path.name for path in out.iterdir()
    }
    assert open_to_others(out) == []
    assert stat.S_IMODE(out.parent.stat().st_mode) == 0o755
    out.chmod(0o755)
    output_of(fedstrata("run", "--resume", "--out", out, "federation.rounds=3", folder=tmp_path))
    assert open_to_others(out) == []


@pytest.mark.slow
@pytest.mark.claim("security_review#private-folders")
def test_a_served_run_and_its_sites_leave_nothing_that_others_may_read(
    tmp_path: Path, started: Started
) -> None:
    sites, address = ("site-1", "site-2"), free_address()
    guests = ["--insecure", "--clients", ",".join(sites), "--listen", address]
    started.append(fedstrata("serve", *TINY, *guests, "--out", tmp_path / "run"))
    join = ["join", *[item for item in TINY if item.startswith("data.")], "--insecure", "--server", address]
    started.extend(fedstrata(*join, "--client", site, "--home", tmp_path / site) for site in sites)
    for process in started:
        output_of(process)
    for folder in ("run", *sites):
        assert open_to_others(tmp_path / folder) == []


@pytest.mark.slow
@pytest.mark.claim("security_review#private-folders")
def test_a_comparison_and_predictions_leave_nothing_that_others_may_read(tmp_path: Path) -> None:
    rows = "{one: {method: {name: fedavg}}, two: {method: {name: fedprox}}}"
    (tmp_path / "study.yaml").write_text(f"sweep: {{seeds: [0], rows: {rows}}}\n")
    output_of(fedstrata("compare", "study.yaml", *TINY, "--out", "study", folder=tmp_path))
    assert open_to_others(tmp_path / "study") == []
    (tmp_path / "note.txt").write_text("Blood pressure remains high.")
    run = next(path.parent for path in (tmp_path / "study").rglob("summary.json"))
    output_of(fedstrata("predict", run, "note.txt", "--out", "found", folder=tmp_path))
    assert open_to_others(tmp_path / "found") == []
