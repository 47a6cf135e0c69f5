"""The texts of the package's source: what an error, a `Problem`, a warning or a line says, and all others."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[1] / "src"
HEAD = """# The texts of the package by file: messages as `[code] setting: message`, then others after a dash.
# What stands in braces is filled in. Descriptions of settings are in docs/configuration.md.
"""
MESSAGE = ("message", "what", "why", "reason", "details")
PLACE = ("path", "setting", "column")
"""Parameters that are a message, and those that say where something is wrong."""
TOLD = {"warn": "warning", "_warn": "warning", "warning": "warning", "tell": "log", "echo": "output"}
"""Functions that tell users something which has no code."""
UNSEEN_ARGUMENTS = {"description", "help", "metavar"}
"""docs/configuration.md or help.txt shows them."""
UNSEEN_CALLS = {"cast", "compile", "fullmatch", "match", "search", "TypeVar"}
"""What they are given is no text for users."""
ERRORS = ("BadParameter", "Error", "Exception", "Warning")
SQL = re.compile(r"\s*(ALTER|BEGIN|CREATE|DELETE|DROP|INSERT|PRAGMA|REPLACE|SELECT|UPDATE) ")
WORDS = re.compile(r"[^\W\d_]+ ([^\W\d_]{2,}|\{\})|\{\} [^\W\d_]{2,}")


class Told(NamedTuple):
    """How something that takes a message is called: what it takes by position, and the code without one."""

    parameters: tuple[str, ...]
    code: str


class Assigned(NamedTuple):
    """What a variable is given, and the block of statements in which it is."""

    name: str
    value: ast.expr
    block: int


class Called(NamedTuple):
    """A call, what was assigned before it in its function and its module, and the blocks around it."""

    node: ast.Call
    before: list[list[Assigned]]
    blocks: tuple[int, ...]


class File:
    """What one file has, found in one pass.

    Attributes:
        functions: Its functions.
        classes: Its classes.
        calls: Every call in it.
        texts: Every string of words, in calls or not, but for docstrings.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.functions: list[ast.FunctionDef] = []
        self.classes: list[ast.ClassDef] = []
        self.calls: list[Called] = []
        self.texts: list[ast.expr] = []
        self._scopes: list[list[Assigned]] = [[]]
        self._look(tree, ())

    def _look(self, node: Any, blocks: tuple[int, ...]) -> None:
        """Looks at a node, unless nobody sees its texts, and at all below it."""
        kind = type(node)
        if (take := _TAKEN.get(kind)) is not None:
            take(self, node, blocks)
        if kind in _UNSEEN and is_unseen(node, kind):
            return
        if kind is ast.FunctionDef:
            self._scopes.append([])
        for value in vars(node).values():
            if type(value) is list:
                inside = (*blocks, id(value)) if value and isinstance(value[0], ast.stmt) else blocks
                for each in value:
                    if type(each) not in _LEAVES:
                        self._look(each, inside)
            elif type(value) not in _LEAVES:
                self._look(value, blocks)
        if kind is ast.FunctionDef:
            self._scopes.pop()
        elif kind in _ASSIGNMENTS and node.value is not None:
            targets = node.targets if kind is ast.Assign else [node.target]
            named = [each.id for each in targets if isinstance(each, ast.Name)]
            self._scopes[-1] += [Assigned(name, node.value, blocks[-1]) for name in named]

    def _take_function(self, node: ast.FunctionDef, blocks: tuple[int, ...]) -> None:
        self.functions.append(node)

    def _take_class(self, node: ast.ClassDef, blocks: tuple[int, ...]) -> None:
        self.classes.append(node)

    def _take_call(self, node: ast.Call, blocks: tuple[int, ...]) -> None:
        before = [self._scopes[0], *(assigned[:] for assigned in self._scopes[1:])]
        self.calls.append(Called(node, before, blocks))

    def _take_text(self, node: ast.Constant | ast.JoinedStr, blocks: tuple[int, ...]) -> None:
        if is_text(node):
            self.texts.append(node)


_TAKEN: dict[type, Callable[..., None]] = {
    ast.FunctionDef: File._take_function,
    ast.ClassDef: File._take_class,
    ast.Call: File._take_call,
    ast.Constant: File._take_text,
    ast.JoinedStr: File._take_text,
}
_UNSEEN = (ast.keyword, ast.Expr, ast.Call, ast.JoinedStr, ast.Constant)
_LEAVES = {int, str, type(None), ast.Name, ast.Load, ast.Store}
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)


def is_unseen(node: Any, kind: type) -> bool:
    """Whether texts in a node are none for users, or are shown elsewhere."""
    if kind is ast.keyword:
        return node.arg in UNSEEN_ARGUMENTS
    if kind is ast.Expr:
        return type(node.value) is ast.Constant  # a docstring
    return kind is not ast.Call or name_of(node) in UNSEEN_CALLS


