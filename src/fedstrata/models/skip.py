"""Blocks that do not run: their output is their input.

Source: DropPEFT, equation 2. As in `fedstrata.models.prefix` the `forward` of block instances is replaced for
a while and the model's own code does all the rest. A block that is skipped computes nothing, keeps no
activation and gets no gradient, with activation checkpointing on or off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from fedstrata.core.model import Layout
from fedstrata.models.blocks import block_modules
from fedstrata.models.prefix import Answer, answering, as_returned, run_prefix


@contextmanager
def skippable_blocks(
    module: nn.Module, layout: Layout, call: Callable[[], object]
) -> Iterator[Callable[[Collection[int]], None]]:
    """Lets chosen blocks be left out of the forward and backward passes within the block.

    Args:
        module: The model.
        layout: Its layout.
        call: Calls the model, in whatever way its task does: what a block returns beside the hidden states
            (DeBERTa: a pair) shows only then. It is broken off behind the first block.

    Yields:
        A function that says which blocks, counted from 0, are left out from the next call on. The choice must
        last until the backward pass is over.
    """
    blocks = list(block_modules(module, layout))
    first = run_prefix(module, layout, 1, call)
    size = first.size if first is not None else 0
    skipped: set[int] = set()

    def answer(index: int, forward: Answer, /, *args: Any, **kwargs: Any) -> Any:
        if index not in skipped:
            return forward(*args, **kwargs)
        states = args[0] if args else kwargs["hidden_states"]
        return as_returned(states, size)

    def skip(chosen: Collection[int]) -> None:
        skipped.clear()
        skipped.update(chosen)

    with answering(blocks, [partial(answer, index, block.forward) for index, block in enumerate(blocks)]):
        yield skip
