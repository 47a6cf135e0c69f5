"""What stands in a segment of a model where another side's layers would be: nothing that has weights.

A segment is the transformers model itself, so that its own code still makes masks, rotary positions and the
per-layer choices between them (sliding windows). Only its layers are gone. A block of the other side becomes
an empty one, of the same class and with the same attributes, which hands on the hidden states that it gets.
Any other layer becomes an `Absent`.

Where there is a key-value cache an empty block notes in it how many tokens went by, one number a token:
models ask the cache of their first block, or of the first with a sliding window, where in the text they are.
The number is the row's, so that it can be told which rows have been taken out.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from fedstrata.models.prefix import as_returned


class Absent(nn.Module):
    """Stands in for a layer of the other side, or for several in a module.

    Hidden states pass through it. For ids and masks it answers with one number, which adds nothing to them.

    Args:
        known: Whether the architecture is known to use the layer for nothing but the hidden states under its
            first block, which are replaced in any case. If not, the number is NaN: where it is used for
            anything else, that shows.
    """

    def __init__(self, *, known: bool) -> None:
        super().__init__()
        self._number = 0.0 if known else math.nan

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the first argument that has a vector for each token, else one number."""
        for given in (*args, *kwargs.values()):
            if isinstance(given, Tensor) and given.is_floating_point() and given.ndim > 2:
                return given
        return torch.tensor(self._number)


def empty(block: nn.Module, index: int, returns: int) -> None:
    """Takes everything out of a block.

    Args:
        block: The block; from now on it hands on what it gets.
        index: Its number, counted from 0.
        returns: As in `fedstrata.models.blocks.Family`.
    """
    for held in (block._modules, block._parameters, block._buffers):
        held.clear()
    block.forward = partial(hand_on, index, returns)


def hand_on(index: int, returns: int, /, *args: Any, **kwargs: Any) -> Any:
    """Answers for block `index` with the hidden states that it got."""
    states = states_of(args, kwargs)
    note_tokens(cache_of(args, kwargs), index, states)
    return as_returned(states, returns)


def states_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Returns the hidden states among the arguments of a block, (rows, tokens, hidden)."""
    states: Tensor = args[0] if args else kwargs["hidden_states"]
    return states


def cache_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Cache | None:
    """Returns the key-value cache among the arguments of a block; none if there is none."""
    return next((each for each in (*args, *kwargs.values()) if isinstance(each, Cache)), None)


def note_tokens(cache: Cache | None, index: int, states: Tensor) -> None:
    """Lets a cache know that block `index` saw these tokens, (rows, tokens, hidden)."""
    if cache is not None:
        if cache.get_seq_length(index):
            numbers = cache.layers[index].keys[:, :, -1:]
        else:  # as keys: rows, heads, tokens, width
            rows = torch.arange(len(states), dtype=torch.int32, device=states.device)
            numbers = rows[:, None, None, None]
        seen = numbers.expand(-1, 1, states.shape[1], 1)
        cache.update(seen, seen, index)


def noted_rows(cache: Cache, index: int) -> list[int]:
    """Returns which rows a cache that has begun still has, as `note_tokens` counted them.

    Whoever generates takes rows that have ended out of the cache, and tells nobody.
    """
    numbers: list[int] = cache.layers[index].keys[:, 0, -1, 0].tolist()
    return numbers