class Sources:
    """All files of the package, and what in them takes a message."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self._classes = {each.name: each for file in files.values() for each in file.classes}
        errors = {name: self._parameters(name) for name in self._classes}
        self._everywhere = {
            name: Told(parameters, self._code(name)) for name, parameters in errors.items() if parameters
        }
        for file in files.values():
            own = self._functions(file)
            self._everywhere |= {name: told for name, told in own.items() if not name.startswith("_")}

    def told(self, file: File) -> Mapping[str, Told]:
        """Returns what can be called in a file and takes a message, by name; its own functions come first."""
        return {**self._everywhere, **self._functions(file)}

    def _lineage(self, name: str) -> Iterator[ast.ClassDef]:
        """Yields a class and its bases, as far as they are ours."""
        if (node := self._classes.get(name)) is not None:
            yield node
            for base in node.bases:
                yield from self._lineage(ast.unparse(base))

    def _is_error(self, name: str) -> bool:
        bases = [ast.unparse(base) for node in self._lineage(name) for base in node.bases]
        return name.isidentifier() and any(each.endswith(ERRORS) for each in [name, *bases])

    def _parameters(self, name: str) -> tuple[str, ...]:
        """Returns what an error takes by position; nothing for any other class."""
        if name == "Problem":
            return ("path", "message", "origin")
        if not self._is_error(name):
            return ()
        for node in self._lineage(name):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    own = tuple(argument.arg for argument in each.args.args[1:])
                    return own or ("message",)
        return ("message",)

    def _code(self, name: str) -> str:
        """Returns the code that a class has; its name if it has none."""
        for node in self._lineage(name):
            for each in node.body:
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "code":
                    return str(ast.literal_eval(each.value))
        return name

    def _functions(self, file: File) -> dict[str, Told]:
        """Returns the functions of a file that make an error or a `Problem`, or pass its code on."""
        found = {}
        for node in file.functions:
            names = tuple(each.arg for each in node.args.args if each.arg != "self")
            result = ast.unparse(node.returns) if node.returns else ""
            if result == "Problem" or self._is_error(result) or ("code" in names and {*MESSAGE} & {*names}):
                codes = {
                    each.value.value
                    for each in [*ast.walk(node), *defaults_of(node)]
                    if isinstance(each, ast.keyword) and each.arg == "code"
                    if isinstance(each.value, ast.Constant)
                }
                found[node.name] = Told(names, codes.pop() if len(codes) == 1 else self._code(result))
        return found


def defaults_of(node: ast.FunctionDef) -> list[ast.keyword]:
    """Returns the defaults of what a function takes by position, by name."""
    names = [each.arg for each in node.args.args][::-1]
    defaults = node.args.defaults[::-1]
    return [ast.keyword(name, default) for name, default in zip(names, defaults, strict=False)]


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns a source file, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"))


def messages() -> str:
    """Returns every message and other text of the package, by file and code."""
    paths = sorted(SOURCE.rglob("*.py"))
    files = {path.relative_to(SOURCE).as_posix(): File(tree_of(path)) for path in paths}
    sources = Sources(files)
    lines = [HEAD.rstrip()]
    for name, file in files.items():
        if found := lines_of(file, sources.told(file)):
            lines += ["", name, *(f"    {line}" for line in found)]
    return "\n".join(lines) + "\n"


def lines_of(file: File, told: Mapping[str, Told]) -> list[str]:
    """Returns a line for each text of a file: messages by their codes, then the others."""
    found: set[str] = set()
    shown_there: set[ast.AST] = set()
    for called in file.calls:
        name = name_of(called.node)
        takes = told.get(name)
        if takes is None and (name in TOLD or name.endswith(ERRORS)):
            takes = Told(("message",), TOLD.get(name, name))
        if takes is None:
            continue
        given = dict(zip(takes.parameters, called.node.args, strict=False))
        given |= {key.arg: key.value for key in called.node.keywords if key.arg}
        code = shown(given["code"]) if "code" in given else takes.code
        place = next((f"{shown(given[each])}: " for each in PLACE if each in given), "")
        expected = f" (expected {shown(given['expected'])})" if "expected" in given else ""
        values = [value for each in MESSAGE if each in given for value in reaching(given[each], called)]
        for value in values:
            if texts := [each for each in ast.walk(value) if isinstance(getattr(each, "value", None), str)]:
                shown_there |= {*ast.walk(value), *ast.walk(given.get("expected", value)), *texts}
                found.add(f"[{code}] {place.removeprefix(': ')}{shown(value)}{expected}")
    others = {f"- {shown(text)}" for text in file.texts if text not in shown_there}
    return [*sorted(found), *sorted(others)]


def reaching(message: ast.expr, called: Called) -> list[ast.expr]:
    """Returns a message; if a variable holds it, all that it can have been given where it stands."""
    if isinstance(message, ast.Call) and name_of(message) == "format":
        message = message.func.value
    for scope in reversed(called.before if isinstance(message, ast.Name) else []):
        values = []
        for assigned in reversed(scope):
            if assigned.name == message.id:
                values.append(assigned.value)
                if assigned.block in called.blocks:
                    break  # what came before is overwritten
        if values:
            return values
    return [message]


def name_of(call: ast.Call) -> str:
    """Returns the last part of the name by which something is called."""
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def is_text(node: ast.Constant | ast.JoinedStr) -> bool:
    """Whether a string has two words in a row, and is no SQL."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    texts = [each.value if isinstance(each, ast.Constant) else "{}" for each in parts]
    text = "".join(each for each in texts if isinstance(each, str))
    return " " in text and WORDS.search(re.sub(r"<[^>]*>", "", text)) is not None and not SQL.match(text)


def shown(node: ast.expr) -> str:
    """Returns an expression as a text, with what it fills in between braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace("\\", "\\\\").replace("\n", "\\n")
    if isinstance(node, ast.JoinedStr):
        return "".join(shown(each) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        form = f":{shown(node.format_spec)}" if node.format_spec else ""
        kind = f"!{chr(node.conversion)}" if node.conversion > 0 else ""
        return "{" + filled(node.value) + kind + form + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return shown(node.left) + shown(node.right)
    return "{" + filled(node) + "}"


def filled(node: ast.expr) -> str:
    """Returns what a text fills in; of a choice, both texts, which Python's versions quote differently."""
    if isinstance(node, ast.IfExp):
        return f"{filled(node.body)} if {ast.unparse(node.test)} else {filled(node.orelse)}"
    if isinstance(node, ast.JoinedStr):
        return f'"{shown(node)}"'
    return ast.unparse(node)
