"""Logs as lines of JSON, of real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import TINY

SAYS = """
import logging, sys, warnings
from fedstrata.display import log
from fedstrata.display.run import Display
log._begin(True)
library = logging.getLogger("library.inner")
library.propagate = False
library.addHandler(logging.StreamHandler())
log.take_over()
log.about(run="demo", client="north")
library.warning("patient %s of the text", "Smith")
library.info("nothing")
elsewhere = "/opt/fedstrata/lib/python3.11/site-packages/library/inner.py"
warnings.warn_explicit("patient Smith of the text", UserWarning, elsewhere, 1)
logging.getLogger("fedstrata.transport").info("client %s is lost", "south\\x1b[2J")
try:
    raise ValueError("patient Smith of the text")
except ValueError:
    logging.getLogger("fedstrata.engine").exception("a turn failed")
display = Display()
facts = {"round": 2, "client": "south", "error": "LineError", "message": "it left", "bytes_down": 1}
display("client_failed", facts)
display.say("stopped")
"""


def lines_of(text: str) -> list[dict[str, Any]]:
    """Every line, each of which must be an object with a time in UTC."""
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta(0)
        assert line["level"] in {"info", "warning", "error"}
        assert line["event"]
        assert line["message"]
    return found


def test_every_line_is_json_and_no_library_quotes_what_it_was_given() -> None:
    done = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "Smith" not in done.stdout
    library, warned, lost, failed, said, stopped = lines_of(done.stdout)
    assert (library["level"], library["logger"], library["run"]) == ("warning", "library.inner", "demo")
    assert (warned["event"], warned["client"]) == ("warning", "north")
    assert warned["message"] == "UserWarning at library/inner.py:1"
    assert lost["message"] == "client south\N{REPLACEMENT CHARACTER}[2J is lost"
    assert (failed["level"], failed["error"]) == ("error", "ValueError")
    assert (said["level"], said["event"]) == ("warning", "client_failed")
    assert (said["client"], said["round"]) == ("south", 2)
    assert said["message"] == "round 2: south failed: LineError: it left"
    assert "round" not in stopped


@pytest.mark.slow
def test_a_run_logs_its_rounds_and_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedstrata", "run", *TINY, "--log-json", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = lines_of(done.stdout)
    rounds = [line for line in found if line["event"] == "round"]
    assert [line["round"] for line in rounds] == [1, 2]
    assert all(line["run"] == "demo" for line in rounds)
    assert found[-1]["message"] == f"run directory: {tmp_path / 'run'}"
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (2, "")
    (*_, last) = lines_of(again.stdout)
    assert (last["level"], last["event"]) == ("error", "failed")
    assert (last["code"], str(tmp_path / "run") in last["message"]) == ("exists", True)
