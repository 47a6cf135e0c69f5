"""How sure a score is: bootstrap intervals, and tests of two systems on the same documents.

Everything starts from counts by document (`Matching.by_document`): micro F1 of any choice of documents is
made of the sums of their counts, so nothing is scored again.

Fed-MedLoRA ("Bootstrapping and statistical analysis") draws 200 instances 30 times, gives 95 % intervals, and
tests two systems by the two-tailed Wilcoxon rank-sum of their 30 scores each. `bootstrap`, `interval` and
`rank_sum` are that. The rank-sum is no sound test of two systems: it asks whether two sets of independent
observations are alike, and draws of the same documents are not independent, nor is their number one of
observations. It says how many draws were made more than whether the systems differ: with more of them p goes
to 0, however small the difference and however few the documents. Nor does it use that both systems were given
the same documents. `paired_permutation` does, counts every document once, and is the test to go by.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedstrata.core.seeding import Seed

RESAMPLES, LEVEL = 2_000, 0.95
"""Draws, and the share of their scores that an interval holds."""
PAPER_INSTANCES, PAPER_RESAMPLES = 200, 30
"""Fed-MedLoRA's instances in a draw, and draws. It does not define an instance; here it is a document."""
PERMUTATIONS = 9_999
"""How often the documents of two systems are exchanged at random."""

_AT_ONCE = 2**21
"""Numbers drawn at a time at most."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a score lies.

    Attributes:
        low: Its lower end.
        high: Its upper end.
    """

    low: float
    high: float


def micro_f1(counts: NDArray[np.integer] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Returns the micro F1 of summed counts; 0 where there is neither gold nor prediction.

    Args:
        counts: What is annotated, predicted and correct, (..., 3).

    Returns:
        The scores, (...).
    """
    sizes = counts[..., 0] + counts[..., 1]
    scores: NDArray[np.float64] = 2.0 * counts[..., 2] / np.where(sizes > 0, sizes, 1)
    return scores


def bootstrap(
    counts: NDArray[np.int64], seed: Seed, *, instances: int | None = None, resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """Returns the micro F1 of documents drawn with replacement.

    The spread is that of a test set of as many documents as are drawn, whatever the number there is: an
    interval for the documents at hand draws as many as there are.

    Args:
        counts: What is annotated, predicted and correct in each document, (documents, 3); at least one.
        seed: Of the draws.
        instances: Documents in a draw; as many as there are if none.
        resamples: The number of draws.

    Returns:
        The scores, (resamples,).
    """
    size = len(counts) if instances is None else instances
    generator = seed.numpy()
    scores = [
        micro_f1(counts[generator.integers(len(counts), size=(rows, size))].sum(axis=1))
        for rows in _batches(resamples, size)
    ]
    return np.concatenate(scores)


def interval(scores: NDArray[np.float64], level: float = LEVEL) -> Interval:
    """Returns the percentiles between which the middle of bootstrap scores lies.

    Args:
        scores: The scores, (resamples,).
        level: The share of them that is between, for example .95.
    """
    low, high = np.quantile(scores, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(float(low), float(high))


def rank_sum(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Returns the p-value of the two-tailed Wilcoxon rank-sum test, as the paper takes it.

    Not a sound test of two systems, see above: p goes to 0 as the number of resamples grows.

    Args:
        first: The bootstrap scores of one system, (resamples,).
        second: Those of the other, of draws of their own, (resamples,).
    """
    from scipy.stats import ranksums  # noqa: PLC0415 - heavy

    return float(ranksums(first, second).pvalue)


def paired_permutation(
    first: NDArray[np.int64], second: NDArray[np.int64], seed: Seed, *, permutations: int = PERMUTATIONS
) -> float:
    """Returns the p value of a paired permutation test of the difference of micro F1, two-sided.

    If the systems do not differ, what each found in a document might as well be what the other did. So the
    two are exchanged in each document by the toss of a coin, and p is the share of such exchanges that give a
    difference as large as the one observed, itself counted (approximate randomization: Noreen, "Computer-
    Intensive Methods for Testing Hypotheses", 1989; Yeh, "More accurate tests for the statistical
    significance of result differences", COLING 2000). Every exchange is tried where there are no more than
    `permutations`. (scipy's `permutation_test` gives the same, and goes through the documents one by one.)

    Args:
        first: What is annotated, predicted and correct in each document for one system, (documents, 3).
        second: The same for the other, with the same annotations.
        seed: Of the exchanges.
        permutations: The number of random exchanges.

    Raises:
        ValueError: The annotations are not the same.
    """
    if not np.array_equal(first[:, 0], second[:, 0]):
        raise ValueError("the two systems must be scored against the same annotations of the same documents")
    both, differences = (first + second).sum(axis=0), (first - second).astype(np.float64)
    observed = abs(micro_f1(first.sum(axis=0)) - micro_f1(second.sum(axis=0))) - 1e-12
    reached = tried = 0
    for signs in _signs(len(first), seed, permutations):
        moved = signs @ differences
        apart = np.abs(micro_f1((both + moved) / 2) - micro_f1((both - moved) / 2))
        reached, tried = reached + int((apart >= observed).sum()), tried + len(signs)
    every = tried == 2 ** len(first)
    return reached / tried if every else (reached + 1) / (tried + 1)


def _signs(documents: int, seed: Seed, permutations: int) -> Iterator[NDArray[np.float64]]:
    """Yields which documents are exchanged, -1 for those that are, (some, documents): all ways if few."""
    if 2**documents <= permutations:
        ways = np.arange(2**documents)[:, None] >> np.arange(documents)
        yield (1 - 2 * (ways & 1)).astype(np.float64)
        return
    generator = seed.numpy()
    for rows in _batches(permutations, documents):
        yield (1 - 2 * generator.integers(2, size=(rows, documents))).astype(np.float64)


def _batches(rows: int, columns: int) -> Iterator[int]:
    """Yields how many rows to draw at a time."""
    most = max(1, _AT_ONCE // max(columns, 1))
    for begin in range(0, rows, most):
        yield min(most, rows - begin)
