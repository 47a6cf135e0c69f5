from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import TINY, Call, Told

SCHEMA = {
    "name": None,
    "method": None,
    "travels": None,
    "task": None,
    "metric": None,
    "metrics": None,
    "device": None,
    "threads": None,
    "workers": None,
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
    "secure_aggregation": None,
    "time": {
        "preparation_seconds",
        "total_seconds",
        "train_seconds",
        "serve_seconds",
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
        "releases_bytes",
        "ledgers_bytes",
        "sums_bytes",
        "record_bytes",
        "report_bytes",
        "free_bytes",
    },
    "privacy": None,
    "cut": None,
    "rehearsal": {"seconds", "rounds", "steps"},
    "limit": None,
    "warnings": None,
}


@pytest.fixture
def plan(call: Call, tmp_path: Path) -> Call:
    """Plans a tiny run in a folder in which nothing is left behind."""
    (tmp_path / "tiny.yaml").write_text("{}\n")

    def run(*arguments: str) -> Told:
        told = call("plan", tmp_path / "tiny.yaml", *TINY, "threads=1", "--seconds", "0", *arguments)
        assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]
        return told

    return run


def test_the_json_form_has_its_keys_and_nothing_else_is_printed(plan: Call) -> None:
    done = plan("--json")
    assert done.status == 0, done.err
    made = json.loads(done.out)
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
    keys = {"documents", "patients", "examples", "steps", "rounds", "seconds"}
    assert made["clients"]["site-1"].keys() == keys
    assert made["memory"]["peak_rss_bytes"] > 1e8


def test_people_see_what_trains_travels_and_costs(plan: Call) -> None:
    done = plan("method={name: layer_skipping, top: 1}")
    assert done.status == 0, done.err
    for part in ("blocks 0 to 1", "block 2", "site-3", "steps a round", "judged by f1"):
        assert part in done.out
    for line in ("trains ", "travels ", "time ", "memory ", "disk "):
        assert any(text.startswith(line) for text in done.out.splitlines())


def test_people_see_how_many_patients_a_client_trains_on(plan: Call) -> None:
    made = json.loads(plan("--json", "data.synthetic.notes_per_patient=3").out)["clients"]
    shown = " ".join(plan("data.synthetic.notes_per_patient=3").out.split())
    for client in made.values():
        count, patients = client["documents"]["train"], client["patients"]["train"]
        assert 0 < patients < count
        assert f" {count} ({patients}) " in shown


PRIVATE = (
    "task.types=[problem, test, treatment, drug]",
    "privacy={mechanism: local, unit: document, units: {site-1: 12, site-2: 12, site-3: 12}, epsilon: 8, "
    "delta: 0.001, expected_batch: 4, steps: 2}",
)


@pytest.mark.slow
def test_people_see_what_a_private_run_will_spend(plan: Call) -> None:
    made = json.loads(plan("--json", *PRIVATE).out)
    shown = plan(*PRIVATE)
    assert shown.status == 0, shown.err
    text = " ".join(shown.out.split())
    for part in ("by document", "zero-out adjacency", "delta 0.001"):
        assert part in text
    for name, own in made["privacy"]["clients"].items():
        assert own["found"] == made["clients"][name]["documents"]["train"]
        assert f" {name} │ 12 │ {own['found']} │" in text
    assert re.search(rf"sigma {made['privacy']['sigma']:g} .* norm 1, over 4 expected", text)
    assert re.search(r"4 turns of 2 steps, .*\b2 ", text)
    assert re.search(r"warning: .* hopeless: ", text)
    assert re.search(r"warning: .* declared \(site-1 ", text)


@pytest.mark.claim("security_review#no-epsilon")
def test_without_privacy_a_plan_has_no_epsilon(plan: Call) -> None:
    assert json.loads(plan("--json").out)["privacy"] is None
    assert "epsilon" not in plan().out


def test_pooled_training_travels_as_notes(plan: Call) -> None:
    done = plan("method={name: centralized}")
    assert re.search("^travels  every note", done.out, re.MULTILINE)


def test_every_problem_is_listed_at_once(plan: Call) -> None:
    wrong = ["training.epochs=0", "method={name: layer_skipping, top: 9}", "nonsense=1"]
    done = plan(*wrong, "federation.metric=auc", "data.types=[gene]")
    assert done.status == 2
    assert "5 problems" in done.err
    for part in ("training.epochs", "method.top", "nonsense", "federation.metric", "data.types"):
        assert part in done.err
