"""Which predicted items match which annotated ones: one to one, and as many as can be.

An item is what is scored: a mention, which is at one place in its text, or a relation, which joins two.
Places are counted in characters of the document. Two places overlap if they share a character. A
discontinuous mention is at its fragments and not between them: what lies in a gap does not overlap it.

Matches are a maximum matching of the graph of items that agree, by the algorithm of Hopcroft and Karp (1973)
of scipy. Going through both sides in the order of their starts and pairing whatever overlaps gives as many
where no item of one side lies within another of it; with nested ones it may give fewer. Of the annotated
spans 0-10 and 1-2 and the predicted ones 1-2 and 8-9 it pairs 0-10 with 1-2 and has nothing left for 8-9.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from fedstrata.core.documents import Span
from fedstrata.metrics.counts import Counts

T = TypeVar("T")
Place = tuple[tuple[int, int], ...]
"""The stretches of text that something is at, `(start, end)` each, in order."""


class Scheme(NamedTuple):
    """When a predicted item and an annotated one agree.

    Attributes:
        lenient: Whether it is enough that their places overlap; else they must be equal.
        untyped: Whether they may be of different types.
    """

    lenient: bool = False
    untyped: bool = False


STRICT, LENIENT = Scheme(), Scheme(lenient=True)

SCHEMES: Mapping[str, Scheme] = {
    "": STRICT,
    "lenient_": LENIENT,
    "untyped_": Scheme(untyped=True),
    "untyped_lenient_": Scheme(lenient=True, untyped=True),
}
"""Every scheme, by what the names of its scores begin with."""


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """A mention or a relation.

    Attributes:
        places: Where a mention is; where the main mention of a relation is, and its modifier.
        label: The type.
    """

    places: tuple[Place, ...]
    label: str


@dataclass(frozen=True, slots=True)
class Side:
    """The annotated or the predicted items of all documents.

    Attributes:
        items: The items, by document; equal ones of a document are one.
        documents: The number of the document of each item, (items,) int64.
    """

    items: tuple[Item, ...]
    documents: NDArray[np.int64]

    @classmethod
    def of(cls, documents: Iterable[Iterable[Item]]) -> Self:
        """Collects the items of each document."""
        own = [sorted(set(items)) for items in documents]
        numbers = np.repeat(np.arange(len(own)), [len(items) for items in own])
        return cls(tuple(item for items in own for item in items), numbers.astype(np.int64))


class Matching:
    """The annotated and the predicted items of the same documents, and which of them agree.

    Args:
        gold: What is annotated in each document.
        predicted: What is predicted in each document, in the same order.
        item: Returns what is scored of it.

    Attributes:
        documents: The number of documents.
        gold: The annotated items.
        predicted: The predicted ones.
        pairs: The positions of an annotated and a predicted item of one document whose places overlap, of all
            that do, (pairs, 2) int64.
        same_places: Which pairs are at the same places, (pairs,) bool.
        same_label: Which pairs are of one type, (pairs,) bool.

    Raises:
        ValueError: There are not as many documents on both sides.
    """

    def __init__(
        self, gold: Sequence[Iterable[T]], predicted: Sequence[Iterable[T]], item: Callable[[T], Item]
    ) -> None:
        both = [(map(item, ones), map(item, others)) for ones, others in zip(gold, predicted, strict=True)]
        self.documents = len(both)
        self.gold, self.predicted = Side.of(own for own, _ in both), Side.of(own for _, own in both)
        pairs = _with_close_first_places(self.gold, self.predicted, self.documents)
        items = [(self.gold.items[one], self.predicted.items[other]) for one, other in pairs.tolist()]
        overlap = [all(map(_overlap, one.places, other.places)) for one, other in items]
        self.pairs = pairs[np.array(overlap, dtype=bool)]
        items = [pair for pair, both_overlap in zip(items, overlap, strict=True) if both_overlap]
        self.same_places = np.array([one.places == other.places for one, other in items], dtype=bool)
        self.same_label = np.array([one.label == other.label for one, other in items], dtype=bool)

    def matched(self, scheme: Scheme) -> NDArray[np.int64]:
        """Returns the positions of the items that match each other, (matches, 2): as many as can be."""
        agree = np.ones(len(self.pairs), dtype=bool)
        if not scheme.lenient:
            agree &= self.same_places
        if not scheme.untyped:
            agree &= self.same_label
        return self.most_pairs(agree)

    def most_pairs(self, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Returns the largest choice of these pairs in which every item occurs once at most, (chosen, 2).

        Args:
            kept: Which of `pairs` to choose from, (pairs,).
        """
        pairs: NDArray[np.int64] = self.pairs[kept]
        if not len(pairs):
            return pairs
        shape = len(self.gold.items), len(self.predicted.items)
        graph = csr_matrix((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=shape)
        partner = maximum_bipartite_matching(graph, perm_type="column")
        taken = np.flatnonzero(partner >= 0)
        return np.column_stack([taken, partner[taken]]).astype(np.int64)

    def total(self, scheme: Scheme) -> Counts:
        """Counts over all documents."""
        return Counts(len(self.gold.items), len(self.predicted.items), len(self.matched(scheme)))

    def by_document(self, scheme: Scheme) -> NDArray[np.int64]:
        """Returns what is annotated, predicted and correct in each document, (documents, 3)."""
        correct = self.gold.documents[self.matched(scheme)[:, 0]]
        columns = (self.gold.documents, self.predicted.documents, correct)
        counts: NDArray[np.int64] = np.column_stack(
            [np.bincount(column, minlength=self.documents) for column in columns]
        )
        return counts

    def by_type(self, *, lenient: bool = False) -> dict[str, Counts]:
        """Counts for each type that occurs on either side, in the order of their names."""
        gold, predicted = (Counter(item.label for item in side.items) for side in (self.gold, self.predicted))
        matched = self.matched(Scheme(lenient))[:, 0].tolist()
        correct = Counter(self.gold.items[position].label for position in matched)
        return {
            label: Counts(gold[label], predicted[label], correct[label]) for label in sorted(gold | predicted)
        }


def place_of(span: Span) -> Place:
    """Returns where a mention is."""
    return span.fragments or ((span.start, span.end),)


def _overlap(one: Place, other: Place) -> bool:
    """Whether two places share a character."""
    return any(start < end and begin < stop for begin, end in one for start, stop in other)


def _with_close_first_places(gold: Side, predicted: Side, documents: int) -> NDArray[np.int64]:
    """Returns pairs of one document among which are all whose first places overlap, (pairs, 2).

    Gaps in places are not looked at. All documents are put on one line, each behind the one before it, so
    that one search finds the pairs of all.
    """
    places = [[item.places[0] for item in side.items] for side in (gold, predicted)]
    bounds = [np.array([(own[0][0], own[-1][1]) for own in each], np.int64).reshape(-1, 2) for each in places]
    lengths = np.zeros(documents + 1, dtype=np.int64)
    for side, own in zip((gold, predicted), bounds, strict=True):
        np.maximum.at(lengths, side.documents + 1, own[:, 1])
    begins = lengths.cumsum()
    starts, ends = (bounds[0] + begins[gold.documents, None]).T
    other_starts, other_ends = (bounds[1] + begins[predicted.documents, None]).T
    order = np.argsort(other_starts, kind="stable")
    # Those that begin before an item ends, but for the first ones, all of which end before it begins.
    last = np.searchsorted(other_starts[order], ends, side="left")
    first = np.searchsorted(np.maximum.accumulate(other_ends[order]), starts, side="right")
    counts = np.maximum(last - first, 0)
    within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    others = order[within + np.repeat(first, counts)]
    return np.column_stack([np.repeat(np.arange(len(counts)), counts), others]).astype(np.int64)
