"""`fedstrata budget` and the key that it needs, as whoever answers for a site's data uses them."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

from private_client import PRIVATE
from support import Call, RunTiny
from told import assert_told

OWN = (
    *PRIVATE,
    "privacy.noise=secure",
    "privacy.budget={path: budget.db, epsilon: 9.0, delta: 0.001, disjoint_sites: true}",
)


def test_a_key_a_run_and_what_was_spent(call: Call, run_tiny: RunTiny, tmp_path: Path) -> None:
    made = call("keys", "new", "budget.key", "--pseudonyms")
    assert made.status == 0, made.err
    assert stat.S_IMODE((tmp_path / "budget.key").stat().st_mode) == 0o600
    assert call("keys", "new", "budget.key", "--pseudonyms").status == 2
    run = run_tiny(*OWN)
    told = call("budget", "show", "budget.db")
    assert told.status == 0, told.err
    documents = sum(each["train"] for each in run.of("run")[0]["clients"].values())
    assert told.out.startswith(f"budget.db: {documents} documents")
    for part in ("epsilon 9", "delta 0.001", "zero-out"):
        assert part in told.out
    assert told.out.count("2 turns of 3 steps, 2 begun, ") == 3
    spent = run.of("privacy")[-1]["budget"]["clients"]["site-1"]
    assert f"{documents} documents: epsilon {spent['spent']:.1f}" in told.out
    assert "over the budget" not in told.out
    with sqlite3.connect(tmp_path / "budget.db") as connection:  # as a run under a lower cap leaves it
        connection.execute("UPDATE terms SET value = '0.5' WHERE name = 'epsilon'")
    over = call("budget", "show", "budget.db").out
    for part in ("0.00 left", "over the budget"):
        assert part in over
    for document in (tmp_path / "run" / "documents.json").read_text().split('"'):
        assert len(document) < 8 or document not in told.out


def test_what_is_no_budget_is_said(call: Call, tmp_path: Path) -> None:
    assert_told(call("budget", "show", "budget.db").err, "not_found", values=["budget.db"])
    (tmp_path / "text").write_text("no budget")
    (tmp_path / "text").chmod(0o600)
    told = call("budget", "show", "text")
    assert told.status == 2
    assert_told(told.err, "damaged", values=["text"])
