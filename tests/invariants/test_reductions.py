"""What each method's card says it reduces to, held to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import TINY, Finished, RunTiny, assert_same_tensors

from fedstrata.client.store import ClientStore
from fedstrata.core.settings.source import read_source
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.prepare import prepare

FEDAVG = "method={name: fedavg}"


ONCE = ("federation.rounds=1", "federation.floors=false")


def test_fedprox_with_mu_0_is_fedavg(run_once: RunTiny) -> None:
    fedavg, fedprox = run_once(FEDAVG, *ONCE), run_once("method={name: fedprox, mu: 0.0}", *ONCE)
    assert_same_tensors(fedavg.state.tensors, fedprox.state.tensors)
    assert fedavg.summary["metrics"]["global"] == fedprox.summary["metrics"]["global"]


def test_fedprox_with_mu_above_0_is_not_fedavg_and_stays_nearer_to_the_start(run_once: RunTiny) -> None:
    free = run_once(FEDAVG, *ONCE)
    held = run_once("method={name: fedprox, mu: 100.0}", *ONCE)
    start = prepare(read_source(None, [*TINY, FEDAVG])).model.snapshot(free.state.tensors)

    def distance(state) -> float:
        return sum(float((state.tensors[name] - start[name]).norm()) for name in state.tensors)

    assert distance(held.state) < 0.9 * distance(free.state)


@pytest.mark.parametrize("top", [pytest.param("3", marks=pytest.mark.slow), "1.0"])
def test_layer_skipping_with_every_block_is_fedavg(run_once: RunTiny, top: str) -> None:
    fedavg = run_once(FEDAVG, *ONCE)
    whole = run_once(f"method={{name: layer_skipping, top: {top}}}", *ONCE)
    assert_same_tensors(fedavg.state.tensors, whole.state.tensors)
    assert whole.summary["communication"] == fedavg.summary["communication"]


def test_with_one_client_fedavg_local_only_and_centralised_training_are_one(
    run_tiny: RunTiny, tmp_path: Path
) -> None:
    """The one site is called as the pooled client is, since a client's name is part of its seeds."""
    notes = [replace(document, site="pooled") for document in generate(seed=1, sites=1, notes=6)]
    write(notes, tmp_path / "notes", "jsonl")
    data = f"data={{format: jsonl, path: {tmp_path / 'notes'}, types: [problem, test, treatment, drug]}}"
    runs = {
        name: run_tiny(f"method={{name: {name}}}", data, *ONCE, out=name)
        for name in ("fedavg", "centralized", "local_only")
    }
    assert_same_tensors(runs["fedavg"].state.tensors, runs["centralized"].state.tensors)
    own = ClientStore(runs["local_only"].folder / "clients" / "pooled", 1).read().tensors
    # FedAvg's mean of one multiplies and divides by n_k in float32, which may round.
    for name, tensor in runs["fedavg"].state.tensors.items():
        torch.testing.assert_close(tensor, own[name], rtol=1e-4, atol=1e-6)


def test_accumulating_two_half_batches_is_one_whole_batch(run_once: RunTiny) -> None:
    common = ("training.optimizer=sgd", "training.learning_rate=0.5", *ONCE)
    whole = run_once("training.batch_size=8", *common)
    halves = run_once("training.batch_size=4", "training.accumulation=2", *common)
    for name, tensor in whole.state.tensors.items():
        torch.testing.assert_close(tensor, halves.state.tensors[name], rtol=1e-4, atol=1e-6)


def test_the_same_seed_gives_the_same_run_and_another_does_not(run_tiny: RunTiny, run_once: RunTiny) -> None:
    first, again, other = run_once(), run_tiny(), run_once("seed=5")
    assert_same_tensors(first.state.tensors, again.state.tensors)
    assert first.summary["metrics"] == again.summary["metrics"]
    assert any(
        not torch.equal(first.state.tensors[name], other.state.tensors[name]) for name in first.state.tensors
    )


def test_fedper_is_layer_skipping_with_every_block_and_a_local_head(run_once: RunTiny) -> None:
    fedper = run_once("method={name: fedper}")
    whole = run_once("method={name: layer_skipping, top: 3, head: local}")
    assert_same_tensors(fedper.state.tensors, whole.state.tensors)
    assert fedper.summary["metrics"] == whole.summary["metrics"]


@pytest.mark.slow
def test_automatic_depth_is_the_fixed_depth_it_chose(run_once: RunTiny) -> None:
    chosen = run_once("method={name: layer_skipping, top: {share: 0.5, budget: 0.9}}")
    k = chosen.state.values["top"]
    assert 1 <= k < 3
    fixed = run_once(f"method={{name: layer_skipping, top: {k}}}")
    assert_same_tensors(chosen.state.tensors, fixed.state.tensors)
    assert chosen.summary["metrics"] == fixed.summary["metrics"]
    assert chosen.summary["trainable_parameters"] == fixed.summary["trainable_parameters"]


SGD = ("training.optimizer=sgd", "training.learning_rate=0.1", "federation.floors=false")


def assert_close(one: Finished, other: Finished) -> None:
    """To rounding, which AdamW would make larger: FedTLU averages changes, the others weights."""
    assert one.state.tensors.keys() == other.state.tensors.keys()
    for name, tensor in one.state.tensors.items():
        torch.testing.assert_close(tensor, other.state.tensors[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        "portion: 1.0",
        pytest.param("update: full", marks=pytest.mark.slow),
        pytest.param("portion: 1.0, selection: sketched", marks=pytest.mark.slow),
    ],
)
def test_fedtlu_with_every_block_is_fedavg(run_tiny: RunTiny, run_once: RunTiny, settings: str) -> None:
    fedavg = run_once("method={name: fedavg}", *SGD)
    whole = run_tiny(f"method={{name: fedtlu, {settings}}}", *SGD, out="whole")
    assert_close(fedavg, whole)


@pytest.mark.parametrize("proximal", ["coupled", pytest.param("decoupled", marks=pytest.mark.slow)])
def test_fedtlu_with_every_block_and_a_proximal_term_is_fedprox(run_once: RunTiny, proximal: str) -> None:
    term = f"mu: 1.0, proximal: {proximal}"
    fedprox = run_once(f"method={{name: fedprox, {term}}}", *SGD)
    whole = run_once(f"method={{name: fedtlu, portion: 1.0, {term}}}", *SGD)
    assert_close(fedprox, whole)


def test_wide_sketches_pick_what_exact_scores_do_and_clients_that_were_away_are_brought_up_to_date(
    run_once: RunTiny,
) -> None:
    """With two of three clients a round everybody misses some; the exact run always sends the whole model."""
    sketches = "method={name: fedtlu, portion: 0.34, selection: sketched, width: 100000}"
    common = ("federation={rounds: 3, sample: 0.67, evaluate_every: 3, floors: false}",)
    exact = run_once("method={name: fedtlu, portion: 0.34}", *common)
    sketched = run_once(sketches, *common)
    picked = [[event["state"]["merged_blocks"] for event in run.of("round")] for run in (exact, sketched)]
    assert picked[0] == picked[1]
    assert_close(exact, sketched)
    took_part = [set(event["exchanges"]) for event in sketched.of("round")]
    assert any(took_part[0] - second for second in took_part[1:])  # somebody was away
