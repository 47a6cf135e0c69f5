"""What is wrong with predicted mentions: the error categories of Fed-MedLoRA, Table 7, counted by rule.

Every annotated and every predicted mention that has no exact match (same place, same type) is in exactly one
error, and every error in one category. They are looked for in this order, each among the mentions that no
earlier step has taken:

1. type confusion: one annotated and one predicted mention at the same place, of different types;
2. merged or split: of one type, several annotated mentions and one predicted one that overlaps them, or the
   other way round, or several of both that hang together by overlaps;
3. boundary: one annotated and one predicted mention of one type that overlap;
4. boundary and type: one annotated and one predicted mention of different types that overlap, as many such
   pairs as there can be;
5. false negative: an annotated mention that is left;
6. false positive: a predicted mention that is left. It may overlap an annotated one that is taken.

The paper's authors sorted 200 instances by hand. Two of their choices cannot be followed by rule: "annotation
error" takes a judgement of the annotation, and their example of a boundary error, two mentions predicted as
one, is by their own description a merger, and counted as one here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from fedstrata.metrics.matching import Item, Matching

CATEGORIES = (
    "boundary",
    "false negative",
    "type confusion",
    "false positive",
    "boundary and type",
    "merged or split",
)
"""The categories, in the order of Table 7."""


@dataclass(frozen=True, slots=True)
class MentionError:
    """One error.

    Attributes:
        category: One of `CATEGORIES`.
        document: The number of the document.
        gold: The annotated mentions that are in it.
        predicted: The predicted ones.
    """

    category: str
    document: int
    gold: tuple[Item, ...]
    predicted: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """How often one category occurs.

    Attributes:
        errors: The number of errors.
        gold: The annotated mentions in them.
        predicted: The predicted ones.
    """

    errors: int
    gold: int
    predicted: int


def errors_of(matching: Matching) -> tuple[MentionError, ...]:
    """Returns the errors in mentions that were matched, by document and then by category."""
    search = _Search(matching)
    search.take("", search.one_to_one(matching.same_places & matching.same_label))
    search.take("type confusion", search.one_to_one(matching.same_places & ~matching.same_label))
    together = search.hanging_together(matching.same_label)
    search.take("merged or split", [group for group in together if len(group[0]) + len(group[1]) > 2])
    search.take("boundary", [group for group in together if len(group[0]) + len(group[1]) == 2])
    search.take("boundary and type", search.one_to_one(~matching.same_label))
    search.take("false negative", [([one], []) for one in np.flatnonzero(search.gold).tolist()])
    search.take("false positive", [([], [one]) for one in np.flatnonzero(search.predicted).tolist()])
    wrong = [error for error in search.errors if error.category]
    return tuple(sorted(wrong, key=lambda error: (error.document, CATEGORIES.index(error.category))))


def count_errors(errors: Iterable[MentionError]) -> dict[str, ErrorCounts]:
    """Counts errors by category; every category is there."""
    own = {category: [error for error in errors if error.category == category] for category in CATEGORIES}
    return {
        category: ErrorCounts(
            len(found), sum(len(error.gold) for error in found), sum(len(error.predicted) for error in found)
        )
        for category, found in own.items()
    }


Group = tuple[list[int], list[int]]
"""The positions of annotated and of predicted mentions that are one error."""


class _Search:
    """The errors found so far, and the mentions that are in none.

    Attributes:
        gold: Which annotated mentions are left, (items,) bool.
        predicted: Which predicted ones are.
        errors: The errors.
    """

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self.gold = np.ones(len(matching.gold.items), dtype=bool)
        self.predicted = np.ones(len(matching.predicted.items), dtype=bool)
        self.errors: list[MentionError] = []

    def take(self, category: str, groups: Iterable[Group]) -> None:
        """Makes each group an error; its mentions are left no more."""
        gold, predicted = self._matching.gold, self._matching.predicted
        for ones, others in groups:
            self.gold[ones] = False
            self.predicted[others] = False
            document = int(gold.documents[ones[0]] if ones else predicted.documents[others[0]])
            found = tuple(gold.items[one] for one in ones), tuple(predicted.items[one] for one in others)
            self.errors.append(MentionError(category, document, *found))

    def one_to_one(self, kept: NDArray[np.bool_]) -> list[Group]:
        """Returns as many of these pairs as there can be, of mentions that are left."""
        pairs = self._matching.most_pairs(kept & self._both_left())
        return [([one], [other]) for one, other in pairs.tolist()]

    def hanging_together(self, kept: NDArray[np.bool_]) -> list[Group]:
        """Returns the mentions that are left and that these pairs join, directly or through others."""
        pairs = self._matching.pairs[kept & self._both_left()]
        count = len(self.gold)
        size = count + len(self.predicted)
        joined = csr_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1] + count)), shape=(size, size))
        _, component = connected_components(joined, directed=False)
        groups: dict[int, Group] = {}
        for one in np.unique(pairs[:, 0]).tolist():
            groups.setdefault(int(component[one]), ([], []))[0].append(one)
        for other in np.unique(pairs[:, 1]).tolist():
            groups[int(component[other + count])][1].append(other)
        return list(groups.values())

    def _both_left(self) -> NDArray[np.bool_]:
        """Returns which pairs are of mentions that are both left, (pairs,)."""
        ones, others = self._matching.pairs.T
        left: NDArray[np.bool_] = self.gold[ones] & self.predicted[others]
        return left
