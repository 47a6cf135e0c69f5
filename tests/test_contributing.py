"""CONTRIBUTING.md is right about the tests, and its ten minutes work when they are followed to the letter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import follow, python_of, text_of
from support import REPOSITORY
from weekly_tests import WEEKLY

PAGE = "CONTRIBUTING.md"
HOW_TOS = ("method", "task", "reader")


def section(what: str) -> str:
    """Returns the part of the page that says how to add something."""
    (own,) = re.findall(rf"^## How to add a {what}\n.*?(?=^## |\Z)", text_of(PAGE), re.MULTILINE | re.DOTALL)
    return str(own)


def test_every_folder_of_tests_is_described() -> None:
    rows = re.findall(r"^\| ((?:`\w+`,? ?)+)\|", text_of(PAGE), flags=re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    folders = {path.parent.relative_to(REPOSITORY / "tests").parts[0] for path in files_in_folders()}
    assert described == folders | {"fixtures"}


def files_in_folders() -> list[Path]:
    tests = REPOSITORY / "tests"
    return [path for path in tests.rglob("test_*.py") if path.parent != tests]


@pytest.mark.parametrize("beginning", WEEKLY)
def test_what_runs_once_a_week_is_a_test(beginning: str) -> None:
    """That it is slow is looked at where tests are collected."""
    file, _, rest = beginning.partition("::")
    name, _, _ = rest.partition("[")
    assert f"\ndef {name}(" in (REPOSITORY / file).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("what", HOW_TOS)
def test_what_it_says_to_add_is_checked_and_runs(what: str, tmp_path: Path) -> None:
    """In an empty folder: the files it shows, and then its commands, in order."""
    own = section(what)
    for shown in python_of(own):
        name, code = re.fullmatch(r"# (\w+\.py)\n(.*)", shown, flags=re.DOTALL).groups()  # type: ignore[union-attr]
        (tmp_path / name).write_text(code, encoding="utf-8")
    assert follow(own, tmp_path, python=False)
