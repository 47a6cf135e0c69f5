from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import TINY

SCHEMA = {
    "name": None,
    "method": None,
    "travels": None,
    "task": None,
    "metric": None,
    "metrics": None,
    "device": None,
    "rounds": None,
    "clients": {"site-1", "site-2", "site-3"},
    "model": {"name", "parameters", "blocks", "bytes"},
    "trainable_parameters": None,
    "groups": None,
    "communication": {
        "bytes_up",
        "bytes_down",
        "bytes_up_per_client_round",
        "bytes_down_per_client_round",
        "percent_of_full_model",
        "full_model_bytes_up",
    },
    "time": {
        "preparation_seconds",
        "total_seconds",
        "train_seconds",
        "evaluate_seconds",
        "engine_overhead_seconds",
        "finish_seconds",
        "seconds_per_round",
        "seconds_per_client_round",
    },
    "memory": {"peak_rss_bytes", "peak_gpu_bytes", "available_rss_bytes", "available_gpu_bytes"},
    "disk": {
        "bytes",
        "checkpoints_bytes",
        "stores_bytes",
        "caches_bytes",
        "models_bytes",
        "record_bytes",
        "report_bytes",
        "free_bytes",
    },
    "energy_joules": None,
    "rehearsal": {"seconds", "rounds", "steps"},
    "warnings": None,
}


@pytest.fixture
def plan(tmp_path: Path):
    """Plans a tiny run in a process of its own, in an empty folder that stays empty."""
    (tmp_path / "tiny.yaml").write_text("{}\n")
    (tmp_path / "here").mkdir()

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        fedstrata = [sys.executable, "-m", "fedstrata", "plan", str(tmp_path / "tiny.yaml")]
        done = subprocess.run(
            [*fedstrata, *TINY, "threads=1", "--seconds", "0", *arguments],
            cwd=tmp_path / "here",
            capture_output=True,
            text=True,
            check=False,
        )
        assert not list((tmp_path / "here").iterdir())
        return done

    return command


def test_the_json_form_has_its_keys_and_nothing_else_is_printed(plan) -> None:
    done = plan("--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made.keys() == SCHEMA.keys()
    for key, inner in SCHEMA.items():
        if inner is not None:
            assert made[key].keys() == inner
    assert made["groups"][0].keys() == {
        "name",
        "parameters",
        "trainable_parameters",
        "bytes",
        "bytes_down",
        "bytes_up",
    }
    assert made["clients"]["site-1"].keys() == {"documents", "examples", "steps", "rounds", "seconds"}
    assert made["memory"]["peak_rss_bytes"] > 1e8


def test_people_see_what_trains_travels_and_costs(plan) -> None:
    done = plan("method={name: layer_skipping, top: 1}")
    assert done.returncode == 0, done.stderr
    for part in ("blocks 0 to 1", "block 2", "site-3", "steps a round", "judged by f1"):
        assert part in done.stdout
    for line in ("trains ", "travels ", "time ", "memory ", "disk "):
        assert any(text.startswith(line) for text in done.stdout.splitlines())


def test_pooled_training_travels_as_notes(plan) -> None:
    done = plan("method={name: centralized}")
    assert "travels  every note, to one place; no model" in done.stdout


def test_every_problem_is_listed_at_once(plan) -> None:
    wrong = ["training.epochs=0", "method={name: layer_skipping, top: 9}", "nonsense=1"]
    done = plan(*wrong, "federation.metric=auc", "data.types=[gene]")
    assert done.returncode == 2
    assert "5 problems" in done.stderr
    for part in ("training.epochs", "method.top", "nonsense", "federation.metric", "data.types"):
        assert part in done.stderr
