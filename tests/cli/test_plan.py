"""`fedstrata plan`: what it prints of a plan; tests/planning holds plans to what runs do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import TINY, Call

from fedstrata.core.settings.source import Source, read_source
from fedstrata.methods import METHODS
from fedstrata.planning.plan import RunPlan, make_plan

SCHEMA: dict[str, set[str] | None] = {
    **dict.fromkeys((
        "name", "method", "travels", "task", "metric", "metrics", "device", "threads", "workers", "rounds",
        "trainable_parameters", "groups", "secure_aggregation", "privacy", "cut", "limit", "warnings",
    )),
    "clients": {"site-1", "site-2", "site-3"},
    "model": {"name", "parameters", "blocks", "bytes"},
    "communication": {
        "bytes_up", "bytes_down", "bytes_up_per_client_round", "bytes_down_per_client_round",
        "percent_of_full_model", "full_model_bytes_up",
    },
    "time": {
        "preparation_seconds", "total_seconds", "train_seconds", "serve_seconds", "evaluate_seconds",
        "engine_overhead_seconds", "finish_seconds", "seconds_per_round", "seconds_per_client_round",
    },
    "memory": {"peak_rss_bytes", "peak_gpu_bytes", "available_rss_bytes", "available_gpu_bytes"},
    "disk": {
        "bytes", "checkpoints_bytes", "stores_bytes", "caches_bytes", "models_bytes", "releases_bytes",
        "ledgers_bytes", "sums_bytes", "record_bytes", "report_bytes", "free_bytes",
    },
    "rehearsal": {"seconds", "rounds", "steps"},
}  # fmt: skip
"""Keys of the JSON form, which programs read."""

PATIENTS = ("method={name: layer_skipping, top: 1}", "data.synthetic.notes_per_patient=3")


@pytest.fixture(scope="module")
def made() -> RunPlan:
    """The plan of a run whose notes name patients."""
    return make_plan(read_source(None, [*TINY, *PATIENTS]), seconds=0.0)


def printed(call: Call, monkeypatch: pytest.MonkeyPatch, plan: RunPlan, *options: str) -> str:
    """What the command prints of a plan."""
    monkeypatch.setattr("fedstrata.planning.plan.make_plan", lambda source, **more: plan)
    done = call("plan", *options)
    assert (done.status, done.err) == (0, "")
    return done.out


def test_configuration_options_and_overrides_reach_the_plan(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: RunPlan
) -> None:
    given: list[Any] = []

    def plan(source: Source, **more: Any) -> RunPlan:
        given.extend((source.values["name"], source.values["seed"], more))
        return made

    monkeypatch.setattr("fedstrata.planning.plan.make_plan", plan)
    (tmp_path / "site.yaml").write_text("name: mine\nseed: 1\n")
    assert call("plan", "site.yaml", "seed=2", "--seconds", "0.5", "--out", "study").status == 0
    assert given == ["mine", 2, {"folder": Path("study"), "seconds": 0.5}]


def test_the_json_form_has_its_keys_and_nothing_else_is_printed(
    call: Call, monkeypatch: pytest.MonkeyPatch, made: RunPlan
) -> None:
    shown = json.loads(printed(call, monkeypatch, made, "--json"))
    assert shown.keys() == SCHEMA.keys()
    for key, inner in SCHEMA.items():
        if inner is not None:
            assert shown[key].keys() == inner
    group = {"name", "parameters", "trainable_parameters", "bytes", "bytes_down", "bytes_up"}
    assert shown["groups"][0].keys() == group
    keys = {"documents", "patients", "examples", "steps", "rounds", "seconds"}
    assert shown["clients"]["site-1"].keys() == keys
    assert shown["memory"]["peak_rss_bytes"] > 1e8


@pytest.mark.claim("security_review#no-epsilon")
def test_people_see_what_trains_travels_and_costs_and_no_epsilon_without_privacy(
    call: Call, monkeypatch: pytest.MonkeyPatch, made: RunPlan
) -> None:
    assert made.privacy is None
    shown = printed(call, monkeypatch, made)
    assert "epsilon" not in shown
    for part in ("blocks 0 to 1", "block 2", "site-3", "steps a round", "judged by f1"):
        assert part in shown
    for line in ("trains ", "travels ", "time ", "memory ", "disk "):
        assert any(text.startswith(line) for text in shown.splitlines())
    text = " ".join(shown.split())
    for client in made.clients.values():
        assert client.patients is not None
        assert f" {client.documents['train']} ({client.patients['train']}) " in text


PRIVATE = (
    "task.types=[problem, test, treatment, drug]",
    "privacy={mechanism: local, unit: document, units: {site-1: 12, site-2: 12, site-3: 12}, epsilon: 8, "
    "delta: 0.001, expected_batch: 4, steps: 2}",
)


@pytest.mark.slow
def test_people_see_what_a_private_run_will_spend(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_plan(read_source(None, [*TINY, *PRIVATE]), seconds=0.0)
    assert made.privacy is not None
    text = " ".join(printed(call, monkeypatch, made).split())
    for part in ("by document", "zero-out adjacency", "delta 0.001"):
        assert part in text
    for name, own in made.privacy.clients.items():
        assert own.found == made.clients[name].documents["train"]
        assert f" {name} │ 12 │ {own.found} │" in text
    assert re.search(rf"sigma {made.privacy.sigma:g} .* norm 1, over 4 expected", text)
    assert re.search(r"4 turns of 2 steps, .*\b2 ", text)
    assert re.search(r"warning: .* hopeless: ", text)
    assert re.search(r"warning: .* declared \(site-1 ", text)


def test_pooled_training_travels_as_notes(call: Call, monkeypatch: pytest.MonkeyPatch, made: RunPlan) -> None:
    nothing = dict.fromkeys(made.communication)
    pooled = replace(made, travels=METHODS["centralized"].travels, communication=nothing)
    shown = printed(call, monkeypatch, pooled)
    assert re.search("^travels  every note", shown, re.MULTILINE)
