"""Nothing outside a card knows its name: methods and tasks of one's own work like those that come with it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from support import REPOSITORY

from fedstrata.methods import METHODS
from fedstrata.tasks import TASKS

PACKAGE = REPOSITORY / "src" / "fedstrata"
CARDS = {"methods": METHODS, "tasks": TASKS}
DEFAULTS = {"USUAL_METHOD", "USUAL_TASK"}
"""What a configuration that names none means: settings lie below the cards, and cannot ask them."""
WORDS = {"relations"}
"""Names that are also a kind of annotation: a card's only where something is chosen by them."""


def named(root: Path, folder: str) -> Iterator[str]:
    """Every place outside a folder of cards where one of them is imported or called by its name."""
    cards = set(CARDS[folder])
    classes = {card.__name__ for card in CARDS[folder].values()}
    stems = "|".join(card.__module__.rpartition(".")[2] for card in CARDS[folder].values())
    module = re.compile(rf"(^|\.){folder}\.({stems})\b")
    for file in sorted(root.rglob("*.py")):
        if root / folder in file.parents:
            continue
        nodes = nodes_of(file.read_text(encoding="utf-8"))
        allowed = set(constants_of_defaults(nodes))
        choosing = set(constants_that_choose(nodes, folder.upper()))
        for node in nodes:
            if isinstance(node, ast.Import):
                guilty = any(module.search(each.name) for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                guilty = any(
                    each.name in classes or module.search(f"{node.module}.{each.name}") for each in node.names
                )
            elif isinstance(node, ast.Attribute):
                guilty = node.attr in classes
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in allowed:
                name = node.value in cards and (node.value not in WORDS or node in choosing)
                guilty = name or node.value in classes or bool(module.search(node.value))
            else:
                continue
            if guilty:
                yield f"{file.relative_to(root)}:{node.lineno}: {ast.unparse(node)}"


@cache
def nodes_of(text: str) -> Sequence[ast.AST]:
    return tuple(ast.walk(ast.parse(text)))


def constants_of_defaults(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        if isinstance(node, ast.Assign) and {last_name(target) for target in node.targets} & DEFAULTS:
            yield node.value


def constants_that_choose(nodes: Sequence[ast.AST], registry: str) -> Iterator[ast.AST]:
    """What stands in comparisons, but for those of kinds of annotation, in cases, and in `TASKS[...]`."""
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if not any(last_name(side) == "gives" for side in sides):
                yield from (inner for side in sides for inner in plain(side))
        elif isinstance(node, ast.match_case):
            yield from ast.walk(node.pattern)
        elif isinstance(node, ast.Subscript) and last_name(node.value).endswith(registry):
            yield node.slice
        elif isinstance(node, ast.Call) and last_name(node.func) in ("startswith", "endswith"):
            yield from (inner for argument in node.args for inner in plain(argument))


def last_name(node: ast.expr) -> str:
    """Returns a name, or that behind the last dot; empty for anything else."""
    return getattr(node, "attr", getattr(node, "id", ""))


def plain(side: ast.expr) -> Iterator[ast.expr]:
    """A value, or those that a literal collection holds; not what a function in it is called with."""
    yield side
    if isinstance(side, ast.Tuple | ast.List | ast.Set):
        yield from side.elts


def test_a_card_is_a_file_that_imports_no_other_and_is_named_nowhere_else() -> None:
    for folder, cards in CARDS.items():
        modules = {card.__module__ for card in cards.values()}
        assert len(modules) == len(cards)
        guilty = [
            f"{module} imports {node.module}"
            for module in sorted(modules)
            for node in ast.walk(ast.parse(Path(sys.modules[module].__file__ or "").read_text("utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module in modules
        ]
        assert [*guilty, *named(PACKAGE, folder)] == []


def test_a_planted_name_is_found_and_what_names_no_card_passes(tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "fedavg.py").write_text("name = 'fedavg'")
    for line in (
        "from fedstrata.methods.fedavg import FedAvg",
        "from ..methods import FedAvg",
        "import fedstrata.methods.fedavg as mean",
        "importlib.import_module('fedstrata.methods.fedavg')",
        "methods.FedAvg()",
        "METHODS.get('fedavg')",
        "name in ('fedper', 'fedavg')",
        "match section:\n    case {'name': 'fedavg'}:\n        pass",
        "type(method).__name__ == 'FedAvg'",
        "TASKS['relations']",
        "task.name in {'ner', 'relations'}",
        "name.startswith(('lm', 'relations'))",
        "match task.name:\n    case 'relations':\n        pass",
    ):
        (tmp_path / "planted.py").write_text(f"first = 1\n{line}\n")
        found = [place for folder in CARDS for place in named(tmp_path, folder)]
        assert found, line
        assert all(place.startswith("planted.py:") for place in found)
    for line in (
        "from fedstrata.methods.averaging import Averaging",
        "USUAL_METHOD = 'fedavg'",
        "METHODS[name]",
        "'relations' in task.gives",
        "types_of(documents, 'relations') == types",
        "{'spans': 1, 'relations': 2}[kind]",
    ):
        (tmp_path / "planted.py").write_text(line)
        assert not [place for folder in CARDS for place in named(tmp_path, folder)], line
