"""The guides by user work when they are followed to the letter."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks_of, commands_of, configuration_of, python_of, text_of
from support import REPOSITORY

GUIDES = sorted(path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docs").glob("for_*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES)
def test_what_a_guide_shows_runs(page: str, tmp_path: Path) -> None:
    """In a folder of its own: its files, its commands in order, and then its Python."""
    text = text_of(page)
    for name in re.findall(r"^    # (\w+\.yaml)$", "".join(blocks_of(text)), flags=re.MULTILINE):
        (tmp_path / name).write_text(configuration_of(text, name), encoding="utf-8")
    behind: list[subprocess.Popen[str]] = []
    try:
        for line in commands_of(text):
            _, *arguments = shlex.split(line.removesuffix("&"))
            behind.append(started(["-m", "fedstrata", *arguments], tmp_path))
            while behind and not line.endswith("&"):
                require_success(behind.pop())
        for code in python_of(text):
            require_success(started(["-c", code], tmp_path))
    finally:
        for each in behind:
            each.kill()


def started(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def require_success(process: subprocess.Popen[str]) -> None:
    _, complained = process.communicate()
    assert process.returncode == 0, f"{process.args}\n{complained}"


def test_there_is_a_guide_for_each_kind_of_user() -> None:
    assert [Path(page).stem for page in GUIDES] == ["for_engineers", "for_hospitals", "for_researchers"]
