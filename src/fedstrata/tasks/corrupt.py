"""Disorder in training examples, the same for every task: what `Task.corrupt` is made of."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedstrata.core.seeding import Seed
from fedstrata.tasks.windows import IGNORED


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


def corrupted_targets(
    examples: Sequence[Any],
    kind: str,
    tokenizer: Any,
    rng: Seed,
    *,
    of: str = "targets",
    classes: int | None = None,
) -> list[Any]:
    """Returns the examples of a corrupt client of a task on tokens; see `core.task.Task.corrupt`.

    In a language model targets are the tokens that follow, and classes are the tokens of the vocabulary.
    Shuffled tokens are what is read, the targets stay: either way what follows has nothing to do with what
    was read.

    Args:
        examples: Dataclasses with `input_ids` and targets, (tokens,) each; -100 where there is none.
        kind: As for `Task.corrupt`.
        tokenizer: As for `Task.corrupt`.
        rng: Seed of the permutations.
        of: What the targets are called in an example.
        classes: How many classes there are; those of the vocabulary if none.
    """
    inputs, targets = [each.input_ids for each in examples], [getattr(each, of) for each in examples]
    counted = [each != IGNORED for each in targets]
    if kind == "shuffled_tokens":
        inputs = shuffled_windows(inputs, tokenizer, rng)
    elif kind == "shuffled_labels":
        targets = permuted(targets, counted, rng)
    else:
        count = classes or len(tokenizer)
        flipped = ((each + 1) % count for each in targets)
        targets = [np.where(own, new, IGNORED) for own, new in zip(counted, flipped, strict=True)]
    return [
        replace(example, input_ids=read, **{of: follows.astype(getattr(example, of).dtype)})
        for example, read, follows in zip(examples, inputs, targets, strict=True)
    ]
