"""The command as a process of its own, and what it says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

Started = list[subprocess.Popen[str]]
"""Processes that the fixture `started` ends with the test."""


def fedstrata(*arguments: str | Path, threads: int = 1, folder: Path | None = None) -> subprocess.Popen[str]:
    """Starts the command."""
    command = [sys.executable, "-u", "-m", "fedstrata", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "COLUMNS": "200"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def free_address() -> str:
    """Returns an address of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"localhost:{probe.getsockname()[1]}"


def read_until(process: subprocess.Popen[str], line: str) -> None:
    """Reads what a process says up to a line that begins so."""
    assert process.stdout is not None
    for said in process.stdout:
        if said.startswith(line):
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


def output_of(process: subprocess.Popen[str]) -> str:
    """Waits for a command that succeeds, and returns what it said."""
    said, complained = process.communicate(timeout=300)
    assert process.returncode == 0, complained
    return said
