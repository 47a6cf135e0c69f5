from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import TINY, RunTiny, silent

from fedstrata.core.client import Client
from fedstrata.core.files import hash_of
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import ClientInfo, Plan, State, Update
from fedstrata.engine.run_folder import open_run
from fedstrata.engine.sampling import sample
from fedstrata.methods import METHODS
from fedstrata.methods.layer_skipping import LayerSkipping
from fedstrata.planning.plan import make_plan
from fedstrata.record.costs import COSTS
from fedstrata.wire import frame

SUMMARY_KEYS = {
    **dict.fromkeys(("method", "task", "seed", "rounds", "clients", "degenerate", "energy_joules"), ""),
    **dict.fromkeys(("state", "corrupt", "limit", "cut", "saved", "trainable_parameters"), ""),
    "secure_aggregation": "",
    "model": "name, parameters, blocks, bytes",
    "floors": "look-up table, untrained model",
    "floor": "name, value, beaten",
    "metrics": "global, best, clients, mean_client, external, intervals, mean_client_intervals, weighted, "
    "external_intervals, trained",
    "communication": "bytes_up, bytes_down, bytes_up_per_client_round, percent_of_full_model",
    "failures": "clients, abandoned_rounds",
    "convergence": "metric, rounds_to_90_percent",
    "time": "total_seconds, train_seconds, serve_seconds, engine_overhead_seconds, seconds_per_client_round, "
    "simulated_seconds",
    "memory": "peak_rss_bytes, peak_gpu_bytes, device_mean_bytes, device_peak_bytes",
    "privacy": "mechanism, unit, adjacency, epsilon, delta, sigma, clip, noise, clients",
}


# Whose runs differ most: a shared part, models of clients' own, the server's training between clients.
TELLING = ("local_only", "fl_llama")


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in TELLING else pytest.mark.slow) for name in METHODS]
)
def test_a_run_leaves_what_the_design_says(run_tiny: RunTiny, method: str) -> None:
    run = run_tiny(f"method={{name: {method}}}", "data.split.server=2", "federation.floors=true")
    assert run.summary.keys() == SUMMARY_KEYS.keys()
    for key, inner in SUMMARY_KEYS.items():
        if inner:
            assert run.summary[key].keys() == set(inner.split(", "))
    assert json.loads((run.folder / "summary.json").read_text()) == run.summary
    assert run.summary["saved"] == {
        path.relative_to(run.folder).as_posix(): hash_of(path)
        for path in sorted(run.folder.rglob("model/*.safetensors"))
    }
    assert set(run.summary["metrics"]["clients"]) == {"site-1", "site-2", "site-3"}
    assert {"f1", "precision", "recall", "f1/problem"} <= run.summary["metrics"]["global"].keys()
    assert [event["round"] for event in run.of("round")] == [1, 2]
    assert all(
        event["seconds"] >= event["train_seconds"] + event["serve_seconds"] for event in run.of("round")
    )
    assert all((event["serve_seconds"] > 0) == (method == "fl_llama") for event in run.of("round"))
    leftovers = [path for path in run.folder.rglob("*") if ".tmp" in path.name or path.name.startswith(".")]
    assert not leftovers


def test_the_resolved_configuration_gives_the_same_run_again(run_once: RunTiny, tmp_path: Path) -> None:
    first = run_once("federation.rounds=1")
    settings = read_source(first.folder / "config.yaml", [])
    again = open_run(settings, tmp_path / "again", silent, resume=False)
    assert again.execute()["metrics"] == first.summary["metrics"]


def test_the_model_is_as_loaded_between_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_run(
        read_source(None, [*TINY, "data.synthetic.notes=6"]), tmp_path / "run", silent, resume=False
    )
    before = opened.experiment.model.snapshot(opened.experiment.model.layout.all)
    train, seen = LayerSkipping.train, []

    def watched(method: LayerSkipping, plan: Plan, client: Client, rng: Seed) -> Update:
        seen.append(all(torch.equal(t, before[n]) for n, t in client.model.tensors(before).items()))
        return train(method, plan, client, rng)

    monkeypatch.setattr(LayerSkipping, "train", watched)
    opened.execute()
    assert seen == [True] * 6


def test_only_sampled_clients_take_part_and_some_rounds_are_not_scored(run_once: RunTiny) -> None:
    run = run_once("federation={sample: 0.34, rounds: 4, evaluate_every: 2, floors: false}")
    assert ["global" in event for event in run.of("round")] == [False, True, False, True]
    cohorts = [tuple(event["exchanges"]) for event in run.of("round")]
    assert all(len(cohort) == 1 for cohort in cohorts)
    assert len(set(cohorts)) > 1
    assert set(run.summary["metrics"]["clients"]) == {"site-1", "site-2", "site-3"}


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(0, 5))
def test_sampling_is_without_replacement_and_reproducible(clients: int, share: float, seed: int) -> None:
    sites = [ClientInfo(str(number), 1) for number in range(clients)]
    drawn = sample(sites, share, Seed(seed))
    assert len(drawn) == max(1, round(share * clients))
    assert len({site.id for site in drawn}) == len(drawn)
    assert drawn == sample(sites, share, Seed(seed))


