"""Documents with labels, as a model reads and answers them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LabelledDocument:
    """A document as the model reads it.

    Attributes:
        document: Index of the document in the sequence that was encoded.
        windows: Token ids of its windows from left to right, at least one, (tokens,) int32 each: its rows.
        token_types: Which text of a pair each token belongs to, (tokens,) int8 for each window; empty where
            the tokenizer tells no types, and where none of the documents encoded together is a pair.
        targets: The numbers of its labels, (its labels,) int32.
        pad_id: The id with which its windows are padded.
    """

    document: int
    windows: tuple[np.ndarray, ...]
    token_types: tuple[np.ndarray, ...]
    targets: np.ndarray
    pad_id: int

    def __len__(self) -> int:
        return sum(map(len, self.windows))


@dataclass(frozen=True, slots=True)
class LabelAnswer:
    """What the model says of a document.

    Attributes:
        labels: The labels it gives, in the task's order.
        probabilities: Of each of the task's labels, (labels,) float64; with one label a document they sum to
            one.
    """

    labels: tuple[str, ...]
    probabilities: np.ndarray


def pool(logits: Tensor, document: Tensor, documents: int, pooling: str) -> Tensor:
    """Pools the logits of windows over the documents they belong to.

    Args:
        logits: Of each window, (windows, labels).
        document: The number of each window's document, (windows,) int64; all have one.
        documents: How many documents there are.
        pooling: `mean` or `max`; of equal maxima each gets its share of the gradient.

    Returns:
        Of each document, (documents, labels).
    """
    shape = (documents, logits.shape[1])
    if pooling == "max":
        start = logits.new_full(shape, -torch.inf)
        return start.scatter_reduce(0, document[:, None].expand_as(logits), logits, "amax")
    sums = logits.new_zeros(shape).index_add(0, document, logits)
    return sums / torch.bincount(document, minlength=documents)[:, None]
