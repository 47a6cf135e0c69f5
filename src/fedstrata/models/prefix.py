"""Running a model's lower blocks alone, the rest of it without them, or it without any of its blocks.

The first `cut` blocks of a model, and the embedding under them, are its prefix. While they are frozen their
output is a fixed function of the text. The functions here replace the `forward` of block instances for a
while and let the model's own code do all the rest (masks, positions, the upper blocks, the head), so that
every architecture runs exactly as it would; names, modules and the state dict do not change.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from fedstrata.core.model import Layout
from fedstrata.models.blocks import block_modules

Answer = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """What a block gave.

    Attributes:
        states: The hidden states, (rows, tokens, hidden).
        size: Length of the tuple the block returned, whose other entries nothing reads when training; 0 for
            a plain tensor.
    """

    states: Tensor
    size: int


def frozen_blocks(layout: Layout, trainable: Collection[str]) -> int:
    """Returns how many of the lowest blocks are a fixed function of the text.

    Args:
        layout: The model's parameters by part.
        trainable: Names of the parameters that train.

    Returns:
        The number of blocks below the first one that trains; 0 when anything of the embedding trains, since
        it lies below them all.
    """
    names = set(trainable)
    if not names.isdisjoint(layout.embedding):
        return 0
    training = (index for index, block in enumerate(layout.blocks) if not names.isdisjoint(block))
    return next(training, len(layout.blocks))


def prefix_names(layout: Layout, cut: int) -> tuple[str, ...]:
    """Returns the parameters on which the output of the first `cut` blocks depends."""
    own = (name for block in layout.blocks[:cut] for name in block)
    return (*layout.frozen, *layout.embedding, *own)


def run_prefix(
    module: nn.Module, layout: Layout, cut: int, call: Callable[[], object], *, stop: bool = True
) -> BlockOutput | None:
    """Runs a model and returns what block `cut - 1` gave.

    Args:
        module: The model.
        layout: Its layout.
        cut: Number of blocks to run, at least 1.
        call: Calls the model, in whatever way its task does.
        stop: Whether to break off there, and leave `call` unfinished.

    Returns:
        The output; none if `call` never came to it.
    """
    seen: list[BlockOutput] = []

    def look(block: nn.Module, inputs: Any, output: Any) -> None:
        several = isinstance(output, tuple | list)  # a list: the first GPT
        seen.append(BlockOutput(output[0], len(output)) if several else BlockOutput(output, 0))
        if stop:
            raise _SeenError

    handle = block_modules(module, layout)[cut - 1].register_forward_hook(look)
    try:
        call()
    except _SeenError:
        pass
    finally:
        handle.remove()
    return seen[0] if seen else None


@contextmanager
def replaced_prefix(
    module: nn.Module, layout: Layout, cut: int, size: int
) -> Iterator[Callable[[Tensor | None], None]]:
    """Lets stored hidden states stand in for the first `cut` blocks.

    All of these blocks answer with the states, since some models do something between two blocks (DeBERTa-v2
    convolves after the first): what comes after the last of them sees the states and nothing else.

    Args:
        module: The model.
        layout: Its layout.
        cut: Number of blocks that are replaced.
        size: As in `BlockOutput`.

    Yields:
        A function that sets the states of the next call, (rows, tokens, hidden); none lets the blocks run.
    """
    blocks = list(block_modules(module, layout)[:cut])
    current: list[Tensor | None] = [None]

    def answer(forward: Answer, /, *args: Any, **kwargs: Any) -> Any:
        states = current[0]
        return forward(*args, **kwargs) if states is None else as_returned(states, size)

    def use(states: Tensor | None) -> None:
        current[0] = states

    with answering(blocks, [partial(answer, block.forward) for block in blocks]):
        yield use


@contextmanager
def skippable_blocks(
    module: nn.Module, layout: Layout, call: Callable[[], object]
) -> Iterator[Callable[[Collection[int]], None]]:
    """Lets chosen blocks be left out of the forward and backward passes within the block.

    Source: DropPEFT, equation 2. The output of a block that is left out is its input: it computes nothing,
    keeps no activation and gets no gradient, with activation checkpointing on or off.

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


def as_returned(states: Tensor, size: int) -> Any:
    """Returns hidden states in the form in which a block would; `size` is as in `BlockOutput`."""
    return (states, *[None] * (size - 1)) if size else states


class _SeenError(Exception):
    """Ends a forward pass at the block whose output was asked for."""


@contextmanager
def answering(blocks: Sequence[nn.Module], answers: Sequence[Answer]) -> Iterator[None]:
    """Sets `forward` on these modules; what was set there before is put back."""
    before = [vars(block).get("forward") for block in blocks]
    try:
        for block, answer in zip(blocks, answers, strict=True):
            block.forward = answer
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is not None:
                block.forward = forward
            else:
                vars(block).pop("forward", None)
