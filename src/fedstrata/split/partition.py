"""Dividing a model into its ends, which the client holds, and its middle, which the server holds.

Source: FL-LLaMA, sections 3.1 and 3.5: Blocks_A, the embedding and the first p blocks; Blocks_B, the middle;
    Blocks_C, the last q blocks, the final norm and the head.

A and C are one module on the client, which is the transformers model with an empty middle: an output layer
that is tied to the embedding stays tied. B is the transformers model with nothing but its middle blocks: it
has no embedding, no final norm and no head. Every block is on exactly one side. The parameters keep the names
they have in the whole model, so adapters, checkpoints and averages of both sides fit together.

The hidden states that enter a segment are what goes into its first block, and those that leave it are what
its last block gives. So what a model does between two blocks of different sides is done by the client.
Modules with which blocks of every depth compute (DeBERTa's relative positions and convolution, MPNet's
position bias) are the one thing that both sides hold (`fedstrata.models.blocks.Family.shared`): each gets the
part of the gradient that comes from its own blocks, and the gradient of the whole model is the sum of both.

A side is made from a model in memory by `divide`, or of a saved model by

    load(settings, kind=kind, seed=seed, without=partial(leave_ends, cut=cut))      # the client
    load(settings, kind=kind, seed=seed, without=partial(leave_middle, cut=cut))    # the server

(`fedstrata.models.load.load`), which empties the model while it has no weights yet: of a checkpoint, sharded
or not, only the side's own tensors are read.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import chain

from torch import nn
from transformers import PreTrainedModel

from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.models.blocks import block_modules, family_of, find_layout, is_listed, transformers_model
from fedstrata.models.state import Model
from fedstrata.split.stand_ins import Absent, empty


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a model is divided.

    Attributes:
        front: Blocks of the client below the middle, p; 0 leaves it the embedding.
        back: Blocks of the client above the middle, q; 0 leaves it the final norm and the head.
    """

    front: int
    back: int

    def middle(self, blocks: int) -> range:
        """Returns the numbers of the middle's blocks, counted from 0.

        Args:
            blocks: How many the model has.

        Raises:
            ConfigurationError: A count is negative, or no block is left for the middle.
        """
        problems = [
            Problem(f"split.{name}", f"must be at least 0, not {count}")
            for name, count in (("front", self.front), ("back", self.back))
            if count < 0
        ]
        if not problems and self.front + self.back >= blocks:
            message = (
                f"{self.front} blocks in front and {self.back} at the back leave none of the model's "
                f"{blocks} for the server; both together may be at most {blocks - 1}"
            )
            problems.append(Problem("split.front", message))
        if problems:
            raise ConfigurationError(problems)
        return range(self.front, blocks - self.back)


def leave_ends(module: nn.Module, cut: Cut) -> None:
    """Takes the middle out of a model, which becomes the client's side.

    Args:
        module: A transformers model, with weights or without; changed in place.
        cut: Where it is divided.

    Raises:
        ConfigurationError: The cut does not fit, or there is no single list of blocks.
    """
    layout = find_layout(module)
    middle = cut.middle(len(layout.blocks))
    returns = family_of(transformers_model(module)).returns
    blocks = block_modules(module, layout)
    for index in middle:
        empty(blocks[index], index, returns)


def leave_middle(module: nn.Module, cut: Cut) -> None:
    """Takes everything but the middle out of a model, which becomes the server's side.

    Args:
        module: A transformers model, with weights or without; changed in place.
        cut: Where it is divided.

    Raises:
        ConfigurationError: The cut does not fit, or there is no single list of blocks.
    """
    layout = find_layout(module)
    middle = cut.middle(len(layout.blocks))
    inner, blocks = transformers_model(module), block_modules(module, layout)
    for index, block in enumerate(blocks):
        if index not in middle:
            empty(block, index, family_of(inner).returns)
    _take_out(inner, {blocks, *_shared(inner)}, inner.get_input_embeddings(), known=is_listed(inner))
    for part in inner.modules():  # no two ends are left that could be tied
        if isinstance(part, PreTrainedModel):
            part._tied_weights_keys = {}
            part.all_tied_weights_keys = {}


def divide(model: Model, cut: Cut) -> tuple[Model, Model]:
    """Returns both sides of a model in memory.

    No weight is copied but those that both sides hold: the sides have the model's own, and training them
    trains it. As in any new handle every parameter is frozen.

    Args:
        model: A model without an adapter; each side gets one of its own.
        cut: Where it is divided.

    Returns:
        The client's side and the server's.

    Raises:
        ConfigurationError: The cut does not fit.
    """
    ends, middle = _twin(model.module, shared=True), _twin(model.module, shared=False)
    leave_ends(ends, cut)
    leave_middle(middle, cut)
    client, server = (
        Model(
            module,
            model.tokenizer,
            name=model.name,
            new_parameters=[name for name in model.new_parameters if name in dict(module.named_parameters())],
        )
        for module in (ends, middle)
    )
    return client, server


def _twin(module: nn.Module, *, shared: bool) -> nn.Module:
    """Returns a module of the same parts with the same weights, in the same memory.

    Args:
        module: A transformers model.
        shared: Whether that goes for what both sides hold; if not, they are copied.
    """
    own: set[int] = set()
    if not shared:
        parts = _shared(transformers_model(module))
        own = {id(parameter) for parameter in chain.from_iterable(part.parameters() for part in parts)}
    kept = {id(parameter): parameter for parameter in module.parameters() if id(parameter) not in own}
    return copy.deepcopy(module, kept)


def _shared(inner: PreTrainedModel) -> list[nn.Module]:
    """Returns the modules that both sides need, as far as the model has them."""
    parts = dict(inner.base_model.named_modules())
    return [parts[path] for path in family_of(inner).shared if path in parts]


def _take_out(parent: nn.Module, kept: set[nn.Module], opened: nn.Module, *, known: bool) -> None:
    """Replaces what lies under a module and has weights, but for what is kept.

    Dropout goes too, which would draw for nothing. What has no weights stays: rotary positions.

    Args:
        parent: The module.
        kept: What stays as it is.
        opened: A layer that is replaced by itself and not with what it lies in, since its place is asked for.
        known: As in `Absent`.
    """
    for name, child in list(parent.named_children()):
        if child in kept:
            continue
        if child is not opened and not {opened, *kept}.isdisjoint(child.modules()):
            _take_out(child, kept, opened, known=known)
        elif next(child.parameters(), None) is not None or isinstance(child, nn.Dropout):
            setattr(parent, name, Absent(known=known))
