"""The server that workers are forked from is there as long as it is needed, and Ctrl-C is nothing to it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support import TINY, TINY_SETTINGS, Call

from fedstrata.engine.workers.fork_server import end_fork_server
from fedstrata.record.log import read_events

INTERRUPTED = """
import os, signal
from multiprocessing import active_children
import psutil
from fedstrata.engine.workers.fork_server import fork_server

signal.signal(signal.SIGINT, lambda *heard: print("heard", flush=True))
context = fork_server()
begun = psutil.Process().children()
os.killpg(0, signal.SIGINT)
worker = context.Process(target=os.killpg, args=(0, signal.SIGINT))
worker.start()
worker.join()
assert worker.exitcode == 0
assert psutil.Process().children() == begun
"""


@pytest.mark.slow
def test_ctrl_c_is_heard_by_the_process_that_was_started_there_alone() -> None:
    """While the server imports, and when what is forked from it has not begun its work yet."""
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\nheard\n", "")


AT_ITS_TOP_LEVEL = """
import fedstrata as fs

print("begun", flush=True)
result = fs.run(settings={settings}, rounds=1, workers=2, out={out!r}, progress=False)
print(result.state)
"""


@pytest.mark.slow
def test_a_script_may_run_with_workers_at_its_top_level(tmp_path: Path) -> None:
    """No worker runs the script again, which multiprocessing does otherwise."""
    script = tmp_path / "script.py"
    script.write_text(AT_ITS_TOP_LEVEL.format(settings=TINY_SETTINGS, out=str(tmp_path / "run")))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "begun\nfinished\n"), ran.stderr


def servers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "forkserver" in " ".join(child.cmdline())]


def test_a_run_that_turns_out_to_need_no_other_process_keeps_no_server(call: Call, tmp_path: Path) -> None:
    end_fork_server()
    done = call("run", *TINY, "federation.rounds=1", "workers=auto", "--out", str(tmp_path / "run"))
    assert done.status == 0, done.err
    assert not servers()
    assert "workers: auto is 1" in done.out
    assert read_events(tmp_path / "run" / "record.jsonl")[0]["workers"] == 1


KILLED_BEFORE_ITS_FIRST_TURN = """
import os
from fedstrata.engine.workers.forked_workers import one_process

print(one_process().submit(os.getpid).result(), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_worker_that_has_had_no_turn_yet_ends_with_a_run_that_is_killed() -> None:
    """It holds both ends of the pipe that its work comes through, and would wait at it for ever."""
    command = [sys.executable, "-c", KILLED_BEFORE_ITS_FIRST_TURN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        worker = int(run.stdout.readline())  # which may have the pipe as long as it lives
    with suppress(psutil.NoSuchProcess):
        assert not psutil.wait_procs([psutil.Process(worker)], timeout=60)[1]
