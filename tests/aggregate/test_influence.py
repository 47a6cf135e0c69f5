"""Weights by loss: the streaming mean is the formula, whatever the losses, and holds one payload."""

from __future__ import annotations

import math
import weakref
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.aggregate.influence import InfluenceMean, shares
from fedstrata.aggregate.mean import StreamingMean
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import Update

CASES = st.lists(
    st.tuples(st.integers(1, 10_000), st.floats(-1e3, 1e3) | st.floats(0, 3), st.integers(0, 999)),
    min_size=1,
    max_size=7,
)
"""n_k, loss, and the seed of the tensors."""
CAPS = st.none() | st.floats(0.05, 1.0)


def naive(counts: list[int], losses: list[float], cap: float | None = None) -> list[float]:
    """The formula in 60 digits; with a cap, the heaviest are capped one after the other."""
    with localcontext() as context:
        context.prec = 60
        raw = [count * (-Decimal(loss)).exp() for count, loss in zip(counts, losses, strict=True)]
        limit = max(Decimal(cap or 1), 1 / Decimal(len(raw)))
        order = sorted(range(len(raw)), key=lambda index: -raw[index])
        for capped in range(len(raw)):
            rest = order[capped:]
            total, room = sum(raw[index] for index in rest), 1 - limit * capped
            if room * raw[rest[0]] / total <= limit * (1 + Decimal("1e-11")):
                break
        found = dict.fromkeys(order[:capped], float(limit))
        found |= {index: float(room * raw[index] / total) for index in rest}
        return [found[index] for index in range(len(raw))]


def update_of(seed: int, count: int) -> Update:
    generator = torch.Generator().manual_seed(seed)
    return Update({"a": torch.randn(3, 2, generator=generator)}, {"loss": 1.0}, weight=float(count))


@given(CASES, CAPS)
def test_the_mean_in_one_pass_is_the_formula(cases: list[tuple[int, float, int]], cap: float | None) -> None:
    mean = InfluenceMean(cap)
    for index, (count, loss, seed) in enumerate(cases):
        update = update_of(seed, count)
        mean.add(f"site-{index}", update, loss)
        update.tensors["a"].fill_(math.nan)  # as the engine does, which yields live parameters
    result, facts = mean.finish()
    counts, losses = [case[0] for case in cases], [case[1] for case in cases]
    expected = naive(counts, losses, cap)
    assert [facts[f"site-{index}"].weight for index in range(len(cases))] == pytest.approx(expected, abs=1e-9)
    assert [fact.influence for fact in facts.values()] == pytest.approx(
        naive([1] * len(cases), losses), abs=1e-9
    )
    assert [fact.loss for fact in facts.values()] == losses
    total = sum(
        weight * update_of(seed, count).tensors["a"].double()
        for weight, (count, _, seed) in zip(expected, cases, strict=True)
    )
    torch.testing.assert_close(result.tensors["a"].double(), total, rtol=1e-5, atol=1e-6)
    assert result.clients == tuple(facts)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=9), st.floats(0.02, 1.0))
def test_no_share_is_above_the_cap_and_order_is_kept(scores: list[float], cap: float) -> None:
    found, capped = shares(scores, cap)
    assert found.sum() == pytest.approx(1.0)
    assert found.max() <= max(cap, 1 / len(scores)) * (1 + 1e-9)
    assert (np.diff(found[np.argsort(scores, kind="stable")]) >= -1e-12).all()
    free, _ = shares(np.array(scores)[~capped])
    assert found[~capped] == pytest.approx(free * found[~capped].sum(), abs=1e-12)


def test_equal_losses_give_the_weighted_mean_to_the_last_bit() -> None:
    plain, influenced = StreamingMean(), InfluenceMean()
    for seed, count in enumerate((7, 3, 40, 1)):
        plain.add(update_of(seed, count))
        influenced.add(str(seed), update_of(seed, count), loss=0.731)
    assert torch.equal(plain.finish().tensors["a"], influenced.finish()[0].tensors["a"])


@pytest.mark.parametrize(("cap", "payloads"), [(None, 0), (1.0, 0), (0.5, 1), (0.3, 3)])
def test_payloads_that_are_held_do_not_grow_with_the_clients(cap: float | None, payloads: int) -> None:
    """Besides the running sum: copies of those that may have to be capped."""
    mean, copies = InfluenceMean(cap), []
    clone = torch.Tensor.clone
    with pytest.MonkeyPatch.context() as patch:

        def watched(tensor: torch.Tensor) -> torch.Tensor:
            copy = clone(tensor)
            copies.append(weakref.ref(copy))
            return copy

        patch.setattr(torch.Tensor, "clone", watched)
        for index in range(20):
            mean.add(f"site-{index}", update_of(index, 5), loss=math.sin(index))
            assert sum(copy() is not None for copy in copies) <= payloads


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_not_finite_is_refused(loss: float) -> None:
    with refused(TrainingError, "not_finite", values=["client north", loss]):
        InfluenceMean().add("north", update_of(0, 1), loss)
