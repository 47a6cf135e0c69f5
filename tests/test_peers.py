"""What the comparison with other simulators makes of its runs, and of its articles; the peers are not run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import ModuleType

import pytest
from support import REPOSITORY, load_script


@pytest.fixture
def fedavg(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks" / "peers")
    return load_script("benchmarks/peers/fedavg.py")


def test_ratios_are_those_of_pairs_with_the_peer_of_the_shortest_rounds(fedavg: ModuleType) -> None:
    def runs(*seconds: float, memory: float = 100.0) -> list[dict[str, float]]:
        of_all = {"memory_megabytes": memory}
        return [{"round_seconds": own, "whole_seconds": 2 * own, **of_all} for own in seconds]

    told = fedavg.summary(
        {
            "fedstrata": runs(10.0, 12.0, 11.0),
            "bare loop": runs(10.0, 10.0, 11.0),
            "fedstrata, one process": runs(20.0, 20.0, 20.0),
            "bare loop, one process": runs(10.0, 10.0, 10.0),
            "slow": runs(40.0, 1.0, 40.0),
            "quick": runs(20.0, 20.0, 20.0, memory=200.0),
        }
    )
    assert told["best_peer"] == "quick"
    assert (told["ours_over_bare_loop"], told["ours_over_bare_loop_range"]) == (1.0, [1.0, 1.2])
    assert told["ours_over_best_peer_seconds"] == 0.55
    assert told["ours_over_best_peer_memory"] == 0.5
    assert told["one_process_over_bare_loop"] == 2.0
    assert told["whole_over_best_peer_range"] == [0.5, 0.6]


def test_every_article_is_trained_or_tested_on_once(fedavg: ModuleType, tmp_path: Path) -> None:
    rows = [(str(1 + number % 4), f"Title {number}", f"What {number} says.") for number in range(900)]
    with (tmp_path / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    fedavg.prepare(tmp_path / "test.csv", tmp_path, 3)
    texts = [
        json.loads(line)["text"]
        for path in sorted((tmp_path / "corpus").rglob("*.jsonl"))
        for line in path.read_text("utf-8").splitlines()
    ]
    assert sorted(texts) == sorted(f"{title} {text}" for _, title, text in rows)
    assert sum(1 for _ in (tmp_path / "corpus").glob("*/train.jsonl")) == 100
    schedule = json.loads((tmp_path / "schedule.json").read_text("utf-8"))
    assert [len(set(clients)) for clients in schedule] == [10, 10, 10]