def test_a_run_without_validation_documents_is_not_scored_until_the_end(run_once: RunTiny) -> None:
    run = run_once(
        "data.split={train: 0.7, validation: 0.0, test: 0.3}", "data.synthetic.notes=6", "federation.rounds=1"
    )
    assert run.summary["metrics"]["best"] is None
    assert run.summary["convergence"]["rounds_to_90_percent"] is None
    assert run.summary["metrics"]["global"]["f1"] >= 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["{name: layer_skipping, top: 1}", "{name: fl_llama, mode: hierarchical}"])
def test_a_seed_gives_one_result_on_a_gpu_too(run_tiny: RunTiny, method: str) -> None:
    first, again = (run_tiny("device=cuda", f"method={method}", out=name) for name in ("first", "again"))
    assert all(torch.equal(tensor, again.state.tensors[name]) for name, tensor in first.state.tensors.items())
    assert first.summary["memory"]["peak_gpu_bytes"] > 0


UNTIED = (
    "model.config={model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, "
    "num_attention_heads: 4, num_key_value_heads: 2}"
)


def test_own_models_are_scored_everywhere_unless_they_are_many(run_once: RunTiny) -> None:
    own = ("method={name: fedper}", UNTIED, "federation.rounds=1", "federation.floors=false")
    dealt = ("data.synthetic.notes=42", "federation.sample=0.1", "partition={by: iid, clients: 21}")
    few, never, many = (
        run_once(*own, *more).summary["metrics"]
        for more in ((), ("federation.score_everywhere=false",), dealt)
    )
    assert few["global"]["f1"] >= 0
    assert never["global"] is many["global"] is None
    assert (never["mean_client"], never["clients"]) == (few["mean_client"], few["clients"])
    assert len(many["clients"]) == 21


@pytest.mark.parametrize(
    "method", ["fedper", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "fedlora"))]
)
def test_no_rounds_score_the_model_as_it_is(run_tiny: Any, method: str) -> None:
    done = run_tiny("federation.rounds=0", f"method={{name: {method}}}", report=True)
    summary = done.summary
    assert summary["rounds"] == 0
    assert 0.0 <= summary["metrics"]["mean_client"]["f1"] <= 1.0
    assert summary["communication"]["bytes_up"] == summary["communication"]["bytes_down"] == 0
    assert summary["time"]["train_seconds"] == 0
    assert [event["event"] for event in done.events][-1] == "final"
    assert (done.folder / "report.html").is_file()
    assert done.of("round") == []
    assert [*done.folder.glob("**/model/*model.safetensors")]
    costs = {name: value(summary) for name, (_, value) in COSTS.items()}  # as a comparison asks for them
    assert costs["train_seconds_per_round"] is None
    assert costs["megabytes_sent"] == 0.0


def test_a_plan_of_no_rounds_sends_and_trains_nothing() -> None:
    none = [*TINY, "federation.rounds=0", "federation.score_clients=true"]
    plan = make_plan(read_source(None, none), seconds=0.01)
    assert plan.communication["bytes_up"] == plan.communication["bytes_down"] == 0
    assert plan.time["train_seconds"] == plan.time["seconds_per_round"] == 0
    assert plan.time["total_seconds"] > 0


BRIEF = ("federation.rounds=1", "federation.floors=false", "data.synthetic.notes=6")


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        ("{name: layer_skipping, top: 1, head: local}", {"block 2", "final norm"}),
        ("{name: fedavg}", {"embedding", "block 0", "block 1", "block 2", "final norm", "head"}),
    ],
)
def test_groups_are_whole_and_add_up_to_what_was_sent(run_once: RunTiny, method: str, sent: set[str]) -> None:
    run = run_once(f"method={method}", *BRIEF, "federation.sample=0.67")
    (start,) = run.of("run")
    whole = start["groups"]
    assert list(whole) == ["embedding", "block 0", "block 1", "block 2", "final norm", "head"]
    assert 0 < start["model"]["bytes"] - sum(whole.values()) < 10_000  # the header
    for event in run.of("round"):
        clients = len(event["exchanges"])
        assert clients == 2
        assert event["groups_up"] == {group: clients * whole[group] for group in whole if group in sent}
        headers = sum(client["bytes_up"] for client in event["exchanges"].values())
        assert 0 < headers - sum(event["groups_up"].values()) < clients * 10_000


def test_what_is_no_parameter_is_other(run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    train = LayerSkipping.train

    def with_sketch(self, plan, client, rng) -> Update:
        update = train(self, plan, client, rng)
        return Update({**update.tensors, "sketch": torch.zeros(5)}, update.values, weight=update.weight)

    def without_sketch(self, state: State, cohort, rng) -> State:
        mean = cohort.mean("train", lambda _: Plan(state.tensors)).tensors
        return State({name: mean[name] for name in state.tensors})

    monkeypatch.setattr(LayerSkipping, "train", with_sketch)
    monkeypatch.setattr(LayerSkipping, "round", without_sketch)
    run = run_tiny(*BRIEF)
    assert run.of("round")[0]["groups_up"]["other"] == 3 * 20


def test_tensor_bytes_are_those_of_the_bodies() -> None:
    message = Update({"a": torch.zeros(3, dtype=torch.bfloat16), "b": torch.zeros(0)}, {"loss": 0.5})
    assert frame.encode(message).tensor_bytes() == {"a": 6, "b": 0}
