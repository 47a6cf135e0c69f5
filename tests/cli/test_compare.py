"""`fedstrata compare` as people use it: real processes, stopped in every way, and taken up again."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from support import Call, in_terminal
from told import assert_told

from fedstrata.core.settings.sweep import Sweep

BASE = """name: tiny
threads: 1
data: {types: [problem, test, treatment, drug], synthetic: {sites: 2, notes: 16}}
model: {init: random, tokenizer: mini, config: {model_type: llama, hidden_size: 32, num_hidden_layers: 2,
  num_attention_heads: 4}}
task: {max_length: 64, stride: 8}
training: {learning_rate: 0.005}
federation: {rounds: 2}
"""
ROWS = """sweep:
  seeds: [0, 1]
  rows:
    top 1 of 2: {method: {name: layer_skipping, top: 1}}
    FedAvg: {method: {name: fedavg}}
"""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "fedstrata", *map(str, arguments)]


def stopped_when(
    seen: Callable[[str], bool], ending: signal.Signals, arguments: list[str], folder: Path
) -> tuple[int, str]:
    """Gives the command and ends it at the first line of that kind; returns exit status and output."""
    lines = []
    with subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if seen(line):
                process.send_signal(ending)
                break
        lines += process.stdout
    return process.returncode, "".join(lines)


def records(out: Path) -> dict[str, bytes]:
    """The records of the runs that have finished."""
    finished = sorted(path.parent for path in out.rglob("summary.json"))
    return {str(path.relative_to(out)): (path / "record.jsonl").read_bytes() for path in finished}


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on_without_repeating_what_has_finished(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(BASE + ROWS)
    again = command("compare", "sweep.yaml", "--jobs", "2", "--out", "out")
    status, _ = stopped_when(lambda line: "FedAvg" in line, signal.SIGKILL, again, tmp_path)
    assert status == -signal.SIGKILL
    finished = records(tmp_path / "out")
    assert 1 <= len(finished) < 4
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(finished before)") >= len(finished)
    now = records(tmp_path / "out")
    assert len(now) == 4
    assert {name: now[name] for name in finished} == finished

    table = json.loads((tmp_path / "out" / "table.json").read_text())
    for row in table["rows"]:
        assert row["same_data"]
        for cell in row["cells"]:
            summary = json.loads((tmp_path / "out" / cell["folder"] / "summary.json").read_text())
            seed = str(cell["seed"])
            assert summary["seed"] == cell["seed"]
            assert row["values"]["f1"]["by_seed"][seed] == summary["metrics"]["global"]["f1"]
    assert (tmp_path / "out" / "table.md").read_text() in done.stdout
    with (tmp_path / "out" / "table.csv").open() as file:
        assert [line["row"] for line in csv.DictReader(file)] == ["top 1 of 2", "FedAvg"]


@pytest.mark.slow
def test_ctrl_c_stops_the_runs_and_exits_130(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(BASE)
    settings = ["federation.rounds=500", "--seeds", "0,1", "--jobs", "2"]
    arguments = command("compare", "sweep.yaml", *settings)
    status, output = stopped_when(lambda line: "round 2" in line, signal.SIGINT, arguments, tmp_path)
    assert status == 130
    assert "same command" in output
    out = tmp_path / "comparisons" / "tiny" / "tiny"
    for seed in (0, 1):  # told once, and each said so itself
        assert (out / f"seed-{seed}.log").read_text().splitlines()[-1].startswith("stopped")
        assert not (out / f"seed-{seed}" / "summary.json").exists()


def test_a_run_that_is_asked_to_watches_its_standard_input(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the process when nothing more can come, and not before; `--until-eof` alone has it watch."""
    statuses: SimpleQueue[int] = SimpleQueue()
    monkeypatch.setattr("os._exit", statuses.put)
    reading, writing = os.pipe()
    with open(reading, "rb") as stdin:  # noqa: PTH123 - no path
        monkeypatch.setattr("sys.stdin", stdin)
        others = set(threading.enumerate())
        assert call("run", tmp_path / "absent.yaml").status == 2
        assert set(threading.enumerate()) <= others
        assert call("run", tmp_path / "absent.yaml", "--until-eof").status == 2
        (watching,) = set(threading.enumerate()) - others
        os.write(writing, b"still here")
        with pytest.raises(Empty):
            statuses.get(timeout=0.2)
        os.close(writing)
        assert statuses.get(timeout=60) == 130
        watching.join()


