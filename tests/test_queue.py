"""The queue of experiments: what finishes, what fails, and what is killed at any moment."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from support import REPOSITORY, load_script

from fedstrata.core.settings.sweep import read_sweep
from fedstrata.engine.check import check_settings

SCRIPT = REPOSITORY / "benchmarks" / "queue.py"
STEPS = """
import json, os, sys, time
from pathlib import Path

out, count = Path(sys.argv[1]), int(sys.argv[2])
for step in range(count):
    path = out / f"step-{step}"
    if not path.exists():
        time.sleep(0.15)
        before = int((out / f"step-{step - 1}").read_text()) if step else 1
        (out / "half").write_text(str(before * 3 % 1009))
        (out / "half").rename(path)
print(json.dumps({"value": int(path.read_text())}))
"""


def row(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": command, "hours": 0.1, "memory": 1.0, "page": "docs/x.md", **more}


class Background:
    """A queue in a folder, over a repository with one script."""

    def __init__(self, folder: Path, rows: Sequence[dict[str, Any]]) -> None:
        self.folder, self.repository = folder, folder / "repository"
        self.repository.mkdir(parents=True)
        (self.repository / "steps.py").write_text(STEPS)
        for command in (
            ["init", "--quiet", "--initial-branch=main"],
            ["add", "."],
            ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", "steps"],
        ):
            subprocess.run(["git", *command], cwd=self.repository, check=True)
        (folder / "queue.yaml").write_text(yaml.safe_dump(list(rows)))

    def command(self, *words: str) -> list[str]:
        places = {"queue": "queue.yaml", "home": "home", "results": "results", "repository": "repository"}
        options = [part for name, place in places.items() for part in (f"--{name}", str(self.folder / place))]
        programs = str(Path(sys.executable).parent)
        return [sys.executable, str(SCRIPT), *words, *options, "--programs", programs, "--poll", "0.05"]

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command("run"), stderr=subprocess.PIPE)

    def call(self, *words: str) -> str:
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def result(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / "results" / f"{name}.json").read_text())

    def processes(self) -> list[psutil.Process]:
        """Returns the supervisors and commands of its rows."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.folder) in " ".join(process.cmdline()) and process.pid != os.getpid():
                    found.append(process)
            except psutil.Error:
                continue
        return found


def value_after(count: int) -> int:
    value = 1
    for _ in range(count):
        value = value * 3 % 1009
    return value


def test_rows_finish_fail_and_wait_for_those_that_they_need(tmp_path: Path) -> None:
    queue = Background(
        tmp_path,
        [
            row("one", "python steps.py {out} 2"),
            row("wrong", "python -c 'raise ValueError(7)'"),
            row("silent", "python -c pass"),
            row("after", "python steps.py {out} 3", needs=["one"]),
            row("never", "python steps.py {out} 3", needs=["wrong"]),
        ],
    )
    queue.call("run")
    assert queue.result("one")["measured"] == {"value": value_after(2)}
    assert queue.result("after")["measured"] == {"value": value_after(3)}
    assert {queue.result(name)["status"] for name in ("wrong", "silent")} == {"failed"}
    assert "ValueError: 7" in queue.result("wrong")["error"]
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=queue.repository, text=True)
    assert queue.result("one")["commit"] == commit.strip()
    assert not (tmp_path / "results" / "never.json").exists()
    page = (tmp_path / "results" / "README.md").read_text()
    assert [page.count(f"| {word} |") for word in ("finished", "failed", "to come")] == [2, 2, 1]
    queue.call("retry", "wrong")
    assert "wrong" in queue.call("status")
    assert not (tmp_path / "results" / "wrong.json").exists()


def test_a_comparison_s_table_is_kept_by_row_and_seed(tmp_path: Path) -> None:
    columns = {
        key: {"title": key, "factor": factor, "digits": 1, "better": None}
        for key, factor in (("f1", 100.0), ("peak_memory_megabytes", 1.0), ("other", 1.0))
    }
    for seed, score in (("0", 0.5), ("1", 0.7)):
        values = {key: {"by_seed": {seed: score}, "mean": score} for key in columns}
        cells = [{"seed": int(seed), "data": f"documents-{seed}"}]
        rows = [{"name": "a", "tuning": None, "values": values, "cells": cells}]
        shown = {"metric": "f1", "shown": ["f1"], "seeds": [int(seed)], "columns": columns, "rows": rows}
        (tmp_path / f"{seed}.json").write_text(json.dumps(shown))
    copy = f"python -c \"import shutil; shutil.copy('{tmp_path}/{{seed}}.json', '{{out}}/table.json')\""
    by_seed = row("seed-{seed}", copy, result="table.json", table="t", label="x", **{"for": {"seed": [0, 1]}})
    queue = Background(tmp_path / "queue", [by_seed])
    queue.call("run")
    measured = queue.result("seed-1")["measured"]
    assert measured["rows"] == {"a": {"f1": {"1": 0.7}, "peak_memory_megabytes": {"1": 0.7}}}
    assert measured["data"] == ["documents-1"]
    page = (tmp_path / "queue" / "results" / "README.md").read_text()
    assert "| a, x | 0, 1 | 60.0 ± 14.1 | 0.6 ± 0.1 |" in page


