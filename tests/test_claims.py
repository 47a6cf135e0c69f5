"""Every claim of protection on a page names the test that attacks it, and every such mark names a claim."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from support import REPOSITORY

NAMES = ("security_review", "secure_aggregation", "differential_privacy", "site_policy")
NAMES += ("federation", "joint_privacy", "budgets", "ledger", "models", "processes")
PAGES = {name: REPOSITORY / "docs" / f"{name}.md" for name in NAMES}
PAGES["SECURITY"] = REPOSITORY / "SECURITY.md"
"""The pages that claim protections."""
_ANCHOR = re.compile(r'<a class="claim" id="([a-z0-9-]+)"></a>')


def claimed() -> list[str]:
    """Returns the claims of all pages, as PAGE#ID, in the order in which they stand."""
    return [
        f"{page}#{name}" for page, path in PAGES.items() for name in _ANCHOR.findall(path.read_text("utf-8"))
    ]


def attacked(folder: Path) -> dict[str, list[str]]:
    """Returns the tests that attack each claim: functions that pytest collects, by their marks."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for claim in filter(None, map(claim_of, node.decorator_list)):
                    found[claim].append(f"{file.relative_to(folder)}::{node.name}")
    return found


def claim_of(decorator: ast.expr) -> str | None:
    """Returns what `@pytest.mark.claim("PAGE#ID")` names."""
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.claim":
        return str(ast.literal_eval(decorator.args[0]))
    return None


def test_every_claim_is_attacked_by_a_test_and_every_attack_names_a_claim() -> None:
    claims, attacks = claimed(), attacked(REPOSITORY / "tests")
    assert len(claims) == len(set(claims)), "an id stands once on a page"
    assert len(claims) > 30
    assert {claim for claim in claims if claim not in attacks} == set()
    assert {claim: tests for claim, tests in attacks.items() if claim not in claims} == {}
