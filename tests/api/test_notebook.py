"""A run in a real notebook kernel: what is seen of it, Ctrl-C, and going on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
manager = pytest.importorskip("jupyter_client.manager")

BEGIN = """
import threading
import fedstrata as fs
from ipywidgets import Output

drawn_by = set()
enter = Output.__enter__

def enter_and_say_where(output):
    drawn_by.add("main" if threading.current_thread() is threading.main_thread() else "another")
    return enter(output)

Output.__enter__ = enter_and_say_where

def wait_to_be_stopped(event, facts):
    if event == "round" and facts["round"] == 2:
        threading.Event().wait(300)

fs.run(
    data=fs.synth(sites=2, notes=16), task=fs.tasks.NamedEntityRecognition(max_length=64), method="fedavg",
    rounds=3, out="run", threads=1, settings={"data.types": ["drug", "problem"]}, on_event=wait_to_be_stopped,
)
"""


class Kernel:
    """A kernel that cells are run in."""

    def __init__(self, folder: Path) -> None:
        self.manager = manager.KernelManager()
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def cell(self, code: str, *, interrupted_by: str = "") -> list[tuple[str, Any]]:
        """Runs a cell, and interrupts it once it has shown something; returns what it showed."""
        mine, shown = self.client.execute(code), []
        while True:
            message = self.client.get_iopub_msg(timeout=300)
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != mine:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                return shown
            shown.append((kind, content))
            if interrupted_by and interrupted_by in str(content.get("data")):
                self.manager.interrupt_kernel()
                interrupted_by = ""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel in an empty folder."""
    made = Kernel(tmp_path)
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)


def texts(shown: list[tuple[str, Any]]) -> str:
    """What a cell said, as text."""
    return "".join(content["data"].get("text/plain", "") for _, content in shown if "data" in content)


def result(shown: list[tuple[str, Any]]) -> dict[str, Any]:
    """What a cell's last line gave, in every form that a notebook may show."""
    (data,) = [content["data"] for kind, content in shown if kind == "execute_result"]
    return dict(data)


@pytest.mark.slow
def test_ctrl_c_in_a_notebook_leaves_a_run_that_goes_on(kernel: Kernel) -> None:
    """Progress, the way to go on, the result as a table and its figure as a picture are seen."""
    stopped = kernel.cell(BEGIN, interrupted_by="round 1: loss")
    assert "fedstrata.resume('run')" in texts(stopped)
    assert [content["ename"] for kind, content in stopped if kind == "error"] == ["KeyboardInterrupt"]
    # An Output keeps what is raised in it to itself, Ctrl-C of the main thread as well.
    assert result(kernel.cell("drawn_by"))["text/plain"] == "{'another'}"
    assert "Output()" in texts(stopped)
    resumed = kernel.cell("fs.resume('run')")
    assert "after round " in texts(resumed)
    assert "round 3: loss" in texts(resumed)
    for part in ("fedavg", "ner", "3 rounds", "finished"):
        assert part in result(resumed)["text/html"]
    assert result(kernel.cell("fs.load('run').plot()"))["image/png"].startswith("iVBOR")
