"""Robust rules in real tiny runs: what they make of updates, the record, resuming, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support import TINY, RunTiny, assert_same_tensors, silent, watch_training

from fedstrata.core.client import Client
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan, Update
from fedstrata.engine.checkpoint import Checkpoints
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run import Run
from fedstrata.methods import METHODS
from fedstrata.planning.plan import make_plan

FIVE = ("data.synthetic.sites=5", "data.synthetic.notes=20", "federation.floors=false")
"""Five sites: as many as Krum needs against one hostile client."""


FEW = "data.synthetic.notes=10"


def fedavg(aggregation: str) -> str:
    return f"method={{name: fedavg, aggregation: {aggregation}}}"


@pytest.mark.parametrize("value", ["mean", {"rule": "mean"}, {}])
def test_the_mean_by_name_is_the_mean_by_default(value: object) -> None:
    assert METHODS["fedavg"](aggregation=value) == METHODS["fedavg"]()


@pytest.mark.parametrize("method", ["layer_skipping", pytest.param("fedper", marks=pytest.mark.slow)])
def test_the_median_of_what_clients_send(tmp_path: Path, method: str) -> None:
    overrides = [*TINY, f"method={{name: {method}, aggregation: median}}", "federation.floors=false"]
    experiment = prepare(read_source(None, overrides))
    sent: list[dict[str, torch.Tensor]] = []

    def after(plan: Plan, client: Client, update: Update) -> None:
        assert "aggregation" not in plan.values
        sent.append({name: tensor.clone() for name, tensor in update.tensors.items()})

    watch_training(experiment, after)
    Run(experiment, tmp_path, silent, LocalEngine).execute()
    _, state = Checkpoints(tmp_path / "checkpoints").load(2)
    assert state.values["aggregation"] == {"updates": 3, "not_finite": []}
    assert state.tensors.keys() == sent[0].keys()
    for name, tensor in state.tensors.items():
        expected = np.median([update[name].numpy() for update in sent[3:]], axis=0)
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["cosine", "norm_clipping", "krum", "multi_krum", "median", "trimmed_mean"])
def test_a_client_that_sends_a_thousandfold_negative_is_withstood(run_once: RunTiny, rule: str) -> None:
    corrupt = "federation.corrupt={share: 0.2, kind: sign_flip, strength: 1000.0}"
    run = run_once(fedavg(rule), corrupt, *FIVE)
    (hostile,) = run.summary["corrupt"]["clients"]
    for event in run.of("round"):
        facts = event["state"]["aggregation"]
        assert facts["updates"] == 5
        assert facts["not_finite"] == []
        assert hostile not in facts.get("chosen", [])
        assert facts.get("left_out", [hostile]) == [hostile]
        assert hostile in facts.get("clipped", [hostile])
    losses = [event["loss"] for event in run.of("client") if event["client"] != hostile]
    assert max(losses[4:]) < max(losses[:4])  # with the mean, the second round begins from a ruin
    assert run.summary["state"]["aggregation"] == run.of("round")[-1]["state"]["aggregation"]


@pytest.mark.slow
def test_fedtlu_merges_blocks_of_what_a_rule_makes(run_once: RunTiny) -> None:
    corrupt = "federation.corrupt={share: 0.2, kind: sign_flip, strength: 1000.0}"
    for portion in ("0.34", "schedule"):
        method = f"method={{name: fedtlu, portion: {portion}, aggregation: krum}}"
        run = run_once(method, corrupt, *FIVE)
        (hostile,) = run.summary["corrupt"]["clients"]
        states = [event["state"] for event in run.of("round")]
        assert all(state["aggregation"]["chosen"] != [hostile] for state in states)
        assert all(len(state["merged_blocks"]) == (1 if portion == "0.34" else 2) for state in states)
        losses = [event["loss"] for event in run.of("client") if event["client"] != hostile]
        assert max(losses[4:]) < max(losses[:4])


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["median", "{rule: multi_krum, keep: 1}"])
def test_fedtlu_with_every_block_and_a_rule_is_fedavg_with_it(run_once: RunTiny, rule: str) -> None:
    sgd = ("training.optimizer=sgd", "training.learning_rate=0.1", *FIVE)  # AdamW would make rounding larger
    runs = [
        run_once(f"method={{name: {method}, aggregation: {rule}}}", *sgd)
        for method in ("fedavg", "fedtlu, portion: 1.0")
    ]
    for name, tensor in runs[0].state.tensors.items():
        torch.testing.assert_close(tensor, runs[1].state.tensors[name], rtol=1e-4, atol=1e-6)


def test_updates_that_are_not_finite_are_left_out_and_recorded(run_once: RunTiny) -> None:
    corrupt = "federation.corrupt={share: 0.2, kind: scale, strength: 1e45}"
    run = run_once(fedavg("trimmed_mean"), corrupt, *FIVE, FEW)
    assert run.of("round")[1]["state"]["aggregation"]["not_finite"] == run.summary["corrupt"]["clients"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.state.tensors.values())


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["norm_clipping", "multi_krum"])
def test_resumed_is_uninterrupted_and_memory_changes_nothing(run_tiny: RunTiny, rule: str) -> None:
    overrides = (fedavg(rule), "federation.corrupt={share: 0.2, kind: scale}", *FIVE)
    whole = run_tiny(*overrides, "federation.rounds=3", out="whole")
    run_tiny(*overrides, "federation.rounds=1", out="part")
    changed = "method.aggregation.memory_gigabytes=1e-9"
    resumed = run_tiny("federation.rounds=3", changed, out="part", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert resumed.state.values == whole.state.values
    if rule == "norm_clipping":
        assert len(whole.state.values["aggregation"]["medians"]) == 3


def test_a_round_is_abandoned_before_a_rule_gets_too_few(run_once: RunTiny) -> None:
    overrides = ("federation.dropout=0.5", "federation.min_clients=3", "federation.rounds=6", *FIVE, FEW)
    run = run_once(fedavg("median"), *overrides, "federation.evaluate_every=6")
    rounds = run.of("round")
    assert {event["abandoned"] for event in rounds} == {True, False}
    for event in rounds:
        if not event["abandoned"]:
            assert event["state"]["aggregation"]["updates"] == 5 - len(event["failed"]) >= 3


def test_a_plan_reckons_with_the_updates_that_are_held(tmp_path: Path) -> None:
    held = make_plan(
        read_source(None, [*TINY, fedavg("{rule: krum, memory_gigabytes: 1e-9}"), *FIVE]),
        folder=tmp_path,
        seconds=0.0,
    )
    (warning,) = (own for own in held.warnings if "word embedding" not in own)
    assert "temporary folder" in warning
    assert f"{5 * sum(group.bytes_up for group in held.groups) / 1e9:.3g} GB" in warning
