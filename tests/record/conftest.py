from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

WriteRun = Callable[..., Path]
TIME = "2026-01-01T10:00:00.000+00:00"


def run_event(clients: Sequence[str], **changes: Any) -> dict[str, Any]:
    """The `run` event of a model of 100 bytes in two groups."""
    return {
        "event": "run", "time": TIME, "name": "run", "data": "fingerprint", "device": "cpu", "threads": 1,
        "versions": {"fedstrata": "0"}, "method": "fedavg", "pooled": False, "personal": False, "task": "ner",
        "metric": "f1", "seed": 0, "rounds": 3, "trainable_parameters": 20,
        "model": {"name": "small", "parameters": 25, "blocks": 1, "bytes": 100},
        "groups": {"embedding": 20, "block 0": 80},
        "clients": {client: {"train": 7, "validation": 1, "test": 2} for client in clients},
    } | changes  # fmt: skip


def scores_of(clients: Mapping[str, float]) -> dict[str, Any]:
    """Scores as an event has them."""
    mean = sum(clients.values()) / len(clients)
    return {
        "global": {"f1": mean, "recall": mean, "f1/drug": mean},
        "clients": {client: {"f1": score, "recall": score} for client, score in clients.items()},
        "mean_client": {"f1": mean, "recall": mean},
        "external": {},
    }


def round_event(number: int, clients: Mapping[str, float], **changes: Any) -> dict[str, Any]:
    """A `round` event in which every client sent 80 bytes and got 100."""
    return {
        "event": "round", "time": TIME, "round": number, "loss": 1.0 / number, **scores_of(clients),
        "exchanges": {client: {"bytes_up": 80, "bytes_down": 100} for client in clients},
        "groups_up": {"block 0": 80 * len(clients)}, "state": {}, "trainable_parameters": 20,
        "failed": [], "abandoned": False,
        "seconds": 3.0, "train_seconds": 2.0, "evaluate_seconds": 0.5,
    } | changes  # fmt: skip


def final_event(clients: Mapping[str, float]) -> dict[str, Any]:
    """The `final` event."""
    measured = {"seconds": 1.0, "peak_rss_bytes": 5_000_000, "peak_gpu_bytes": None}
    return {"event": "final", "time": TIME, **scores_of(clients), **measured}


@pytest.fixture(scope="session")
def write_in() -> WriteRun:
    """Writes a run directory with these events into a folder."""

    def write(
        within: Path, events: Sequence[Mapping[str, Any]], name: str = "run", configuration: str = "seed: 0\n"
    ) -> Path:
        folder = within / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(configuration)
        (folder / "record.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        return folder

    return write


@pytest.fixture
def write_run(tmp_path: Path, write_in: WriteRun) -> WriteRun:
    """Writes a run directory with these events; takes its name and its configuration too."""
    return partial(write_in, tmp_path)


@pytest.fixture(scope="session")
def events() -> Callable[..., list[dict[str, Any]]]:
    """Returns the events of a run of clients a and b, or of those given with their scores."""

    def make(
        rounds: int = 3, *, final: bool = True, clients: Mapping[str, float] | None = None, **changes: Any
    ) -> list[dict[str, Any]]:
        scores = clients or {"a": 0.25, "b": 0.75}
        return [
            run_event(list(scores), **changes),
            *(round_event(number, scores) for number in range(1, rounds + 1)),
            *([final_event(scores)] if final else []),
        ]

    return make
