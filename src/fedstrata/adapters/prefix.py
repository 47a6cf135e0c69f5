"""Prefixes of PEFT divided by block, so that methods can train, send, merge and keep them block by block."""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

SAVED = "prompt_embeddings"
"""What PEFT saves a prefix as: the keys and values of all blocks, (tokens, blocks x 2 x width)."""
PLACE = "prompt_encoder.default.embedding.parametrizations.weight.original"
"""The names of the parts of a divided prefix, before the number of the block."""


class Beside(nn.Module):
    """Puts the parts of a weight beside each other; a parametrization in torch's sense.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, *parts: Tensor) -> Tensor:
        """Returns the whole weight: (tokens, width) each to (tokens, all widths)."""
        return torch.cat(parts, dim=1)

    def right_inverse(self, whole: Tensor) -> tuple[Tensor, ...]:
        """Returns the parts of a whole weight."""
        return torch.chunk(whole, self.count, dim=1)


def divide(module: nn.Module, blocks: int) -> None:
    """Gives every block's keys and values a parameter of their own; the prefix computes what it did.

    Args:
        module: A model with PEFT's prefix.
        blocks: How many blocks it has.
    """
    embedding = module.get_submodule("prompt_encoder.default.embedding")
    parametrize.register_parametrization(embedding, "weight", Beside(blocks))
