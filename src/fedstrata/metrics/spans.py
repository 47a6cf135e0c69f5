"""Precision, recall and F1 of marked spans, by character offsets within each document.

A span counts as found if a predicted span of its document has the same type and covers exactly the same
characters (the strict scheme of nervaluate, and of seqeval's strict mode). Equal spans of one document count
once. Overlapping and nested spans count each for itself; nervaluate's strict scheme misses some of those,
because a wrong prediction that overlaps a gold span uses it up before the right one is seen.

A ratio of nothing is 0, as in seqeval and scikit-learn: with no gold and no predicted span, precision, recall
and F1 are 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedstrata.core.documents import Span


@dataclass(frozen=True, slots=True)
class Counts:
    """How many spans there are, were predicted, and were predicted rightly.

    Attributes:
        gold: Annotated spans.
        predicted: Predicted spans.
        correct: Spans that are both.
    """

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """The share of predicted spans that are correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of gold spans that were found."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.gold + self.predicted
        return 2.0 * self.correct / total if total else 0.0


def strict_counts(gold: Sequence[Iterable[Span]], predicted: Sequence[Iterable[Span]]) -> dict[str, Counts]:
    """Counts exact matches by type.

    Args:
        gold: The annotated spans of each document.
        predicted: The predicted spans of each document, in the same order.

    Returns:
        The counts of every type that occurs in either.
    """
    in_gold: Counter[str] = Counter()
    in_predicted: Counter[str] = Counter()
    in_both: Counter[str] = Counter()
    for expected, found in zip(map(set, gold), map(set, predicted), strict=True):
        in_gold.update(span.label for span in expected)
        in_predicted.update(span.label for span in found)
        in_both.update(span.label for span in expected & found)
    return {
        label: Counts(in_gold[label], in_predicted[label], in_both[label])
        for label in sorted(in_gold | in_predicted)
    }


def span_scores(
    gold: Sequence[Iterable[Span]], predicted: Sequence[Iterable[Span]], types: Sequence[str]
) -> dict[str, float]:
    """Scores predicted spans: over all spans (micro), and for each type.

    Args:
        gold: The annotated spans of each document.
        predicted: The predicted spans of each document, in the same order.
        types: The types to give single scores for; spans of other types still count in the micro scores.

    Returns:
        `f1`, `precision` and `recall`, then `f1/TYPE`, `precision/TYPE` and `recall/TYPE` for each of these
        types that occurs among the annotated or the predicted spans.
    """
    by_type = strict_counts(gold, predicted)
    scores = _ratios(total(by_type.values()))
    for label in types:
        if label in by_type:  # a type that does not occur has no score: 0 would spoil means
            scores |= {f"{name}/{label}": value for name, value in _ratios(by_type[label]).items()}
    return scores


def total(counts: Iterable[Counts]) -> Counts:
    """Returns the sums of all counts, which micro scores are made of."""
    rows = [(each.gold, each.predicted, each.correct) for each in counts]
    return Counts(*(sum(column) for column in zip(*rows, strict=True))) if rows else Counts(0, 0, 0)


def _ratios(counts: Counts) -> dict[str, float]:
    return {"f1": counts.f1, "precision": counts.precision, "recall": counts.recall}
