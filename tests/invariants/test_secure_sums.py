"""A secure sum is the plain sum: of integers to the bit, of updates within the error that it declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from private_client import JOINT, PRIVATE
from support import Finished, RunTiny, assert_same_tensors
from torch import Tensor

from fedstrata.aggregate.mean import StreamingMean
from fedstrata.core.types import Update
from fedstrata.engine import secure_mean
from fedstrata.privacy.secure_sum.mean import SummedUpdate

SECURE = "privacy.secure_aggregation=true"
WIDE = "privacy.range=4096"
"""So wide that what rounding to integers changes is far more than what float32 does."""
LAYERS = ("method={name: layer_skipping, top: 1}",)
RUNS = (
    LAYERS,
    (*LAYERS, *PRIVATE),
    ("method={name: fedlora}",),
    ("method={name: fedavg}",),
    ("method={name: fedper}",),
    ("method={name: fedtlu, portion: 0.34}",),
    (*LAYERS, "privacy.ring=24"),
)
ONLY_MASKED = ("privacy.ring=24",)
QUICK = 1
"""So many of them where a person waits."""


def error_of(run: Finished) -> float:
    (event,) = run.of("round")
    return float(event["secure_aggregation"]["error"])


def largest_difference(one: Finished, other: Finished) -> float:
    assert one.state.tensors.keys() == other.state.tensors.keys()
    pairs = [(one.state.tensors[name], other.state.tensors[name]) for name in one.state.tensors]
    return max(float((first.double() - second.double()).abs().max()) for first, second in pairs)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(run, marks=() if place < QUICK else pytest.mark.slow, id=f"{run[0]}-{len(run)}")
        for place, run in enumerate(RUNS)
    ],
)
def test_the_mean_is_the_plain_one_within_the_declared_error(
    run_tiny: RunTiny, run_once: RunTiny, overrides: tuple[str, ...]
) -> None:
    masked = (SECURE, *(each for each in overrides if each in ONLY_MASKED))
    overrides = tuple(each for each in overrides if each not in ONLY_MASKED)
    overrides = (*overrides, "federation.rounds=1", "federation.floors=false")
    plain = run_once(*overrides)
    fine = run_tiny(*overrides, *masked, out="fine")
    coarse = run_tiny(*overrides, *masked, WIDE, out="coarse")
    float32 = 4 * 2.0**-23 * max(float(tensor.abs().max()) for tensor in plain.state.tensors.values())
    assert largest_difference(plain, fine) <= error_of(fine) + float32
    assert 10 * float32 < largest_difference(plain, coarse) <= error_of(coarse)
    assert error_of(coarse) == pytest.approx(4096 * error_of(fine))


@pytest.mark.slow
def test_with_uniform_weights_every_client_counts_the_same(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites that have different numbers of examples: the mean by examples is another one."""
    updates: list[Update] = []
    add = StreamingMean.add

    def watched(mean: StreamingMean, update: Update) -> None:
        updates.append(
            Update({name: each.clone() for name, each in update.tensors.items()}, {}, update.weight)
        )
        add(mean, update)

    monkeypatch.setattr(StreamingMean, "add", watched)
    overrides = (*LAYERS, "federation.rounds=1")
    examples = run_tiny(*overrides, out="examples")
    masked = run_tiny(*overrides, SECURE, "privacy.weights=uniform", out="masked")
    assert len({update.weight for update in updates}) > 1
    for name, first in updates[0].tensors.items():
        expected = sum(update.tensors[name].double() for update in updates) / len(updates)
        float32 = 4 * 2.0**-23 * float(first.abs().max())
        found = masked.state.tensors[name].double()
        assert float((found - expected).abs().max()) <= error_of(masked) + float32
    assert largest_difference(examples, masked) > 100 * error_of(masked)


def test_the_unmasked_integers_are_the_plain_sum_of_what_clients_have_rounded(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded: list[dict[str, Tensor]] = []
    totals: list[dict[str, Tensor]] = []
    elements, mean_from = SummedUpdate.elements, secure_mean.mean_from

    def watched(update: SummedUpdate) -> Iterator[tuple[str, Tensor]]:
        rounded.append({})
        for name, tensor in elements(update):
            rounded[-1][name] = tensor.clone()  # before it is masked in its place
            yield name, tensor

    def unmasked(total: dict[str, Tensor], *arguments: Any) -> Any:
        totals.append({name: tensor.clone() for name, tensor in total.items()})
        return mean_from(total, *arguments)

    monkeypatch.setattr(SummedUpdate, "elements", watched)
    monkeypatch.setattr(secure_mean, "mean_from", unmasked)
    run_tiny(*LAYERS, SECURE, "federation.rounds=1", "data.synthetic.notes=6", "federation.floors=false")
    (total,) = totals
    assert len(rounded) == 3
    for name, found in total.items():
        exact = sum(own[name].long() for own in rounded)
        assert torch.equal(found.long(), exact), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [LAYERS, *(pytest.param((*LAYERS, *own), marks=pytest.mark.slow) for own in (JOINT, PRIVATE))],
    ids=["plain", "joint", "private"],
)
def test_workers_give_the_same_bits(run_once: RunTiny, overrides: tuple[str, ...]) -> None:
    local = run_once(*overrides, SECURE, "threads=1")
    workers = run_once(*overrides, SECURE, "threads=1", "workers=2")
    assert_same_tensors(local.state.tensors, workers.state.tensors)
    assert local.rounds_but_for_machine() == workers.rounds_but_for_machine()
