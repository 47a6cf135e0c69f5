"""Clients with a budget of text: FedTLU's partition.

"Each local client was allocated up to a maximum number of tokens, calculated by dividing the total dataset
size by the number of clients. A minimum number of tokens is half of this maximum number. Local datasets were
non-overlapping" (Park and Joe-Wong, "FedTLU", section V.B). A token is a word here, a run of signs that are
not blank: documents are divided before a model's tokenizer is known.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from operator import attrgetter

import numpy as np

from fedstrata.core.documents import Document

WORD = re.compile(r"\S+")


def by_words(
    documents: Sequence[Document], clients: int, rng: np.random.Generator
) -> list[tuple[Document, ...]]:
    """Deals text to clients until each has what it may hold; about a quarter is left over.

    Documents are taken in a random order, and cut between two words where a budget ends.

    Args:
        documents: Documents without mentions, which could be cut in two; both pieces have its labels.
        clients: K. Budgets are uniform in [N / 2K, N / K], where N is the number of words of all documents.
        rng: Draws the budgets and the order.

    Returns:
        Each client's documents, sorted by id; a piece of one has the number of its first word behind the
        document's id, for example `a#120`. All are empty if there are fewer than two words a client.
    """
    order = [documents[index] for index in rng.permutation(len(documents))]
    counts = [len(document.text.split()) for document in order]
    most = sum(counts) // clients
    if most < 2:
        return [()] * clients
    stops = np.cumsum(rng.integers(most // 2, most, size=clients, endpoint=True))
    ends = np.cumsum(counts)  # where each document ends in the text of all, counted in words
    places: dict[int, np.ndarray] = {}  # the words of each document that is cut
    dealt = []
    for start, stop in pairwise([0, *stops.tolist()]):
        first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        pieces = []
        for place in range(first, last + 1):
            begin, document = int(ends[place]) - counts[place], order[place]
            cut = max(0, start - begin), min(counts[place], stop - begin)
            if cut != (0, counts[place]):
                if place not in places:
                    places[place] = _words(document.text, counts[place])
                document = _cut(document, places[place], *cut)
            pieces.append(document)
        dealt.append(tuple(sorted(pieces, key=attrgetter("id"))))
    return dealt


def _words(text: str, count: int) -> np.ndarray:
    """Returns where each word of a text starts and ends, (words, 2) int64; a corpus may be one text."""
    spans = chain.from_iterable(match.span() for match in WORD.finditer(text))
    return np.fromiter(spans, np.int64, 2 * count).reshape(-1, 2)


def _cut(document: Document, words: np.ndarray, first: int, end: int) -> Document:
    """Returns the words from `first` up to `end` of a document, given where they all are."""
    text = document.text[words[first][0] : words[end - 1][1]] if first < end else ""
    return replace(document, id=f"{document.id}#{first + 1}", text=text)
