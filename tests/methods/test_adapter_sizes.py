"""Devices of several ranks, and adapters that grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import RunTiny, assert_same_tensors, opened

from fedstrata.adapters.rank import cut, pad, product_norm, rank_axis, written
from fedstrata.client.turn import Done, Failed, Order, Workplace

LORA = "adapter={kind: lora, rank: 4}"
SELDOM = ("federation={rounds: 2, evaluate_every: 2}", "data.synthetic.notes=6")
VALIDATED = ("data.synthetic.notes=9", "data.split={train: 0.4, validation: 0.3, test: 0.3}")
BOTTLENECK = "adapter={kind: bottleneck, width: 24}"


def lora(rank: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x.lora_A.default.weight": torch.randn(rank, 5, generator=generator),
        "x.lora_B.default.weight": torch.randn(6, rank, generator=generator),
        "y.lora_A.default.weight": torch.randn(rank, 3, generator=generator),
        "y.lora_B.default.weight": torch.randn(3, rank, generator=generator),
        "head.modules_to_save.default.weight": torch.randn(2, 6, generator=generator),
    }


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 99))
def test_cutting_and_padding_keep_the_first_ranks(rank: int, kept: int, seed: int) -> None:
    whole = lora(rank, seed)
    part = cut(whole, kept)
    kept = min(rank, kept)
    for name, tensor in pad(part, whole).items():
        axis = rank_axis(name, tensor)
        assert tensor.shape == whole[name].shape
        if axis is None:
            assert torch.equal(tensor, whole[name])
            continue
        assert part[name].shape[axis] == kept
        assert torch.equal(tensor.narrow(axis, 0, kept), whole[name].narrow(axis, 0, kept))
        assert not tensor.narrow(axis, kept, rank - kept).any()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in written(whole, part).items())


@given(st.integers(1, 6), st.integers(0, 99))
def test_the_norm_of_the_products_needs_no_products(rank: int, seed: int) -> None:
    own = lora(rank, seed)
    naive = sum(
        float((own[f"{layer}.lora_B.default.weight"] @ own[f"{layer}.lora_A.default.weight"]).square().sum())
        for layer in "xy"
    )
    assert product_norm(own) == pytest.approx(naive**0.5, rel=1e-4)


def test_each_device_sends_at_its_own_rank(run_once: RunTiny) -> None:
    run = run_once("method={name: hetlora, ranks: [1, 2, 4]}", LORA, "seed=3", *SELDOM)
    first, second = run.states
    assert first["ranks"] == second["ranks"]  # drawn once
    up = {client: facts["bytes_up"] for client, facts in run.of("round")[0]["exchanges"].items()}
    ordered = sorted(up, key=lambda client: first["ranks"][client])
    sizes = [up[client] for client in ordered]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(set(first["ranks"].values()))


@pytest.mark.parametrize("weighting", ["norm", "examples"])
def test_devices_count_by_the_norm_of_their_adapters_or_by_their_examples(
    tmp_path: Path, weighting: str
) -> None:
    unequal = ("partition={by: quantity, clients: 3, alpha: 1.0}", "federation.rounds=1")
    method = f"method={{name: hetlora, ranks: [2, 4], weighting: {weighting}}}"
    run = opened(tmp_path / "run", method, LORA, *unequal)
    hetlora, model = run.experiment.method, run.experiment.model
    cohort, state = run._cohort(1, run.engine.clients()), hetlora.start(model)
    sent, each = [], cohort.each

    def watched(handler: str, plan_of: Any) -> Any:
        for client, update in each(handler, plan_of):
            own = {name: tensor.clone() for name, tensor in update.tensors.items()}
            sent.append((product_norm(own) if weighting == "norm" else client.examples, own))
            yield client, update

    cohort.each = watched  # type: ignore[method-assign]
    merged = hetlora.round(state, cohort, run.experiment.seed).tensors
    total = sum(weight for weight, _ in sent)
    assert len({round(weight / total, 3) for weight, _ in sent}) > 1
    for name, tensor in merged.items():
        if "lora_B" in name:
            expected = sum(weight / total * pad(own, state.tensors)[name] for weight, own in sent)
            torch.testing.assert_close(tensor[:, :2], expected[:, :2], rtol=1e-5, atol=1e-7)


def test_ranks_that_a_round_lacks_stay_as_they_were(run_once: RunTiny) -> None:
    """As zeros they could never train again: each factor's gradient is a multiple of the other."""
    sampled = ("federation={rounds: 5, sample: 0.34, evaluate_every: 5}", "data.synthetic.notes=6")
    run = run_once("method={name: hetlora, ranks: [1, 4]}", LORA, *sampled)
    seen = [set(state["ranks"].values()) for state in run.states]
    assert {1} in seen and {4} in seen  # some rounds have the one, some the other
    for name, tensor in run.state.tensors.items():
        if "lora_A" in name:
            assert tensor[1:].any()


