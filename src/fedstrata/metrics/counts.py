"""What precision, recall and F1 are made of.

A ratio of nothing is 0, as in seqeval and scikit-learn: with nothing annotated and nothing predicted,
precision, recall and F1 are 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """How many things there are, were predicted, and were predicted rightly.

    Attributes:
        gold: Those that are annotated.
        predicted: Those that were predicted.
        correct: Those that are both.
    """

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """The share of what was predicted that is correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of what is annotated that was found."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.gold + self.predicted
        return 2.0 * self.correct / total if total else 0.0


def total(counts: Iterable[Counts]) -> Counts:
    """Returns the sums of all counts, which micro scores are made of."""
    rows = [(each.gold, each.predicted, each.correct) for each in counts]
    return Counts(*(sum(column) for column in zip(*rows, strict=True))) if rows else Counts(0, 0, 0)
