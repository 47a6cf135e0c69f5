"""What precision, recall and F1 are made of.

A ratio of nothing is 0, as in seqeval and scikit-learn: with nothing annotated and nothing predicted,
precision, recall and F1 are 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedstrata.core.types import Tally

FIELDS = ("gold", "predicted", "correct")


@dataclass(frozen=True, slots=True)
class Counts:
    """How many things there are, were predicted, and were predicted rightly.

    Attributes:
        gold: Those that are annotated.
        predicted: Those that were predicted.
        correct: Those that are both.
    """

    gold: float
    predicted: float
    correct: float

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

    @classmethod
    def of(cls, tally: Tally, begins: str = "", ends: str = "") -> Counts:
        """Returns what `tally` has put down by such names; what is not there is 0."""
        return cls(*(tally.get(f"{begins}{field}{ends}", 0) for field in FIELDS))

    def tally(self, begins: str = "", ends: str = "") -> dict[str, float]:
        """Returns them by name, to be added to others."""
        return {f"{begins}{field}{ends}": getattr(self, field) for field in FIELDS}


def added(tallies: Iterable[Tally]) -> dict[str, float]:
    """Returns the sums of tallies, whatever their order: exact for whole numbers, rounded once for others.

    Example:
        >>> added([{"nats": 0.1, "tokens": 2}, {"nats": 0.2, "tokens": 3}])
        {'nats': 0.30000000000000004, 'tokens': 5}
    """
    every = list(tallies)
    names = dict.fromkeys(name for each in every for name in each)
    columns = {name: [each.get(name, 0) for each in every] for name in names}
    whole = {name: all(isinstance(value, int) for value in column) for name, column in columns.items()}
    return {name: sum(column) if whole[name] else math.fsum(column) for name, column in columns.items()}


def mean(tally: Tally, name: str) -> float:
    """Returns a sum over documents divided by their number; 0 of no documents."""
    return tally[name] / tally["documents"] if tally["documents"] else 0.0


def total(counts: Iterable[Counts]) -> Counts:
    """Returns the sums of all counts, which micro scores are made of."""
    return Counts.of(added(each.tally() for each in counts))
