"""Units are in a step with the probability that the accountant was told, each on its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from privacy.conftest import ALARM, LIMIT
from scipy import stats

from fedstrata.core.seeding import Seed
from fedstrata.privacy.randomness import Randomness, SeededRandomness
from fedstrata.privacy.sampling import drawn_windows, poisson

UNITS, RATE, STEPS = 40, 0.1, 5000


def included(source: Randomness, rate: float = RATE) -> NDArray[np.float64]:
    """Returns who was in which step, (steps, units), as 0 and 1."""
    table = np.zeros((STEPS, UNITS))
    for step in range(STEPS):
        table[step, poisson(UNITS, rate, source)] = 1
    return table


def far(found: float, expected: float, variance: float) -> bool:
    return abs(found - expected) > LIMIT * variance**0.5


def test_every_unit_is_as_often_in_a_step_as_its_rate_says(source: Randomness) -> None:
    counts = included(source).sum(0)
    spread = ((counts - STEPS * RATE) ** 2 / (STEPS * RATE * (1 - RATE))).sum()
    assert stats.chi2.sf(spread, UNITS) > ALARM
    assert stats.chi2.cdf(spread, UNITS) > ALARM, "as a shuffle, which gives each unit its turn, would not be"
    assert not far(counts.sum(), STEPS * UNITS * RATE, STEPS * UNITS * RATE * (1 - RATE))


def test_units_and_steps_are_independent(source: Randomness) -> None:
    """A batch of a fixed size, or a permutation cut into batches, is no Poisson sample."""
    centred = (included(source) - RATE) / (RATE * (1 - RATE)) ** 0.5
    sizes = centred.sum(1) / UNITS**0.5
    assert not far((sizes**2).sum(), STEPS, STEPS * (2 + (1 / (RATE * (1 - RATE)) - 6) / UNITS))
    pairs = (centred.T @ centred)[np.triu_indices(UNITS, 1)] / STEPS**0.5
    assert not far((pairs**2).sum(), len(pairs), 3 * len(pairs))
    for lag in (1, 1 / RATE):
        assert not far((centred[int(lag) :] * centred[: -int(lag)]).sum(), 0, STEPS * UNITS)


def test_a_step_may_be_empty(source: Randomness) -> None:
    empty = sum(not len(poisson(5, 0.05, source)) for _ in range(5000))
    assert stats.binomtest(empty, 5000, 0.95**5).pvalue > ALARM


def test_certain_rates_and_no_units(source: Randomness) -> None:
    assert poisson(6, 1.0, source).tolist() == [0, 1, 2, 3, 4, 5]
    assert poisson(1000, 0.0, source).tolist() == []
    assert poisson(0, 0.5, source).tolist() == []
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="probability"):
            poisson(3, rate, source)


@given(counts=st.lists(st.integers(0, 9), max_size=12), limit=st.integers(1, 20), seed=st.integers(0, 99))
def test_examples_are_drawn_until_the_next_is_too_much(counts: list[int], limit: int, seed: int) -> None:
    drawn = drawn_windows(counts, limit, SeededRandomness(Seed(seed)))
    everyone = drawn_windows(counts, 1000, SeededRandomness(Seed(seed)))
    assert sorted(everyone) == list(range(len(counts)))
    assert drawn.tolist() == everyone[: len(drawn)].tolist()
    taken = sum(counts[each] for each in drawn)
    assert taken <= limit or len(drawn) == 1
    assert len(drawn) >= min(1, len(counts))
    if len(drawn) < len(counts):
        assert taken + counts[everyone[len(drawn)]] > limit


def test_every_order_of_examples_is_as_likely(source: Randomness) -> None:
    drawn = [tuple(drawn_windows([1, 1, 1], 2, source)) for _ in range(6000)]
    counts = list({pair: drawn.count(pair) for pair in set(drawn)}.values())
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > ALARM


def test_an_example_that_alone_is_too_long_is_still_taken(source: Randomness) -> None:
    assert drawn_windows([9], 4, source).tolist() == [0]
    assert drawn_windows([], 4, source).tolist() == []
    with pytest.raises(ValueError, match="at least 1 window"):
        drawn_windows([1], 0, source)
