"""The memory of a training step that depends on the batch: what is kept for the backward pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class SavedActivations:
    """Adds up what autograd keeps for a backward pass, by its own hooks: each storage once, no parameters.

    Copies of weights in a lower precision, which autocast makes, are kept too and count. With activation
    checkpointing what is kept between the blocks counts, and not what is computed again.

    Args:
        module: The model.

    Attributes:
        bytes: What has been kept since `counted` was last entered.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        self._alive: set[int] = set()
        self.bytes = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts within the block, which is one forward pass; the backward pass may come after it."""
        self._alive.clear()
        self.bytes = 0
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place not in self._parameters and place not in self._alive:
            self._alive.add(place)
            self.bytes += storage.nbytes()
        return tensor
