"""The ten minutes of CONTRIBUTING.md work when they are followed to the letter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import follow, python_of, text_of

PAGE = "CONTRIBUTING.md"
HOW_TOS = ("method", "task", "reader")


def section(what: str) -> str:
    """Returns the part of the page that says how to add something."""
    (own,) = re.findall(rf"^## How to add a {what}\n.*?(?=^## |\Z)", text_of(PAGE), re.MULTILINE | re.DOTALL)
    return str(own)


@pytest.mark.slow
@pytest.mark.parametrize("what", HOW_TOS)
def test_what_it_says_to_add_is_checked_and_runs(what: str, tmp_path: Path) -> None:
    """In an empty folder: the files it shows, and then its commands, in order."""
    own = section(what)
    for shown in python_of(own):
        name, code = re.fullmatch(r"# (\w+\.py)\n(.*)", shown, flags=re.DOTALL).groups()  # type: ignore[union-attr]
        (tmp_path / name).write_text(code, encoding="utf-8")
    assert follow(own, tmp_path, python=False)
