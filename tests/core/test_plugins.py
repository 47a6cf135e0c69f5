"""What a configuration may name: ours, an installed package's, or a class by reference."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import troubled
from support import refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.plugins import Plugins

OWN = {"sum": sum, "max": max}


def plugins(**installed: str) -> Plugins[object]:
    """Functions by name, as if a package had installed some of them."""
    found = Plugins[object]("fedstrata.tests", OWN, kind="function", is_one=callable)
    points = {name: EntryPoint(name, value, "fedstrata.tests") for name, value in installed.items()}
    found.__dict__["installed"] = points
    return found


def test_a_name_is_ours_then_a_packages_then_a_reference() -> None:
    found = plugins(pi="math:isqrt")
    assert found.find("sum", "") is sum
    assert found["pi"] is __import__("math").isqrt
    assert found.find("math:gcd", "") is __import__("math").gcd
    assert list(found) == ["sum", "max", "pi"]
    assert "math:gcd" in found
    assert "tau" not in found


@pytest.mark.parametrize(
    ("name", "code", "values"),
    [
        ("summ", "unknown_name", ["sum, max, broken", "'summ'", "'sum'"]),
        (None, "unknown_name", ["sum, max, broken", "null"]),
        ("math:tau", "wrong_type", ["'math:tau'", "function"]),
        ("math:gdc", "not_importable", ["'math:gdc'", "AttributeError"]),
        ("no_such_thing.at_all:A", "not_importable", ["'no_such_thing'"]),
        ("broken", "not_importable", ["'broken'", "'gone'"]),
    ],
)
def test_what_stands_for_nothing_says_why(name: object, code: str, values: list[str]) -> None:
    with refused(ConfigurationError, code, at="method.name", values=values):
        plugins(broken="gone:Gone").find(name, "method.name")


def test_one_that_cannot_be_imported_hides_no_other() -> None:
    found = plugins(broken="gone:Gone", pi="math:isqrt")
    assert list(found) == ["sum", "max", "pi"]
    assert len(found) == 3


def test_a_module_of_the_working_folder_is_found_and_one_that_raises_says_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(Plugins, "searches_here", True)  # which `fedstrata join` ends for its process
    Path("mine_here.py").write_text("def one(): ...")
    Path("mine_broken.py").write_text("1 / 0")
    found = plugins()
    assert found.name_of(found.find("mine_here:one", "")) == "mine_here:one"
    with refused(ConfigurationError, "not_importable", at="method.name", values=["ZeroDivisionError"]):
        found.find("mine_broken:one", "method.name")


def test_what_no_other_process_can_import_is_kept_here_and_says_the_way_out() -> None:
    def closure() -> None: ...

    found = plugins()
    name = found.name_of(closure)
    assert found.find(name, "") is closure
    for kept, word in ((name, "function"), ("__main__:Mine", "notebook")):
        for part in (kept, word, ".py"):
            assert part in found.why_only_here(kept)
    own = found.name_of(troubled.Troubled)
    assert (own, found.why_only_here(own)) == ("troubled:Troubled", "")
    assert found.name_of(sum) == "sum"


def test_where_something_comes_from_is_told() -> None:
    found = plugins(pi="math:isqrt")
    origins = [found.origin(name) for name in ("sum", "pi", "math:gcd")]
    assert origins == ["fedstrata", "math:isqrt", "math"]
