"""What `import fedstrata` gives: every public name, and nothing heavy before it is asked for."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import fedstrata as fs

HEAVY = ("torch", "transformers", "pandas", "numpy", "peft", "datasets", "matplotlib", "pydantic", "rich")


def test_importing_loads_nothing_heavy() -> None:
    """A service that only may use the library starts at once."""
    program = (
        f"import sys, fedstrata; dir(fedstrata); print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_described() -> None:
    assert set(fs.__all__) <= set(dir(fs))
    found = {name: getattr(fs, name) for name in fs.__all__}
    assert [
        name for name, own in found.items() if not isinstance(own, dict) and not inspect.getdoc(own)
    ] == []


def test_type_checkers_see_the_names_that_are_found_at_run_time() -> None:
    """The imports for type checkers say of each name the module that it is found in."""
    tree = ast.parse(Path(str(fs.__file__)).read_text(encoding="utf-8"))
    (seen,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = {
        alias.name: f"{node.module}.{alias.name}"
        for node in seen.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(imports) == sorted(fs.__all__)
    found = {name: getattr(fs, name) for name in fs.__all__}
    named = {name: path for name, path in imports.items() if hasattr(found[name], "__qualname__")}
    assert named == {name: f"{found[name].__module__}.{found[name].__qualname__}" for name in named}


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError):
        getattr(fs, "runn")  # noqa: B009 - as a user writes it, without the type checker
