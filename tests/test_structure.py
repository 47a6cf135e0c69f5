"""Nothing outside a card knows its name: methods and tasks of one's own work like those that come with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import REPOSITORY

from fedstrata.methods import METHODS
from fedstrata.tasks import TASKS

SOURCE = REPOSITORY / "src"
CARDS = {"methods": METHODS, "tasks": TASKS}


def imports_of(file: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, and every name that it takes from one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def files_outside(folder: str) -> list[Path]:
    return [
        file
        for file in sorted((SOURCE / "fedstrata").rglob("*.py"))
        if (SOURCE / "fedstrata" / folder) not in file.parents
    ]


@pytest.mark.parametrize("folder", CARDS)
def test_no_file_outside_the_cards_imports_one(folder: str) -> None:
    modules = {card.__module__ for card in CARDS[folder].values()}
    assert len(modules) == len(CARDS[folder]), "a card a file"
    guilty = [
        f"{file.relative_to(SOURCE)} imports {name}"
        for file in files_outside(folder)
        for name in imports_of(file)
        if name in modules or name.rpartition(".")[0] in modules
    ]
    assert not guilty


@pytest.mark.parametrize("folder", CARDS)
def test_no_file_outside_the_cards_compares_with_the_name_of_one(folder: str) -> None:
    """A name in a comparison or a membership test is an `isinstance` in disguise."""
    guilty = []
    for file in files_outside(folder):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            words = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            subject = ast.unparse(node.left)
            if subject.endswith(("method.name", "task.name")) and words & CARDS[folder].keys():
                guilty.append(f"{file.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}")
    assert not guilty
