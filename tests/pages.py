"""What a page shows: blocks, commands, configurations and Python; and following it to the letter."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from support import REPOSITORY

from fedstrata.cli import main as cli

PROGRAMS = (".venv/bin/fedstrata", "fedstrata", "make", "python -m")


def text_of(page: str) -> str:
    """Returns the text of a page, named from the repository's root."""
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks_of(text: str) -> list[str]:
    """Returns the indented blocks."""
    return re.findall(r"(?:^    .*\n)+", text, flags=re.MULTILINE)


def commands_of(text: str) -> list[str]:
    """Returns the lines of its blocks that are commands."""
    lines = [line.strip() for block in blocks_of(text) for line in block.splitlines()]
    return [line for line in lines if line.startswith(PROGRAMS)]


def configuration_of(text: str, name: str) -> str:
    """Returns the one configuration whose first line is a comment with its file's name."""
    (shown,) = [block for block in blocks_of(text) if f"# {name}" in block]
    return "\n".join(line[4:] for line in shown.splitlines())


def python_of(text: str) -> list[str]:
    """Returns the blocks that are Python."""
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def follow(text: str, folder: Path, *, python: bool = True) -> list[str]:
    """Does what a page says, in a folder of its own: its files, its commands in order, and then its Python.

    `make` is what continuous integration calls.

    Args:
        text: The page.
        folder: Where to.
        python: Whether its Python is run, too.

    Returns:
        What follows `fedstrata` in each command.
    """
    for name in re.findall(r"^    # (\w+\.yaml)$", text, flags=re.MULTILINE):
        (folder / name).write_text(configuration_of(text, name), encoding="utf-8")
    ran: list[str] = []
    behind: list[subprocess.Popen[str]] = []
    with _usual_port():
        try:
            for line in commands_of(text):
                program, *arguments = shlex.split(line.removesuffix("&"))
                if program == "make":
                    continue
                if not (behind or line.endswith("&") or program == "python"):
                    _call(arguments, folder)
                else:
                    module = [] if program == "python" else ["-m", "fedstrata"]
                    behind.append(_started([*module, *arguments], folder))
                while behind and not line.endswith("&"):
                    _require_success(behind.pop())
                ran.append(arguments[0])
            for code in python_of(text) if python else ():
                _require_success(_started(["-c", code], folder))
        finally:
            for each in behind:
                each.kill()
    return ran


@contextmanager
def _usual_port() -> Iterator[None]:
    """Lets one page at a time start a server where a federation of nothing but defaults has its own."""
    with Path(tempfile.gettempdir(), f"fedstrata-tests-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _call(arguments: list[str], folder: Path) -> None:
    """Calls a command that nothing runs beside: a process of its own would spend seconds on imports."""
    said = StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(said), redirect_stderr(said):
        patched.chdir(folder)
        patched.setattr("sys.argv", ["fedstrata", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert not stop.value.code, f"{arguments}\n{said.getvalue()}"


def _started(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _require_success(process: subprocess.Popen[str]) -> None:
    _, complained = process.communicate()
    assert process.returncode == 0, f"{process.args}\n{complained}"
