"""Intervals and tests, from counts by document."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import permutation_test

from fedstrata.core.documents import Span
from fedstrata.core.seeding import Seed
from fedstrata.metrics import stats
from fedstrata.metrics.matching import LENIENT, STRICT
from fedstrata.metrics.spans import match_spans, scores_of
from fedstrata.metrics.stats import Interval, bootstrap, interval, micro_f1, paired_permutation, rank_sum

SEED = Seed(0).child("test")


def system(documents: int, found: float, number: int) -> NDArray[np.int64]:
    """Counts of a system that finds this share of ten mentions in each of these documents."""
    correct = np.random.default_rng(number).binomial(10, found, size=documents)
    return np.column_stack([np.full(documents, 10), np.full(documents, 10), correct])


def corpus(documents: int) -> tuple[list[list[Span]], list[list[Span]]]:
    generator = np.random.default_rng(1)
    sides = []
    for _ in range(2):
        starts = [generator.integers(0, 40, size=generator.integers(0, 6)).tolist() for _ in range(documents)]
        sides.append([[Span(start, start + 3, "drug") for start in own] for own in starts])
    return sides[0], sides[1]


@pytest.mark.parametrize(("instances", "resamples"), [(200, 30), (7, 5), (None, 12)])
@pytest.mark.parametrize("scheme", [STRICT, LENIENT])
def test_nothing_is_scored_again_and_yet_each_resample_has_the_score_of_its_documents(
    monkeypatch: pytest.MonkeyPatch, instances: int | None, resamples: int, scheme: object
) -> None:
    gold, predicted = corpus(12)
    counts = match_spans(gold, predicted).by_document(scheme)
    scores = bootstrap(counts, SEED, instances=instances, resamples=resamples)
    draws = SEED.numpy().integers(12, size=(resamples, instances or 12))
    name = "lenient_f1" if scheme == LENIENT else "f1"
    expected = [
        scores_of(match_spans([gold[index] for index in draw], [predicted[index] for index in draw]), ())[
            name
        ]
        for draw in draws
    ]
    assert scores == pytest.approx(expected)
    monkeypatch.setattr(stats, "_AT_ONCE", 50)  # how much is drawn at a time changes nothing
    assert np.array_equal(bootstrap(counts, SEED, instances=instances, resamples=resamples), scores)


def test_the_interval_holds_the_middle_of_the_scores() -> None:
    scores = np.arange(101) / 100
    assert interval(scores) == Interval(pytest.approx(0.025), pytest.approx(0.975))
    assert interval(scores, 0.5) == Interval(pytest.approx(0.25), pytest.approx(0.75))


def test_intervals_narrow_with_the_documents_drawn_and_hold_the_score_as_often_as_they_say() -> None:
    widths = []
    for instances in (50, 200, 800):
        ends = interval(bootstrap(system(400, 0.6, 0), SEED, instances=instances, resamples=2000))
        widths.append(ends.high - ends.low)
    assert widths[0] / widths[1] == pytest.approx(2.0, rel=0.1)
    assert widths[1] / widths[2] == pytest.approx(2.0, rel=0.1)
    held = [
        ends.low <= 0.6 <= ends.high
        for number in range(200)
        for ends in [interval(bootstrap(system(60, 0.6, number), SEED, instances=None, resamples=200))]
    ]
    assert 0.9 <= np.mean(held) <= 0.99


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_micro_f1_is_that_of_the_sums(rows: list[tuple[int, int, int]]) -> None:
    counts = np.array([(gold, predicted, min(gold, predicted, correct)) for gold, predicted, correct in rows])
    gold, predicted, correct = counts.sum(axis=0).tolist()
    expected = 2 * correct / (gold + predicted) if gold + predicted else 0.0
    assert micro_f1(counts.sum(axis=0)) == pytest.approx(expected)
    assert micro_f1(counts).shape == (len(rows),)


def by_scipy(first: NDArray[np.int64], second: NDArray[np.int64], permutations: int) -> float:
    both = np.concatenate([first, second])
    numbers = np.arange(len(both))

    def difference(ones: NDArray[np.int64], others: NDArray[np.int64], axis: int) -> NDArray[np.float64]:
        scores = [micro_f1(both[own].sum(axis=axis % own.ndim)) for own in (ones, others)]
        return scores[0] - scores[1]

    found = permutation_test(
        (numbers[: len(first)], numbers[len(first) :]),
        difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=permutations,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


@pytest.mark.parametrize("number", range(4))
def test_with_few_documents_every_exchange_is_tried(number: int) -> None:
    first, second = system(8, 0.7, number), system(8, 0.5, number + 10)
    expected = by_scipy(first, second, 9_999)
    assert paired_permutation(first, second, SEED) == pytest.approx(expected)
    assert paired_permutation(first, second, Seed(1)) == pytest.approx(expected)


def test_random_exchanges_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = system(12, 0.62, 0), system(12, 0.5, 1)
    every = paired_permutation(first, second, SEED)
    some = paired_permutation(first, second, SEED, permutations=4_000)
    assert 0.01 < every < 0.5
    assert some == pytest.approx(every, abs=4 * np.sqrt(every / 4_000))
    monkeypatch.setattr(stats, "_AT_ONCE", 100)
    assert paired_permutation(first, second, SEED, permutations=4_000) == some


def test_equal_systems_do_not_differ() -> None:
    counts = system(30, 0.6, 0)
    assert paired_permutation(counts, counts, SEED) == 1.0
    scores = bootstrap(counts, SEED)
    assert rank_sum(scores, scores) == 1.0


def test_a_clear_difference_is_found_by_both_and_by_either_side() -> None:
    better, worse = system(100, 0.8, 0), system(100, 0.6, 1)
    assert paired_permutation(better, worse, SEED) == paired_permutation(worse, better, SEED) == 1e-4
    draws = (bootstrap(counts, SEED.child(number)) for number, counts in enumerate((better, worse)))
    assert rank_sum(*draws) < 1e-8


def test_the_rank_sum_of_more_resamples_finds_any_difference_and_the_paired_test_does_not() -> None:
    first, second = system(100, 0.6, 0), system(100, 0.6, 2)  # two systems that are equally good
    p_values = []
    for resamples in (30, 3_000):
        draws = (
            bootstrap(counts, SEED.child(number), resamples=resamples)
            for number, counts in enumerate((first, second))
        )
        p_values.append(rank_sum(*draws))
    assert p_values[1] < 1e-6
    assert p_values[1] < p_values[0]
    assert paired_permutation(first, second, SEED) > 0.05


def test_systems_scored_against_other_annotations_are_refused() -> None:
    other = system(5, 0.5, 0) + np.array([1, 0, 0])
    with pytest.raises(ValueError, match="same annotations"):
        paired_permutation(system(5, 0.5, 0), other, SEED)
