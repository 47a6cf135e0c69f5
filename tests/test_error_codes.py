"""The table of error codes and the codes in the source are the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from support import REPOSITORY

from fedstrata.core.error_codes import CODES

TABLE = REPOSITORY / "src/fedstrata/core/error_codes.py"


@pytest.fixture(scope="module")
def trees() -> list[ast.Module]:
    """The sources but for the table."""
    paths = (path for path in sorted((REPOSITORY / "src").rglob("*.py")) if path != TABLE)
    return [ast.parse(path.read_text(encoding="utf-8")) for path in paths]


def literals(value: ast.expr) -> Iterator[str]:
    """Yields the codes that an expression can be, as far as it spells them out."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    if isinstance(value, ast.IfExp):
        yield from literals(value.body)
        yield from literals(value.orelse)


def given_codes(tree: ast.Module) -> Iterator[str]:
    """Yields every literal that is given as the code of an error, or is the code of a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            place = {"SettingError": 1, "problem": 2, "refused": 2}.get(called, len(node.args))
            values = [
                *(key.value for key in node.keywords if key.arg == "code"),
                *node.args[place : place + 1],
            ]
            for value in values:
                yield from literals(value)
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "code":
                    yield from literals(each.value)


def test_every_code_that_an_error_is_given_is_in_the_table(trees: list[ast.Module]) -> None:
    assert {code for tree in trees for code in given_codes(tree)} <= set(CODES)


def test_every_code_of_the_table_is_used(trees: list[ast.Module]) -> None:
    strings = {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(CODES) <= strings
    assert list(CODES) == sorted(CODES)
