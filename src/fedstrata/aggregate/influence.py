"""The mean of updates weighted by how the models they make do on the server's own documents, in one pass.

This is Fed-MedLoRA+'s server step (Algorithm 2 and section 5.2.2 of its paper): C_k = n_k I_k / sum_i n_i I_i
with I = softmax(-loss). The softmax needs every loss, but its sums do not: as in online softmax (Milakov and
Gimelshein 2018) the running sums are kept relative to the lowest loss so far and are scaled down when a lower
one arrives. The server holds one payload, whatever the number of clients, and no loss is too large or small.

With a cap a client's weight is at most a share of all, and what exceeds it goes to the others in proportion,
until none exceeds it. Whom it concerns is known at the end, but it must be fewer than 1 / cap clients, those
of most weight, since so many caps are the whole. These are kept apart and all others are summed up: with a
cap the server holds ceil(1 / cap) payloads, whatever the number of clients.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedstrata.aggregate.changes import require_weight
from fedstrata.aggregate.mean import StreamingMean
from fedstrata.core.cohort import Mean
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import Update

_ROUNDING = 1e-12  # by so much of itself a share may exceed the cap


@dataclass(frozen=True, slots=True)
class Influence:
    """How much one client counted.

    Attributes:
        loss: Of the model it sent, on the server's documents.
        influence: I_k, its share if only the losses counted.
        weight: C_k, its share of the mean.
        capped: Whether that is the cap, and would be more without it.
    """

    loss: float
    influence: float
    weight: float
    capped: bool


class InfluenceMean:
    """The mean by C_k of updates that come one at a time.

    Args:
        cap: Largest share of the weight that one client may have; no limit if none. Of clients too few for
            it (fewer than 1 / cap) all count the same.

    Example:
        >>> import torch
        >>> mean = InfluenceMean()
        >>> mean.add("a", Update({"w": torch.tensor([1.0])}, weight=1.0), loss=0.5)
        >>> mean.add("b", Update({"w": torch.tensor([4.0])}, weight=2.0), loss=0.5)
        >>> mean.finish()[0].tensors["w"].item()
        3.0
    """

    def __init__(self, cap: float | None = None) -> None:
        self._cap = cap
        self._room = room_for(cap)
        self._apart: list[tuple[float, str, Update]] = []  # a heap: of the heaviest the lightest comes first
        self._mean = StreamingMean()
        self._lowest = math.inf  # loss of what was folded
        self._facts: dict[str, tuple[float, float]] = {}  # n_k and loss

    def add(self, client: str, update: Update, loss: float) -> None:
        """Takes one client's update; its tensors may alias live parameters and are not kept.

        Args:
            client: Its name.
            update: What it sent.
            loss: Of the model it sent, on the server's documents.

        Raises:
            TrainingError: The loss is not finite, the weight not positive and finite, or a shape differs from
                an earlier client's.
        """
        require_weight(update)
        if not math.isfinite(loss):
            raise unusable(client, loss)
        self._facts[client] = (update.weight, loss)
        entry = (math.log(update.weight) - loss, client, update)
        if len(self._apart) < self._room:
            heapq.heappush(self._apart, _copied(entry))
            return
        if self._apart and entry[:2] > self._apart[0][:2]:
            entry = heapq.heapreplace(self._apart, _copied(entry))
        self._fold(entry[2], self._facts[entry[1]][1])

    def finish(self) -> tuple[Mean, dict[str, Influence]]:
        """Returns the mean, and how much each client counted; the object must not be used afterwards."""
        counts, losses = (np.array(each) for each in zip(*self._facts.values(), strict=True))
        weights, capped = shares(np.log(counts) - losses, self._cap)
        influences, _ = shares(-losses)
        facts = {
            client: Influence(loss, float(influence), float(weight), bool(limited))
            for client, loss, influence, weight, limited in zip(
                self._facts, losses.tolist(), influences, weights, capped, strict=True
            )
        }
        for _, client, update in self._apart:
            if not facts[client].capped:
                self._fold(update, facts[client].loss)
        folded = (counts[~capped] * np.exp(self._lowest - losses[~capped])).sum()
        scale = float(folded / weights[~capped].sum())  # what a share of 1 is in the sums
        for _, client, update in self._apart:
            if facts[client].capped:
                self._mean.add(replace(update, weight=facts[client].weight * scale))
        return self._mean.finish(tuple(facts)), facts

    def _fold(self, update: Update, loss: float) -> None:
        """Adds an update with a weight relative to the lowest loss so far."""
        if loss < self._lowest:
            self._mean.scale(math.exp(loss - self._lowest))
            self._lowest = loss
        weight = update.weight * math.exp(self._lowest - loss)
        if weight > 0:  # else too little to be a number
            self._mean.add(replace(update, weight=weight))


def unusable(client: str, loss: float) -> TrainingError:
    """Returns the error that a client's loss is not finite."""
    return TrainingError(
        f"client {client}: the model it sent has a loss of {loss} on the server's documents and cannot be "
        "weighed by it: a smaller training.learning_rate may help, or a look at its data",
        code="not_finite",
    )


def room_for(cap: float | None) -> int:
    """Returns how many clients are kept apart, besides the running sum, for a cap on a client's weight.

    Example:
        >>> room_for(None), room_for(1.0), room_for(0.5), room_for(0.3)
        (0, 0, 1, 3)
    """
    return 0 if cap is None else math.ceil(1 / cap) - 1


def shares(scores: Sequence[float] | np.ndarray, cap: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the softmax of scores, none of it above a cap, and which of them the cap holds down.

    What a share loses goes to the others in proportion, until none is above the cap.

    Args:
        scores: (clients,), finite.
        cap: The largest share; equal shares where so many clients cannot keep to it. No limit if none.

    Returns:
        (clients,) float64 that sum to 1, and (clients,) bool.

    Example:
        >>> [round(float(share), 2) for share in shares([math.log(8), math.log(1), math.log(1)], cap=0.5)[0]]
        [0.5, 0.25, 0.25]
    """
    each = np.asarray(scores, dtype=np.float64)
    limit = 1.0 if cap is None else max(cap, 1 / len(each))
    found, capped = np.empty_like(each), np.zeros(len(each), dtype=bool)
    while True:
        free = np.exp(each[~capped] - each[~capped].max())
        found[capped], found[~capped] = limit, (1 - limit * capped.sum()) * free / free.sum()
        above = found > limit * (1 + _ROUNDING)
        if not above.any():
            return found, capped
        capped |= above


def _copied(entry: tuple[float, str, Update]) -> tuple[float, str, Update]:
    """Returns an entry whose tensors are its own."""
    weight, client, update = entry
    copies = {name: tensor.clone() for name, tensor in update.tensors.items()}
    return weight, client, replace(update, tensors=copies)