@pytest.mark.slow
def test_ranks_whose_norms_fall_are_given_up(run_once: RunTiny) -> None:
    method = "method={name: hetlora, ranks: [4], prune: {keep: 0.75, penalty: 1000.0}}"
    fast = ("training.learning_rate=0.02", "data.synthetic.notes=24")
    run = run_once(method, LORA, "federation={rounds: 3, evaluate_every: 3}", *fast)
    ranks = [state["ranks"].values() for state in run.states]
    assert set(ranks[0]) == {4}  # at the start B is zero, and no norm can fall
    assert max(ranks[-1]) < 4


def test_adapters_grow_from_the_top_as_far_as_it_pays(run_once: RunTiny) -> None:
    run = run_once(
        "method={name: fedadaopt}", BOTTLENECK, *VALIDATED, "federation={rounds: 4, evaluate_every: 4}"
    )
    before = (0, 8)
    for state in run.states:
        depth, width = state["depth"], state["width"]
        assert (depth - before[0], width - before[1]) in [(0, 0), (1, 0), (0, 8)]
        assert f"{depth} deep, {width} wide" in state["tried"]
        assert state["tried"][f"{depth} deep, {width} wide"] == max(state["tried"].values())
        before = (depth, width)
    depth, width = before
    for block in range(3):
        ups = [
            tensor
            for name, tensor in run.state.tensors.items()
            if f".layers.{block}." in name and "bottleneck_up" in name and name.endswith("weight")
        ]
        assert all(bool(up[:, :width].any()) == (block >= 3 - depth) for up in ups)
        assert not any(up[:, width:].any() for up in ups)


def test_the_record_says_what_the_largest_of_them_trained_whoever_came_last(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: dict[int, list[int]] = {1: [], 2: []}
    compute = Workplace.compute

    def watched(place: Workplace, order: Order, *more: Any) -> Done | Failed:
        done = compute(place, order, *more)
        assert isinstance(done, Done)
        trained[order.round].append(done.trained)
        return done

    monkeypatch.setattr(Workplace, "compute", watched)
    run = run_tiny("method={name: fedadaopt}", *VALIDATED)
    assert any(numbers[-1] < max(numbers) for numbers in trained.values())
    told = {event["round"]: event["trainable_parameters"] for event in run.of("round")}
    assert told == {number: max(numbers) for number, numbers in trained.items()}


@pytest.mark.slow
def test_growth_ends_at_the_model_and_the_adapter(run_once: RunTiny) -> None:
    method = "method={name: fedadaopt, depth: 3, width: 24}"
    run = run_once(method, BOTTLENECK)
    plain = run_once("method={name: fedadapter}", BOTTLENECK)
    assert all((state["depth"], state["width"]) == (3, 24) for state in run.states)
    assert_same_tensors(plain.state.tensors, {name: run.state.tensors[name] for name in plain.state.tensors})