@pytest.mark.slow
def test_a_run_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """Its standard input closes then, even after kill -9."""
    (tmp_path / "run.yaml").write_text(BASE + "seed: 3\n")
    arguments = command("run", "run.yaml", "federation.rounds=500", "--out", "run", "--until-eof")
    with subprocess.Popen(
        arguments, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert any(line.startswith("round 1:") for line in process.stdout)
        process.stdin.close()
        process.stdout.read()
    assert process.returncode == 130


@pytest.mark.slow
def test_a_terminal_shows_every_run_and_a_failed_one_harms_no_other(tmp_path: Path) -> None:
    """In a pseudo-terminal, since the bars are for people only."""
    rows = (
        "sweep: {seeds: [0], rows: {sound: {}, broken: {training: {optimizer: sgd, learning_rate: 1e38}}}}\n"
    )
    (tmp_path / "sweep.yaml").write_text(BASE + rows)
    # One after the other: two that end in the same instant would be shown as 2/2 alone.
    arguments = command("compare", "sweep.yaml", "training.clip_norm=null", "--jobs", "1", "--out", "out")
    status, shown = in_terminal(arguments, columns=150, folder=tmp_path)
    assert status == 1
    for part in ("runs", "sound, seed 0", "broken, seed 0", "1/2", "validation f1", "test f1", "precision"):
        assert part in shown
    assert shown.count("broken, seed 0: failed: ") == 1
    assert "| sound |" not in shown  # Markdown is for files
    assert shown.rstrip().endswith("table.csv, table.json")

    sound, broken = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    assert (sound["cells"][0]["finished"], broken["cells"][0]["finished"]) == (True, False)
    assert not broken["competes"]


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_has_no_scores_in_the_table(call: Call, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(BASE)
    broken = ["training={optimizer: sgd, learning_rate: 1e38, clip_norm: null}", "federation.rounds=1"]
    done = call("compare", "sweep.yaml", *broken, "--seeds", "0", "--out", "out")
    assert done.status == 1
    assert (done.out + done.err).count("tiny, seed 0: failed: ") == 1
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| tiny (failed: seed 0) | - |" in text
    assert "training.learning_rate is 1e+38" in text
    (row,) = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    assert not row["cells"][0]["finished"]


def test_options_reach_the_comparison_and_its_outcome_is_the_exit_status(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweep.yaml").write_text(BASE + ROWS)
    given: list[Any] = []
    ended = SimpleNamespace(finished=True, raw={"rows": [{"same_data": True}]})

    def executed(sweep: Sweep, folder: Path, jobs: int, display: object) -> Any:
        settings = sweep.settings
        given.append((settings.seeds, settings.baseline, settings.columns, folder, jobs))
        return ended

    monkeypatch.setattr("fedstrata.api.comparison.executed", executed)
    monkeypatch.setattr("fedstrata.display.comparison.Display.show", lambda *arguments: None)
    options = "--seeds 2,3 --baseline FedAvg --columns f1,recall --jobs 3 --out mine"
    assert call("compare", "sweep.yaml", *options.split()).status == 0
    assert call("compare", "sweep.yaml").status == 0
    assert given == [
        ([2, 3], "FedAvg", ["f1", "recall"], Path("mine"), 3),
        ([0, 1], None, None, Path("comparisons/tiny"), 1),
    ]
    ended.raw["rows"][0]["same_data"] = False
    assert call("compare", "sweep.yaml").status == 1
    assert call("compare", "sweep.yaml", "sweep.allow_different_data=true").status == 0
    ended.finished = False
    assert call("compare", "sweep.yaml", "sweep.allow_different_data=true").status == 1


def test_bad_input_exits_2_before_anything_starts(call: Call, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(BASE + ROWS)
    for command, path, code, value in (
        ("compare absent.yaml", "", "not_found", "absent.yaml"),
        ("compare sweep.yaml --seeds 0,0", "sweep.seeds", "duplicate", "0"),
        ("compare sweep.yaml --columns f1,f2", "sweep.columns", "unknown_name", "'f2'"),
        ("run sweep.yaml", "sweep", "wrong_command", "fedstrata compare"),
    ):
        told = call(*command.split())
        assert told.status == 2
        assert_told(told.err, code, at=path, values=[value])
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]
