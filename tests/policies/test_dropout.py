"""Rates over the depth of a model, and the blocks that are drawn by them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.seeding import Seed
from fedstrata.policies.dropout import CAP, USUAL_CAP, LayerDropout, block_rates

DISTRIBUTIONS = ("incremental", "uniform", "decremental")


@given(
    mean=st.floats(0.0, CAP),
    blocks=st.integers(1, 80),
    distribution=st.sampled_from(DISTRIBUTIONS),
    slope=st.none() | st.floats(0.01, 1.0),
)
def test_rates_have_the_mean_that_was_asked_for_and_never_exceed_the_cap(
    mean: float, blocks: int, distribution: str, slope: float | None
) -> None:
    rates = block_rates(mean, blocks, distribution, slope)  # type: ignore[arg-type]
    assert max(rates) <= max(mean, USUAL_CAP if slope is None else CAP) + 1e-9
    assert max(rates) - min(rates) <= (slope or 1.0) + 1e-9
    assert len(rates) == blocks
    assert np.mean(rates) == pytest.approx(mean, abs=1e-9)
    assert min(rates) >= 0.0 and max(rates) <= CAP + 1e-9
    steps = np.diff(rates)
    assert (steps >= -1e-9).all() if distribution != "decremental" else (steps <= 1e-9).all()


def test_rates_are_linear_in_the_depth_and_as_steep_as_they_may_be() -> None:
    assert block_rates(0.4, 5) == pytest.approx((0.0, 0.2, 0.4, 0.6, 0.8))
    assert block_rates(0.5, 6)[-1] == pytest.approx(0.8), "of six blocks the last one runs in a batch of five"
    assert block_rates(0.7, 3, "decremental") == pytest.approx((0.8, 0.7, 0.6))
    assert block_rates(0.7, 3, "decremental", 1.0) == pytest.approx((0.95, 0.7, 0.45))
    assert block_rates(0.5, 3, slope=0.2) == pytest.approx((0.4, 0.5, 0.6))


@pytest.mark.parametrize("mean", [-0.1, 0.96, float("nan")])
def test_a_mean_that_no_rates_have_is_refused(mean: float) -> None:
    with pytest.raises(ValueError, match=r"0\.95"):
        block_rates(mean, 4)


@pytest.mark.parametrize("draws", ["independent", "exact"])
@given(rates=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), seed=st.integers(0, 2**32))
def test_at_least_one_block_runs(draws: Any, rates: list[float], seed: int) -> None:
    dropout = LayerDropout(rates, Seed(seed), draws)
    for _ in range(20):
        skipped = dropout.draw()
        assert len(skipped) < len(rates)
        assert all(rates[block] > 0 for block in skipped)


def test_blocks_are_skipped_as_often_as_their_rates_say() -> None:
    rates = block_rates(0.5, 8)
    dropout = LayerDropout(rates, Seed(0))
    draws = 4000
    counts = np.bincount([block for _ in range(draws) for block in dropout.draw()], minlength=8) / draws
    assert counts == pytest.approx(rates, abs=0.03)


def test_draws_depend_on_the_seed_alone() -> None:
    one, same, other = (LayerDropout([0.5] * 6, Seed(0).child("client", name)) for name in ("a", "a", "b"))
    first = [one.draw() for _ in range(10)]
    assert first == [same.draw() for _ in range(10)]
    assert first != [other.draw() for _ in range(10)]


@given(
    st.lists(st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=3, max_size=3), min_size=1),
    st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=3, max_size=3),
)
def test_importance_is_the_mean_over_the_steps_in_which_a_block_ran(
    steps: list[list[float | None]], before: list[float | None]
) -> None:
    dropout = LayerDropout([0.5] * 3, Seed(0))
    for norms in steps:
        dropout.observe(norms)
    for block, value in enumerate(dropout.importance(before)):
        ran = [norms[block] for norms in steps if norms[block] is not None]
        assert value == (pytest.approx(np.mean(ran)) if ran else before[block])


def test_a_block_that_has_never_run_has_no_importance() -> None:
    dropout = LayerDropout([0.5] * 3, Seed(0))
    dropout.observe([None, 0.0, 2.0])
    assert dropout.importance() == [None, 0.0, 2.0]
    assert dropout.importance([None, 7.0, 7.0]) == [None, 0.0, 2.0]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("mean", [0.1, 0.5, 0.7])
def test_exact_draws_have_the_rates_and_nearly_the_same_number_in_every_batch(
    mean: float, distribution: Any
) -> None:
    """So that the memory of a batch is a promise: of independent draws the largest batch runs nearly all."""
    rates, draws = block_rates(mean, 24, distribution), 4000
    exact, independent = LayerDropout(rates, Seed(0), "exact"), LayerDropout(rates, Seed(0))
    skipped = [exact.draw() for _ in range(draws)]
    counts = np.bincount([block for each in skipped for block in each], minlength=24) / draws
    assert counts == pytest.approx(rates, abs=0.03)
    assert all(abs(len(each) - sum(rates)) < 1 for each in skipped)
    assert min(map(len, skipped)) > min(len(independent.draw()) for _ in range(draws))


def test_any_two_blocks_are_skipped_together_in_some_exact_draw() -> None:
    dropout = LayerDropout([0.5] * 6, Seed(0), "exact")
    pairs = {pair for _ in range(500) for pair in combinations(dropout.draw(), 2)}
    assert len(pairs) == 15
