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

import copy
from collections.abc import Collection
from itertools import chain

from torch import nn
from transformers import PreTrainedModel

from fedstrata.core.cut import Cut
from fedstrata.models.blocks import block_modules, family_of, find_layout, is_listed, transformers_model
from fedstrata.models.state import Model
from fedstrata.split.stand_ins import Absent, empty


def leave_ends(module: nn.Module, cut: Cut) -> None:
    """Takes the middle out of a model, which becomes the client's side.

    Args:
        module: A transformers model, with weights or without; changed in place.
        cut: Where it is divided.

    Raises:
        ConfigurationError: The cut does not fit, or there is no single list of blocks.
    """
    _without_blocks(module, cut, middle=True)


def leave_middle(module: nn.Module, cut: Cut) -> None:
    """Takes everything but the middle out of a model, which becomes the server's side; see `leave_ends`."""
    blocks, inner = _without_blocks(module, cut, middle=False), transformers_model(module)
    _take_out(inner, {blocks, *_shared(inner)}, inner.get_input_embeddings(), known=is_listed(inner))
    for part in inner.modules():  # no two ends are left that could be tied
        if isinstance(part, PreTrainedModel):
            part._tied_weights_keys = {}
            part.all_tied_weights_keys = {}


def divide(model: Model, cut: Cut) -> tuple[Model, Model]:
    """Returns both sides of a model in memory; see `ends_of` and `middle_of`."""
    return ends_of(model, cut), middle_of(model, cut)


def ends_of(model: Model, cut: Cut, own: Collection[str] = ()) -> Model:
    """Returns the client's side of a model in memory, with its part of the adapter if there is one.

    No other weight is copied than those that are named: the side has the model's own, and training them
    trains the model. As in any new handle every parameter is frozen.

    Args:
        model: The model.
        cut: Where it is divided.
        own: Parameters of which the side gets copies, as they are at present.

    Raises:
        ConfigurationError: The cut does not fit.
    """
    module = _twin(model.module, {id(each) for each in model.parameters(own)})
    leave_ends(module, cut)
    return _side(module, model)


def middle_of(model: Model, cut: Cut, own: Collection[str] = ()) -> Model:
    """Returns the server's side of a model in memory; as `ends_of`, but what both sides hold is copied."""
    shared = chain.from_iterable(part.parameters() for part in _shared(transformers_model(model.module)))
    module = _twin(model.module, {id(each) for each in (*model.parameters(own), *shared)})
    leave_middle(module, cut)
    return _side(module, model)


def _without_blocks(module: nn.Module, cut: Cut, *, middle: bool) -> nn.ModuleList:
    """Empties the blocks of the middle, or all others; returns all of them."""
    layout = find_layout(module)
    blocks, own = block_modules(module, layout), cut.middle(len(layout.blocks))
    returns = family_of(transformers_model(module)).returns
    for index, block in enumerate(blocks):
        if (index in own) == middle:
            empty(block, index, returns)
    return blocks


def _twin(module: nn.Module, copied: Collection[int]) -> nn.Module:
    """Returns a module of the same parts with the same weights, in the same memory but for some.

    Args:
        module: A transformers model.
        copied: Identities of the parameters that are copied.
    """
    kept = {id(parameter): parameter for parameter in module.parameters() if id(parameter) not in copied}
    return copy.deepcopy(module, kept)


def _side(module: nn.Module, model: Model) -> Model:
    """Returns a handle around what is left of a model's module."""
    held = dict(module.named_parameters())
    return Model(
        module,
        model.tokenizer,
        name=model.name,
        new_parameters=[name for name in model.new_parameters if name in held],
        learnable=[name for name in model.layout.all if name in held] if model.layout.frozen else None,
    )


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