def test_a_row_has_the_lowest_priority_within_its_session_and_among_sessions(tmp_path: Path) -> None:
    told = (
        "import json, os; print(json.dumps({'policy': os.sched_getscheduler(0), "
        "'sessions': open('/proc/self/autogroup').read().split()[-1]}))"
    )
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel compares processes of all sessions")
    queue = Background(tmp_path, [row("one", f'python -c "{told}"')])
    queue.call("run")
    assert queue.result("one")["measured"] == {"policy": os.SCHED_IDLE, "sessions": "19"}


def test_paused_nothing_goes_on(tmp_path: Path) -> None:
    queue = Background(tmp_path, [row("long", "python steps.py {out} 40")])
    with queue.start() as running:
        out = tmp_path / "home" / "rows" / "long" / "out"
        until(lambda: len(list(out.glob("step-*"))) > 2)
        queue.call("pause")
        until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in rows_of(queue)))
        before = len(list(out.glob("step-*")))
        time.sleep(0.6)
        assert len(list(out.glob("step-*"))) == before
        queue.call("resume")
        assert running.wait(timeout=120) == 0
    assert queue.result("long")["measured"] == {"value": value_after(40)}


def rows_of(queue: Background) -> list[psutil.Process]:
    return [each for each in queue.processes() if "steps.py" in " ".join(each.cmdline())]


def until(true: Any) -> None:
    for _ in range(2400):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it has not come to this in two minutes")


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_it_ends_with_equal_results(tmp_path: Path, kills: int) -> None:
    draw = random.Random(kills)  # noqa: S311
    names = [f"row-{number}" for number in range(4)]
    rows = [row(name, f"python steps.py {{out}} {6 + 2 * number}") for number, name in enumerate(names)]
    rows.append(row("anew", "python steps.py {out} 9", resumes=False))
    queue = Background(tmp_path, rows)
    running = queue.start()
    for _ in range(kills):
        time.sleep(draw.uniform(0.05, 0.6))
        alive = [psutil.Process(running.pid), *queue.processes()]
        victim = draw.choice(alive)
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            continue
        if victim.pid == running.pid:
            running.wait(timeout=120)
        if running.poll() is not None:
            running.communicate()
            running = queue.start()
    assert running.wait(timeout=240) == 0, running.communicate()
    running.communicate()
    for number, name in enumerate(names):
        assert queue.result(name)["measured"] == {"value": value_after(6 + 2 * number)}
    assert queue.result("anew")["measured"] == {"value": value_after(9)}
    until(lambda: not queue.processes())


def test_a_second_queue_is_refused(tmp_path: Path) -> None:
    queue = Background(tmp_path, [row("long", "python steps.py {out} 20")])
    with queue.start() as running:
        until((tmp_path / "home" / "rows" / "long" / "state.json").exists)
        second = subprocess.run(queue.command("run"), capture_output=True, timeout=60, check=False)
        assert second.returncode == 1
        assert running.wait(timeout=120) == 0


def commands() -> list[list[str]]:
    """Returns the words of all commands of the repository's own list."""
    module = load_script("benchmarks/queue.py")
    return [module.filled(row, Path("rows/row/out")) for row in module.read_rows(module.QUEUE)]


def test_every_comparison_of_the_list_is_one_that_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as that can be said without data and models."""
    monkeypatch.chdir(REPOSITORY)
    compared = [words[2:] for words in commands() if words[:2] == ["fedstrata", "compare"]]
    assert len(compared) > 20
    for words in compared:
        files = [Path(word) for word in words if word.endswith(".yaml")]
        settings = [word for word in words if "=" in word and not word.endswith(".yaml")]
        for part in read_sweep(files, settings).rows:
            assert not check_settings(part.source).problems


@pytest.mark.parametrize(
    "rows",
    [
        [row("one", "true"), row("one", "true")],
        [row("one", "true", needs=["two"])],
        [row("one", "true", memory=99.0)],
        [row("one", "true", more=1)],
    ],
)
def test_a_list_that_cannot_be_is_refused(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    queue = Background(tmp_path, rows)
    done = subprocess.run(queue.command("status"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "one" in done.stderr
