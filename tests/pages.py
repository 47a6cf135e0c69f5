"""What a page shows: blocks, commands, configurations and Python."""

from __future__ import annotations

import re

from support import REPOSITORY

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
