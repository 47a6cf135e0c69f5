"""The step of a turn under joint noise: units' clipped gradients are rounded, and a share of noise added.

What leaves is no trained tensor but the sum of rounded gradients, and it leaves under a mask alone: the
client's model stays as it came, and the server takes the step (`fedstrata.engine.server_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from fedstrata.core.client import Client
from fedstrata.core.errors import TrainingError
from fedstrata.core.model import Model
from fedstrata.privacy.clipping import Passes, UnitGradients
from fedstrata.privacy.joint import JointNoise, Rounding, round_
from fedstrata.privacy.randomness import Randomness
from fedstrata.privacy.row_gradients import RowGradients, norms_of_rows, of_row
from fedstrata.privacy.secure_sum.messages import RING


@dataclass
class JointGradients(UnitGradients):
    """How a client trains in a turn of which only a noised sum is seen; implements `PrivateTraining`."""

    _sums: dict[Parameter, Tensor] = field(default_factory=dict, init=False)

    @property
    def noise(self) -> JointNoise:
        """The mechanism of a sum of as many sites as a round asks."""
        assert self.privacy.joint is not None  # noqa: S101 - a joint mechanism has it
        return self.privacy.joint

    def _passes_of(self, client: Client, parameters: Sequence[Parameter]) -> Callable[..., Passes]:
        """Returns what makes the passes of a step, in which the gradient of each unit is rounded.

        Raises:
            TrainingError: Not as many numbers train as the noise was worked out for.
        """
        rounding, numbers = self.noise.rounding, sum(parameter.numel() for parameter in parameters)
        if numbers != rounding.numbers:
            told = f"{numbers} numbers train, and joint noise is worked out for {rounding.numbers}"
            raise TrainingError(f"client {client.id}: {told}", code="conflict")
        return partial(_RoundedPasses, rounding, self.randomness)

    def _leave(self, parameters: Sequence[Parameter], sums: Sequence[Tensor]) -> None:
        """Keeps the sums of a step, and leaves no gradient behind: nothing moves at the client."""
        self._sums = dict(zip(parameters, sums, strict=True))

    def elements(self, model: Model, names: Sequence[str], sites: int) -> Iterator[tuple[str, Tensor]]:
        """Yields what leaves under the mask, once: each sum with this client's share of the noise in it.

        Args:
            model: The client's.
            names: Of the parameters whose sums are asked for, in order.
            sites: How many are in the masked sum; the fewer, the larger a share.

        Yields:
            A name, and ring elements of the parameter's shape, int32 on the CPU.
        """
        noise = self.noise.among(sites)
        share = noise.share() if noise.sigma else None
        for name, parameter in zip(names, model.parameters(names), strict=True):
            total = self._sums.pop(parameter)
            if share is not None:
                share.add_to(total.view(-1).numpy(), self.randomness)
            yield name, total


class _RoundedPasses(Passes):
    """The passes of a step, and the sum of units' clipped and rounded gradients that they give."""

    def __init__(self, rounding: Rounding, randomness: Randomness, *told: Any) -> None:
        super().__init__(*told)
        self._rounding, self._randomness = rounding, randomness

    def _nothing(self, parameter: Parameter) -> Tensor:
        return torch.zeros(parameter.shape, dtype=RING)

    def _add(self, totals: list[Tensor], gradients: list[Tensor], factor: float) -> None:
        """Adds one rounded gradient; a number that is not in it at all is 0, and stays so."""
        own = [gradient.cpu().contiguous() for gradient in gradients]
        rounded, _ = round_(own, factor, self._rounding, self._randomness)
        torch._foreach_add_(totals, rounded)

    @torch.no_grad()
    def _add_rows(self, gradients: Sequence[RowGradients | None], scales: Tensor) -> Tensor:
        """Adds the gradients of rows, each rounded by itself; returns how long they were."""
        there = [(total, own) for total, own in zip(self.sums, gradients, strict=True) if own is not None]
        norms = norms_of_rows([own for _, own in there]) * scales
        totals = [total for total, _ in there]
        for row, (norm, scale) in enumerate(zip(norms.tolist(), scales.tolist(), strict=True)):
            own = [of_row(each, row, total.shape) for total, each in there]
            self._add_clipped(totals, own, norm, scale)
        return norms
