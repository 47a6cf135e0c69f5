"""Which characters of an output are which of its source, by all cheapest alignments.

An alignment's cost is its number of insertions, deletions and substitutions (Levenshtein). One of cost d
keeps within d places of the diagonal, so a band around it is enough: it is made wider until no cheaper way
can lie outside.
"""

from __future__ import annotations

import numpy as np

_MOST_CELLS = 2**23
"""Cells of a band at most; an output that differs so much has little to do with its source."""
_FIRST_MARGIN, _WIDER = 8, 4
"""Places that the first band has on both sides, and how many times more the next."""
_NOWHERE = np.int32(2**29)
"""The cost of what cannot be."""
_SENTINEL = np.uint32(2**32 - 1)
"""No code point."""


def unique_matches(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Aligns two arrays.

    Args:
        one: (n,) uint32, code points.
        other: (m,) uint32, code points.

    Returns:
        Of each element of `one` the index of the element of `other` with which every cheapest alignment
        matches it; -1 where there is none, (n,) int64.
    """
    if np.array_equal(one, other):
        return np.arange(len(one))
    margin, excess = _FIRST_MARGIN, len(other) - len(one)
    while len(one) and len(other):
        low, high = min(excess, 0) - margin, max(excess, 0) + margin
        if (len(one) + 1) * (high - low + 1) > _MOST_CELLS:
            break
        before = _distances(one, other, low, high)
        least = before[-1, excess - low]
        if least < abs(excess) + 2 * (margin + 1):  # what it costs to leave the band and to come back
            behind = _distances(one[::-1], other[::-1], low, high)[::-1, ::-1]
            differing = _differing(one, other, low, high)
            # Element i of `one` is paired with element i + diagonal of `other`, or dropped in front of it.
            paired = before[:-1] + differing + behind[1:] == least
            dropped = before[:-1, 1:] + 1 + behind[1:, :-1] == least
            unique = (paired.sum(axis=1) == 1) & ~dropped.any(axis=1) & (paired & ~differing).any(axis=1)
            return np.where(unique, np.arange(len(paired)) + low + paired.argmax(axis=1), -1)
        margin *= _WIDER
    return np.full(len(one), -1, dtype=np.int64)


def _differing(one: np.ndarray, other: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns whether element i of `one` is another than element i + low + column, (n, diagonals) bool."""
    behind = max(0, len(one) + high - len(other))
    padded = np.concatenate([np.full(-low, _SENTINEL), other, np.full(behind, _SENTINEL)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, high - low + 1)[: len(one)]
    differing: np.ndarray = windows != one[:, None]
    return differing


def _distances(one: np.ndarray, other: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns the edit distances between beginnings of two arrays, (n + 1, diagonals) int32.

    Row i, column c is of the first i elements of `one` and the first i + low + c of `other`. Where there are
    no so many of `other` it means nothing, and nothing comes of it.
    """
    differing = _differing(one, other, low, high)
    steps = np.arange(high - low + 1, dtype=np.int32)
    table = np.empty((len(one) + 1, len(steps)), dtype=np.int32)
    table[0] = np.where(steps + low < 0, _NOWHERE, steps + low)
    for row in range(1, len(table)):
        cheapest = table[row - 1] + differing[row - 1]
        cheapest[:-1] = np.minimum(cheapest[:-1], table[row - 1, 1:] + 1)
        # Insertions chain along the row: the least of what any earlier cell costs plus the steps from it.
        table[row] = np.minimum.accumulate(cheapest - steps) + steps
    return table
