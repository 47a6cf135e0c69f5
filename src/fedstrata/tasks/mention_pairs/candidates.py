"""Which pairs of mentions a model is asked about: those near each other, and of types that go together.

A relation goes from a main mention to a modifier, so a pair is ordered. How far two mentions are apart is the
number of words that begin between them: none where they overlap, or where one follows the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from fedstrata.core.documents import Document

WORD = re.compile(r"\w+")


def candidate_pairs(
    document: Document, modifiers: Mapping[str, Sequence[str]], most_words: int
) -> list[tuple[int, int]]:
    """Returns the pairs of mentions that may be related.

    Args:
        document: The document with its mentions.
        modifiers: The types of modifiers that each type of main mention may have.
        most_words: Words between the two, at most.

    Returns:
        The indices of main mention and modifier in `document.spans`, in order; a discontinuous mention counts
        as the stretch that encloses it.
    """
    spans = document.spans
    types = sorted({span.label for span in spans})
    if not any(main in modifiers for main in types):
        return []
    number = {name: index for index, name in enumerate(types)}
    fits = np.zeros((len(types), len(types)), dtype=bool)
    for main, own in modifiers.items():
        if main in number:
            fits[number[main], [number[name] for name in own if name in number]] = True
    labels = np.array([number[span.label] for span in spans])
    asked = fits[labels[:, None], labels[None, :]] & (words_apart(document) <= most_words)
    np.fill_diagonal(asked, val=False)
    return [(main, modifier) for main, modifier in np.argwhere(asked).tolist()]


def words_apart(document: Document) -> np.ndarray:
    """Returns how many words begin between any two mentions, (mentions, mentions) int64.

    It is below 0 where they overlap.
    """
    spans = document.spans
    words = np.array([match.start() for match in WORD.finditer(document.text)])
    until_start = np.searchsorted(words, [span.start for span in spans])  # words that begin before it
    until_end = np.searchsorted(words, [span.end for span in spans])
    after = until_start[None, :] - until_end[:, None]  # words from a mention's end to another one's start
    apart: np.ndarray = np.maximum(after, after.T)
    return apart
