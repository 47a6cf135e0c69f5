from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import TINY, RunTiny, executed, silent

from fedstrata.core.client import Client
from fedstrata.core.files import hash_of
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import ClientInfo, Plan, Update
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import open_run
from fedstrata.engine.sampling import sample
from fedstrata.methods import METHODS
from fedstrata.methods.layer_skipping import LayerSkipping

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
    run = run_tiny(f"method={{name: {method}}}", "data.split.server=2")
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


def test_a_report_is_written_once_nothing_else_has_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(Run, "_report", lambda run: done.append("report"))
    monkeypatch.setattr(LocalEngine, "close", lambda engine: done.append("close"))
    executed(tmp_path / "run", [*TINY, "federation.rounds=1", "data.synthetic.notes=6"])
    assert done == ["close", "report"]
