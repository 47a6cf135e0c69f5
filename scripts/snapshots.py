"""Writes every text that users read, every help page and the Python API to tests/snapshots/.

    python scripts/snapshots.py write
    python scripts/snapshots.py check

A test holds the files equal to the code, so a diff of them shows each text that a change rewords.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer
from message_texts import messages, tree_of
from typer import rich_utils

import fedstrata
from fedstrata.cli.main import app

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "snapshots"
COMMAND = "python scripts/snapshots.py write"
COLUMNS = 100


# Help


def help_pages() -> str:
    """Returns the help page of every command, without colour and for a terminal of 100 columns."""
    pinned = {"MAX_WIDTH": COLUMNS, "FORCE_TERMINAL": False, "COLOR_SYSTEM": None}
    with patch.multiple(rich_utils, **pinned):
        pages = list(pages_of(typer.main.get_command(app), "fedstrata", None))
    return "\n".join(pages)


def pages_of(command: typer.core.TyperCommand, path: str, above: typer.Context | None) -> Iterator[str]:
    """Yields the page of a command, then those of the commands below it."""
    context = command.context_class(
        command, info_name=path.rpartition(" ")[2], parent=above, terminal_width=COLUMNS
    )
    shown = io.StringIO()
    with redirect_stdout(shown):
        shown.write(command.get_help(context))
    lines = [line.rstrip() for line in shown.getvalue().strip().split("\n")]
    yield "\n".join([f"$ {path} --help", "", *lines, ""])
    for below, its in sorted(getattr(command, "commands", {}).items()):
        yield from pages_of(its, f"{path} {below}", context)


# The Python API


def python_api() -> str:
    """Returns the signature of every public name, with what its class has."""
    lines = ["fedstrata.__all__"]
    lines += [f"    {name}" for name in sorted(fedstrata.__all__)]
    for name in sorted(fedstrata.__all__):
        found = getattr(fedstrata, name)
        if inspect.ismodule(found):
            lines += ["", f"fedstrata.{name}.__all__"]
            lines += [f"    {each}" for each in sorted(found.__all__)]
            shown = {f"fedstrata.{name}.{each}": getattr(found, each) for each in sorted(found.__all__)}
        else:
            shown = {f"fedstrata.{name}": found}
        for place, value in shown.items():
            lines += ["", *signature_of(place, value)]
    return "\n".join(lines) + "\n"


def signature_of(place: str, value: object) -> Iterator[str]:
    """Yields the lines about a public class, function or value."""
    if inspect.isfunction(value):
        yield signature(definition_of(value), place)
        return
    if not isinstance(value, type):
        yield f"{place}: {type(value).__name__}"
        return
    node = definition_of(value)
    bases = ", ".join(ast.unparse(each) for each in [*node.bases, *node.keywords])
    yield f"class {place}({bases})" if bases else f"class {place}"
    members: dict[str, str] = {}
    for each in public_part(value):
        members = dict(members_of(definition_of(each))) | members
    yield from (f"    {members[name]}" for name in sorted(members))


def public_part(value: type) -> Iterator[type]:
    """Yields a class, and those of its bases that are ours and have no entry of their own."""
    yield value
    for base in value.__mro__[1:]:
        if base.__module__.startswith("fedstrata.") and base.__name__ not in fedstrata.__all__:
            yield base


def definition_of(value: type | Callable[..., object]) -> Any:
    """Returns where a class or function is defined."""
    for node in tree_of(Path(sys.modules[value.__module__].__file__ or "")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == value.__name__:
            return node
    raise LookupError(f"{value.__module__} does not define {value.__name__}")


def signature(node: ast.FunctionDef, name: str) -> str:
    """Returns how a function is called."""
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {name}({ast.unparse(node.args)}){result}"


def members_of(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yields name and signature of every public member that a class defines."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            if each.name == "__init__":
                yield from given_in(each)
            if each.name == "__init__" or public(each.name):
                kinds = "".join(f"@{ast.unparse(decorator)} " for decorator in each.decorator_list)
                yield each.name, kinds + signature(each, each.name)
        elif isinstance(each, ast.AnnAssign) and public(ast.unparse(each.target)):
            yield ast.unparse(each.target), without_description(each)
        elif isinstance(each, ast.Assign) and public(ast.unparse(each.targets[0])):
            yield ast.unparse(each.targets[0]), ast.unparse(each)


def public(name: str) -> bool:
    """Whether a name in a class is one that users may use."""
    return not name.startswith("_") and name != "model_config"


def without_description(node: ast.AnnAssign) -> str:
    """Returns a field without its description, which docs/configuration.md has."""
    value = node.value
    if isinstance(value, ast.Call):
        keywords = [each for each in value.keywords if each.arg != "description"]
        value = ast.Call(value.func, value.args, keywords)
    return ast.unparse(ast.AnnAssign(node.target, node.annotation, value, node.simple))


def given_in(node: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yields the public attributes that `__init__` sets."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and public(each.attr):
            yield each.attr, each.attr


SNAPSHOTS = {"api.txt": python_api, "help.txt": help_pages, "messages.txt": messages}


def main(arguments: Sequence[str]) -> str | None:
    """Writes the snapshots, or returns which are not up to date."""
    if list(arguments) == ["write"]:
        for name, made in SNAPSHOTS.items():
            (FOLDER / name).write_text(made(), encoding="utf-8")
        return None
    if list(arguments) != ["check"]:
        return __doc__
    old = [name for name, made in SNAPSHOTS.items() if (FOLDER / name).read_text(encoding="utf-8") != made()]
    return f"not up to date: {', '.join(old)}; run {COMMAND}" if old else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
