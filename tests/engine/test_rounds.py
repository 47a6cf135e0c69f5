from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import TINY, RunTiny, executed, silent
from transformers import AutoModelForTokenClassification, AutoTokenizer

from fedstrata.core.files import hash_of
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import ClientInfo, Plan, State, Update
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import open_run
from fedstrata.engine.sampling import sample
from fedstrata.methods import METHODS

SUMMARY_KEYS = {
    "method": None,
    "task": None,
    "model": {"name", "parameters", "blocks", "bytes"},
    "seed": None,
    "rounds": None,
    "clients": None,
    "floors": {"look-up table", "untrained model"},
    "floor": {"name", "value", "beaten"},
    "degenerate": None,
    "metrics": {
        "global",
        "best",
        "clients",
        "mean_client",
        "external",
        "intervals",
        "mean_client_intervals",
        "weighted",
        "external_intervals",
        "trained",
    },
    "trainable_parameters": None,
    "state": None,
    "communication": {"bytes_up", "bytes_down", "bytes_up_per_client_round", "percent_of_full_model"},
    "failures": {"clients", "abandoned_rounds"},
    "corrupt": None,
    "limit": None,
    "cut": None,
    "convergence": {"metric", "rounds_to_90_percent"},
    "time": {
        "total_seconds",
        "train_seconds",
        "serve_seconds",
        "engine_overhead_seconds",
        "seconds_per_client_round",
        "simulated_seconds",
    },
    "memory": {"peak_rss_bytes", "peak_gpu_bytes", "device_mean_bytes", "device_peak_bytes"},
    "energy_joules": None,
    "saved": None,
    "secure_aggregation": None,
    "privacy": {"mechanism", "unit", "adjacency", "epsilon", "delta", "sigma", "clip", "noise", "clients"},
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
        if inner is not None:
            assert run.summary[key].keys() == inner
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


def test_the_saved_model_loads_with_transformers_and_holds_the_global_state(run_once: RunTiny) -> None:
    run = run_once("method={name: layer_skipping, top: 1}", "federation.rounds=1")
    model = AutoModelForTokenClassification.from_pretrained(run.folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(run.folder / "model")
    parameters = dict(model.named_parameters())
    assert all(torch.equal(parameters[name], tensor) for name, tensor in run.state.tensors.items())
    assert model.config.id2label[1] == "B-drug"
    assert model(**tokenizer("Denies chest pain.", return_tensors="pt")).logits.shape[-1] == 9


def test_a_personal_method_saves_a_model_for_every_client(run_once: RunTiny) -> None:
    run = run_once("method={name: local_only}", "federation.floors=false")
    assert not (run.folder / "model").exists()
    weights = [
        AutoModelForTokenClassification.from_pretrained(run.folder / "clients" / site / "model").score.weight
        for site in ("site-1", "site-2")
    ]
    assert not torch.equal(*weights)


def test_clients_take_turns_without_leaving_traces(run_once: RunTiny, tmp_path: Path) -> None:
    """A client's result does not depend on who was before it: the others are left out of the second run."""
    everybody = run_once("method={name: local_only}", "federation.floors=false")
    with_one_only = {}

    class OnlyTheLast:
        """Local-only, for the last client alone."""

        def __init__(self, method) -> None:
            self._method = method

        def __getattr__(self, name: str):
            return getattr(self._method, name)

        def round(self, state: State, cohort, rng: Seed) -> State:
            cohort.clients = cohort.clients[-1:]
            return self._method.round(state, cohort, rng)

    def listen(event: str, facts: Mapping[str, Any]) -> None:
        with_one_only.update(facts if event == "client" else {})

    source = read_source(None, [*TINY, "method={name: local_only}", "federation.floors=false"])
    opened = open_run(source, tmp_path / "alone", listen, resume=False)
    object.__setattr__(opened.experiment, "method", OnlyTheLast(opened.experiment.method))
    opened.execute()
    last = [event for event in everybody.of("client") if event["round"] == 2][-1]
    assert with_one_only["client"] == last["client"] == "site-3"
    assert with_one_only["loss"] == last["loss"]


def test_the_model_is_as_loaded_between_clients(tmp_path: Path) -> None:
    experiment = prepare(read_source(None, [*TINY, "data.synthetic.notes=6", "federation.floors=false"]))
    before = experiment.model.snapshot(experiment.model.layout.all)
    seen = []

    class Watching(type(experiment.method)):
        def train(self, plan: Plan, client, rng: Seed) -> Update:
            seen.append(all(torch.equal(t, before[n]) for n, t in client.model.tensors(before).items()))
            return super().train(plan, client, rng)

    object.__setattr__(experiment, "method", Watching(**dict(experiment.method)))
    Run(experiment, tmp_path, lambda event, facts: None, LocalEngine).execute()
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


def test_training_learns(run_once: RunTiny) -> None:
    fast = ("training.learning_rate=0.01", "training.epochs=2")
    run = run_once("method={name: fedavg}", "federation={rounds: 3, evaluate_every: 3, floors: false}", *fast)
    losses = [event["loss"] for event in run.of("round")]
    assert losses[-1] < 0.8 * losses[0]


def test_a_run_without_validation_documents_is_not_scored_until_the_end(run_once: RunTiny) -> None:
    run = run_once(
        "data.split={train: 0.7, validation: 0.0, test: 0.3}", "data.synthetic.notes=6", "federation.rounds=1"
    )
    assert run.summary["metrics"]["best"] is None
    assert run.summary["convergence"]["rounds_to_90_percent"] is None
    assert run.summary["metrics"]["global"]["f1"] >= 0


def test_weights_are_numbers_of_training_examples(run_once: RunTiny) -> None:
    run = run_once("federation.rounds=1")
    clients = run.of("client")
    mean = sum(event["loss"] * event["examples"] for event in clients) / sum(
        event["examples"] for event in clients
    )
    assert run.of("round")[0]["loss"] == pytest.approx(mean)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["{name: layer_skipping, top: 1}", "{name: fl_llama, mode: hierarchical}"])
def test_a_seed_gives_one_result_on_a_gpu_too(run_tiny: RunTiny, method: str) -> None:
    first, again = (run_tiny("device=cuda", f"method={method}", out=name) for name in ("first", "again"))
    assert all(torch.equal(tensor, again.state.tensors[name]) for name, tensor in first.state.tensors.items())
    assert first.summary["memory"]["peak_gpu_bytes"] > 0


def test_a_report_is_written_once_nothing_else_has_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(Run, "_report", lambda run: done.append("report"))
    monkeypatch.setattr(LocalEngine, "close", lambda engine: done.append("close"))
    executed(tmp_path / "run", [*TINY, "federation.rounds=1", "data.synthetic.notes=6"])
    assert done == ["close", "report"]
