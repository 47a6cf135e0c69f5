"""Disorder in training examples, the same for every task: what `Task.corrupt` is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedstrata.core.seeding import Seed


def permuted(arrays: Sequence[np.ndarray], movable: Sequence[np.ndarray], rng: Seed) -> list[np.ndarray]:
    """Permutes the movable elements of all arrays among their places; the others stay.

    Args:
        arrays: (length,) each.
        movable: Which of their elements move, (length,) bool each.
        rng: Seed of the permutation.

    Returns:
        Arrays of the same lengths and dtypes.
    """
    if not arrays:
        return []
    whole, moves = np.concatenate(arrays), np.concatenate(movable)
    whole[moves] = rng.numpy().permutation(whole[moves])
    return np.split(whole, np.cumsum([len(array) for array in arrays])[:-1])


def shuffled_windows(windows: Sequence[np.ndarray], tokenizer: Any, rng: Seed) -> list[np.ndarray]:
    """Permutes the tokens of each window; special tokens, the unknown one included, keep their places.

    Args:
        windows: Token ids, (tokens,) each.
        tokenizer: The tokenizer they are of.
        rng: Seed of the permutations.
    """
    special = np.array(tokenizer.all_special_ids)
    return [
        permuted([window], [~np.isin(window, special)], rng.child(index))[0]
        for index, window in enumerate(windows)
    ]
