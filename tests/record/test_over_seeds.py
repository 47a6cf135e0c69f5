"""Statistics over seeds: against scipy, and how often they find differences where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedstrata.record.over_seeds import holm, mean_interval, paired_p

CASES = ((8, 5, 2), (4, 3, None), (8, 3, None), (8, 5, None), (4, 2, None))
"""Rows, seeds and digits of a comparison."""


def test_intervals_and_p_are_those_of_scipy() -> None:
    numbers = [0.71, 0.69, 0.75, 0.80]
    others = [0.70, 0.71, 0.70, 0.77]
    low, high = stats.t.interval(0.95, 3, np.mean(numbers), stats.sem(numbers))
    assert mean_interval(numbers) == (pytest.approx(low), pytest.approx(high))
    differences = [one - other for one, other in zip(numbers, others, strict=True)]
    assert paired_p(differences) == pytest.approx(stats.ttest_rel(numbers, others).pvalue)
    assert mean_interval([0.5]) == (None, None)


@pytest.mark.parametrize(("differences", "p"), [([0.1], None), ([0.1, 0.1], None), ([0.0, 0.0, 0.0], 1.0)])
def test_what_has_no_spread_shows_no_difference(differences: list[float], p: float | None) -> None:
    assert paired_p(differences) == p


def test_holm_is_as_in_the_paper() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "b": 0.06, "c": 0.06}
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def scores_without_differences(
    trials: int, rows: int, seeds: int, *, digits: int | None
) -> NDArray[np.float64]:
    """Scores of rows that do not differ, (trials, rows, seeds); each seed is easy or hard for all rows."""
    generator = np.random.default_rng(7)
    seed_effect = generator.normal(0.0, 0.02, size=(trials, 1, seeds))
    scores = 0.8 + seed_effect + generator.normal(0.0, 0.01, size=(trials, rows, seeds))
    return scores if digits is None else scores.round(digits)


@pytest.mark.parametrize(
    ("rows", "seeds", "digits", "trials"),
    [(*CASES[0], 300), *(pytest.param(*own, 2_000, marks=pytest.mark.slow) for own in CASES)],
)
def test_where_no_row_differs_any_p_is_below_5_percent_in_at_most_5_percent(
    rows: int, seeds: int, digits: int | None, trials: int
) -> None:
    """Of comparisons with a named baseline; against the best row it would be 18 to 45 %."""
    found = 0
    for scores in scores_without_differences(trials, rows, seeds, digits=digits):
        p_values = {str(row): paired_p((scores[row] - scores[0]).tolist()) for row in range(1, rows)}
        corrected = holm({row: p for row, p in p_values.items() if p is not None})
        found += any(p < 0.05 for p in corrected.values())
    assert found / trials <= 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5


def test_a_difference_that_is_there_is_found() -> None:
    generator = np.random.default_rng(3)
    found = 0
    for _ in range(200):
        differences = generator.normal(0.05, 0.01, size=5)
        corrected = holm({"a": paired_p(differences.tolist()) or 0.0, "b": 0.7, "c": 0.6})
        found += corrected["a"] < 0.05
    assert found > 190
