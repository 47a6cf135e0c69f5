"""One step of the server for the batches of several clients.

Source: FL-LLaMA, section 3.3.1, client-batch parallel training. The hidden states of the clients' batches are
padded to one length and run through B as one batch. Attention is within a row and rows know their own
lengths, so each client gets what it would have got alone.

What comes back to be backpropagated is the gradient of each client's own summed loss. If they went through B
as they are, its gradient would be that of the sum over all clients: with M of them M times too large. So each
is scaled before the joint backward pass, and B's gradient is a mean: over all terms of all clients (`terms`),
or over the clients, of each one's mean loss (`clients`). The gradient that goes back to a client is that of
its own summed loss again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstrata.split.rows import Rows


class Joint:
    """Batches of several clients as one.

    Args:
        parts: The lengths of the rows of each client's batch, padded on the right.

    Attributes:
        rows: The lengths of all rows.

    Raises:
        ValueError: There is no batch, or one is padded on the left.
    """

    def __init__(self, parts: Sequence[Rows]) -> None:
        if not parts or any(any(part.padding) and part.side == "left" for part in parts):
            raise ValueError("only batches padded on the right can be joined, and at least one")
        self._parts = tuple(parts)
        length = max(part.length for part in parts)
        padding = [length - part.length + own for part in parts for own in part.padding]
        self.rows = Rows(length, tuple(padding))

    def shapes(self, hidden: int) -> list[tuple[int, int, int]]:
        """Returns (rows, length, hidden) of each client's part."""
        return [(len(part.padding), part.length, hidden) for part in self._parts]

    def join(self, tensors: Sequence[Tensor], scales: Sequence[float] | None = None) -> Tensor:
        """Joins hidden states, or gradients by them.

        Args:
            tensors: Of each client, (rows, length, hidden).
            scales: What each client's is multiplied by; see `mean_scales`.

        Returns:
            (all rows, greatest length, hidden); zero where there is padding for the others' sake.
        """
        padded = [F.pad(each, (0, 0, 0, self.rows.length - each.shape[1])) for each in tensors]
        return torch.cat(padded if scales is None else _scaled(padded, scales))

    def split(self, tensor: Tensor, scales: Sequence[float] | None = None) -> list[Tensor]:
        """Gives each client its own part of what `join` returned, or of the gradient by it.

        Args:
            tensor: (all rows, greatest length, hidden).
            scales: What `join` was given.

        Returns:
            Of each client, (rows, length, hidden), divided by its scale; one whose scale is 0 gets zeros.
        """
        sizes = [len(part.padding) for part in self._parts]
        pieces = torch.split(tensor, sizes)
        own = [piece[:, : part.length] for piece, part in zip(pieces, self._parts, strict=True)]
        return own if scales is None else _scaled(own, [1.0 / scale if scale else 0.0 for scale in scales])


def mean_scales(terms: Sequence[float]) -> list[float]:
    """Returns by what gradients of summed losses are multiplied so that their sum is that of a mean of means.

    Args:
        terms: How many terms each client's sum has; one with none has no part in the mean.

    Example:
        >>> mean_scales([1, 3, 0])
        [0.5, 0.16666666666666666, 0.0]
    """
    clients = sum(own > 0 for own in terms)
    return [1.0 / (clients * own) if own else 0.0 for own in terms]


def _scaled(tensors: Sequence[Tensor], scales: Sequence[float]) -> list[Tensor]:
    return [each * scale for each, scale in zip(tensors, scales, strict=True)]
