"""The guides by user work when they are followed to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import follow, text_of
from support import REPOSITORY

GUIDES = sorted(path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docs").glob("for_*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES)
def test_what_a_guide_shows_runs(page: str, tmp_path: Path) -> None:
    assert follow(text_of(page), tmp_path)
