"""The streaming weighted mean: one running sum per tensor, whatever the number of clients.

This is FedAvg's server step (McMahan et al. 2017, Algorithm 1; Layer-Skipping FL, equation 2):
mean = sum_k w_k x_k / sum_k w_k, where each tensor's sums run over the clients that sent it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedstrata.aggregate.changes import require_weight
from fedstrata.core.cohort import Mean
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import ClientInfo, Tensors, Update

_SCRATCH_ELEMENTS = 2**20  # 4 MiB of float32


class StreamingMean:
    """Folds updates into running sums; memory is one float32 payload.

    Example:
        >>> mean = StreamingMean()
        >>> mean.add(Update({"w": torch.tensor([1.0])}, weight=1.0))
        >>> mean.add(Update({"w": torch.tensor([4.0])}, weight=2.0))
        >>> mean.finish().tensors["w"].item()
        3.0
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._values: dict[str, list[float]] = {}
        self._scratch: Tensor | None = None

    def add(self, update: Update) -> None:
        """Adds one client's tensors; they may alias live parameters, on any device, and are not kept.

        Raises:
            TrainingError: The weight is not positive and finite, or a shape differs from an earlier client's.
        """
        require_weight(update)
        for name, tensor in update.tensors.items():
            known = self._sums.get(name)
            if known is None:
                known = self._sums[name] = torch.zeros(tensor.shape, dtype=torch.float32)
            if known.shape != tensor.shape:
                raise TrainingError(
                    f"tensor {name}: shape {tuple(tensor.shape)} from one client, "
                    f"{tuple(known.shape)} from another",
                    code="wrong_shape",
                )
            self._fold(known, tensor, update.weight)
            self._weights[name] = self._weights.get(name, 0.0) + update.weight
            self._counts[name] += 1
        for key, value in update.values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                total = self._values.setdefault(key, [0.0, 0.0])
                total[0] += update.weight * value
                total[1] += update.weight

    def scale(self, factor: float) -> None:
        """Multiplies the weight of every update so far; the mean changes only with those to come.

        Args:
            factor: From 0, which forgets them, to 1.
        """
        for total in self._sums.values():
            total.mul_(factor)
        self._weights = {name: factor * weight for name, weight in self._weights.items()}
        self._values = {key: [factor * part for part in total] for key, total in self._values.items()}

    def _fold(self, total: Tensor, tensor: Tensor, weight: float) -> None:
        """Adds weight times tensor to the total, computed in float32.

        torch's own mixed-dtype `add_` runs at a sixth of this speed, so other dtypes pass through a small
        float32 buffer that stays in the cache; so does what lies on another device.
        """
        if tensor.dtype == torch.float32 and tensor.device == total.device:
            total.add_(tensor, alpha=weight)
            return
        if self._scratch is None:
            self._scratch = torch.empty(_SCRATCH_ELEMENTS)
        parts = torch.split(tensor.reshape(-1), _SCRATCH_ELEMENTS)
        targets = torch.split(total.view(-1), _SCRATCH_ELEMENTS)
        for part, target in zip(parts, targets, strict=True):
            target.add_(self._scratch[: part.numel()].copy_(part), alpha=weight)

    def finish(self, clients: Sequence[str] = ()) -> Mean:
        """Divides in place and returns the mean; the object must not be used afterwards.

        Args:
            clients: Whose updates were added.
        """
        for name, total in self._sums.items():
            total.div_(self._weights[name])
        values = {key: total / weight for key, (total, weight) in self._values.items()}
        return Mean(self._sums, self._weights, values, dict(self._counts), tuple(clients))


def mean_of(updates: Iterable[tuple[ClientInfo, Update]]) -> Mean:
    """Folds every client's update into one running sum per tensor; none is looked at again."""
    mean, clients = StreamingMean(), []
    for client, update in updates:
        mean.add(update)
        clients.append(client.id)
    return mean.finish(clients)


def replace(previous: Tensors, mean: Tensors) -> dict[str, Tensor]:
    """Returns `previous` with the tensors of `mean` in it, each in the dtype it had before."""
    return {**previous, **{name: tensor.to(previous[name].dtype) for name, tensor in mean.items()}}
