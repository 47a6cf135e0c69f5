"""The gradient of a step under differential privacy: every unit's is clipped, and noise added to the sum.

Source: Abadi et al. 2016, Deep Learning with Differential Privacy, algorithm 1, with a patient (or a
document) in place of an example, Poisson sampling, and a configured constant in place of the size of the
batch, so that nothing of the mechanism depends on the data.

A unit's gradient is that of the mean loss over at most so many of its rows. It is made by the model's own
backward pass, one unit after the other, and nothing is hooked: right for every architecture, tied weights,
checkpointing, skipped blocks and stored states. Where all that trains belongs to plain layers, the gradients
of units that have a single row are made several at once, by the formulas of Opacus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from fedstrata.adapters.rank import largest_rank, tails
from fedstrata.core.client import Client, Feed
from fedstrata.core.errors import refused
from fedstrata.core.model import Model
from fedstrata.core.types import Tensors
from fedstrata.privacy.mechanism import Privacy
from fedstrata.privacy.randomness import Randomness
from fedstrata.privacy.released import Released
from fedstrata.privacy.row_gradients import (
    SHORTEST,
    RowGradients,
    add_clipped_rows,
    lengths,
    row_hooks,
    rows_together,
)
from fedstrata.privacy.sampling import drawn_windows, poisson
from fedstrata.train.local import go_through
from fedstrata.train.work import Tally

PIECE = 2**15
"""Numbers to which noise is added at a time."""


@dataclass
class UnitGradients:
    """How a client trains under differential privacy in one turn; implements `core.client.PrivateTraining`.

    Attributes:
        privacy: The mechanism.
        declared: How many units the client declares.
        randomness: What units, rows and noise are drawn from; of this turn alone.
        units_of: Returns the examples of each of its units.
        released: What leaves the client may hold, and nothing else.
        begin: Takes down, before anything is drawn, that what a turn spends is spent.
        drawn: Units that were drawn so far.
        clipped: Those of them whose gradient was too long.
    """

    privacy: Privacy
    declared: int
    randomness: Randomness
    units_of: Callable[[], Sequence[Sequence[Any]]]
    begin: Callable[[], None] = lambda: None
    released: Released = field(default_factory=Released)
    drawn: int = 0
    clipped: int = 0
    _by_unit: bool = field(default=False, init=False)

    @property
    def steps(self) -> int:
        """How many steps a local training takes."""
        return self.privacy.steps

    @property
    def expected_batch(self) -> int:
        """By what the sum over units is divided, however many there are."""
        assert self.privacy.settings.expected_batch is not None  # noqa: S101 - private clients have it
        return self.privacy.settings.expected_batch

    @property
    def clipped_share(self) -> float | None:
        """The share of the units drawn so far whose gradient was too long; none before the first."""
        return self.clipped / self.drawn if self.drawn else None

    @cached_property
    def units(self) -> Sequence[Sequence[Any]]:
        """The examples of each unit.

        Raises:
            ConfigurationError: There are more than are declared, on whose number the noise rests.
        """
        units = self.units_of()
        if len(units) > self.declared:  # how many is for nobody else, and the server hears this
            told = f"there are more {self.privacy.settings.unit}s than the {self.declared} that are declared"
            raise refused("privacy.units", f"{told}; declare at least as many", "out_of_range")
        return units

    def secret(self) -> int:
        """Draws a number of 63 bits, of which the server knows nothing where noise is secure."""
        high, low = map(int, self.randomness.uniform(2) * 2.0**32)
        return (high << 32 | low) >> 1

    def enter(self, tensors: Tensors) -> None:
        """Keeps what a training begins with, if changes are sent."""
        self.released.begin(tensors)

    def leave(self, tensors: Tensors) -> None:
        """Takes over what a training has come to as released."""
        self.released.finish(tensors)

    def draws(self) -> Iterator[Sequence[Sequence[Any]]]:
        """Yields for each step the examples of every unit that is drawn, no more of it than a step sees."""
        self.begin()
        rate = self.expected_batch / self.declared
        for _ in range(self.steps):
            drawn = poisson(len(self.units), rate, self.randomness)
            rows = [self._rows_of(self.units[index]) for index in drawn]
            yield [unit for unit in rows if unit]  # what has no example adds nothing

    def _rows_of(self, unit: Sequence[Any]) -> Sequence[Any]:
        counts = [len(example.windows) for example in unit]
        chosen = drawn_windows(counts, self.privacy.settings.windows, self.randomness)
        return [unit[index] for index in chosen]

    def gradients(
        self,
        client: Client,
        drawn: Sequence[Sequence[Any]],
        parameters: Sequence[Parameter],
        *,
        feed: Feed | None = None,
        leave_out: Callable[[], Collection[int] | None] = lambda: None,
        tally: Tally | None = None,
    ) -> tuple[float, float]:
        """Leaves the noised gradient of a step behind; returns the mean loss.

        The arguments are those of `fedstrata.train.local.accumulate`, but for what `draws` gave.

        Returns:
            The loss, and its number of terms. Neither may leave the client.
        """
        passes_of, active = self._passes_of(client, parameters), leave_out()
        # The same blocks for all units of a step: drawn by pass, a unit's would depend on who else is there.
        passes = passes_of(client, parameters, self.privacy.settings.clip, feed, lambda: active, tally)
        self.drawn += len(drawn)
        single = [] if self._by_unit else [unit for unit in drawn if _is_row(unit)]
        rows = rows_together(client.model, parameters) if len(single) > 1 else 1
        if rows > 1:
            self._by_unit = not passes.rows(single, rows)
            drawn = [unit for unit in drawn if not _is_row(unit)]
        passes.units(drawn)
        self.clipped += passes.clipped
        self._leave(parameters, passes.sums)
        if client.rank is not None:
            _silence(client.model, client.rank)
        return passes.loss_sum / max(passes.terms, 1.0), passes.terms

    def _passes_of(self, client: Client, parameters: Sequence[Parameter]) -> Callable[..., Passes]:
        """Returns what makes the passes of a step, of the arguments of `Passes`."""
        return Passes

    def _leave(self, parameters: Sequence[Parameter], sums: Sequence[Tensor]) -> None:
        """Adds noise to the sums, in float64, and leaves them as gradients, divided by a constant."""
        deviation = self.privacy.sigma * self.privacy.settings.clip
        for parameter, own in zip(parameters, sums, strict=True):
            # A piece at a time is what a core's own cache holds; elsewhere one transfer is better than many.
            size = PIECE if own.device.type == "cpu" else max(1, own.numel())
            for piece in torch.split(own.view(-1), size):
                noised = piece.double()
                if deviation:
                    noise = self.randomness.normal(len(piece)).to(own.device)
                    noised.add_(noise, alpha=deviation)
                piece.copy_(noised.div_(self.expected_batch))
            parameter.grad = own.to(parameter.dtype)


def _is_row(unit: Sequence[Any]) -> bool:
    """Whether a unit is a single row of a batch."""
    return sum(len(example.windows) for example in unit) == 1


def _silence(model: Model, rank: int) -> None:
    """Leaves no noise in the ranks of adapters that a client does not have, which would begin to train."""
    named = model.module.named_parameters()
    gradients = {name: own.grad for name, own in named if own.grad is not None}
    for second, first in tails(gradients, rank, largest_rank(gradients)):
        second.zero_()
        first.zero_()


class Passes:
    """The passes of one step, and the sum of units' clipped gradients that they give.

    Args:
        client: The client.
        parameters: What trains; their gradients are taken and removed.
        clip: The most that a unit's gradient may be long, over all parameters together.
        feed, leave_out, tally: As for `fedstrata.train.local.go_through`.

    Attributes:
        sums: The sum so far, float32, one a parameter.
        clipped: How many were too long; one that is not finite is too, and counts as zero in the sum.
        loss_sum: The summed loss of all that was finite.
        terms: Its number of terms.
    """

    def __init__(
        self,
        client: Client,
        parameters: Sequence[Parameter],
        clip: float,
        feed: Feed | None,
        leave_out: Callable[[], Collection[int] | None],
        tally: Tally | None,
    ) -> None:
        self._client, self._parameters, self._clip = client, parameters, clip
        self._told = (parameters[0].device, feed, leave_out, tally)
        self.sums = [self._nothing(parameter) for parameter in parameters]
        self.clipped, self.loss_sum, self.terms = 0, 0.0, 0.0
        self._forget()

    def units(self, units: Iterable[Sequence[Any]]) -> None:
        """Goes through units one after the other."""
        for unit in units:
            loss, count = go_through(self._client, self._client.task.collate(unit), *self._told)
            self._count(float(loss), float(count))
            self._take(1.0 / max(float(count), 1.0))

    def rows(self, units: Sequence[Sequence[Any]], most: int) -> bool:
        """Goes through units of one row each, several at a time.

        Args:
            units: The units.
            most: How many at a time.

        Returns:
            Whether the hooks are right for this model; where they are not, it goes unit by unit.
        """
        task = self._client.task
        with row_hooks(self._client.model.module, self._parameters) as hooks:
            for start in range(0, len(units), most):
                batch = task.collate([example for unit in units[start : start + most] for example in unit])
                terms = task.terms(batch)
                hooks.rows = len(terms)
                loss, count = go_through(self._client, batch, *self._told)
                gradients = hooks.take()
                if gradients is None:
                    break
                self._count(float(loss), float(count))
                norms = self._add_rows(gradients, 1.0 / terms.clamp(min=1.0).to(self._told[0]))
                self.clipped += int((~(norms <= self._clip)).sum())
            else:
                return True
        self._forget()
        self.units(units[start:])
        return False

    def _count(self, loss: float, terms: float) -> None:
        """Takes down a loss, unless it is not finite."""
        if math.isfinite(loss):
            self.loss_sum, self.terms = self.loss_sum + loss, self.terms + terms

    @torch.no_grad()
    def _take(self, scale: float) -> None:
        """Adds the gradients that are there, times a scale and then clipped, and removes them."""
        own = [(parameter.grad, total) for parameter, total in zip(self._parameters, self.sums, strict=True)]
        there = [(gradient.float(), total) for gradient, total in own if gradient is not None]
        self._forget()
        gradients, totals = [gradient for gradient, _ in there], [total for _, total in there]
        norms = [lengths(gradient, 0) for gradient in gradients]
        norm = float(torch.stack(norms).norm()) * scale if norms else 0.0
        self.clipped += not norm <= self._clip
        if there:
            self._add_clipped(totals, gradients, norm, scale)

    def _add_clipped(self, totals: list[Tensor], gradients: list[Tensor], norm: float, scale: float) -> None:
        """Adds a unit's gradients times a scale, cut to the clip; nothing of those that are not finite."""
        if math.isfinite(norm):
            self._add(totals, gradients, scale * min(1.0, self._clip / max(norm, SHORTEST)))

    def _nothing(self, parameter: Parameter) -> Tensor:
        """Returns the sum of no gradients of a parameter."""
        return torch.zeros_like(parameter, dtype=torch.float32)

    def _add(self, totals: list[Tensor], gradients: list[Tensor], factor: float) -> None:
        """Adds a unit's gradients times a factor, which makes them no longer than the clip."""
        torch._foreach_add_(totals, gradients, alpha=factor)

    def _add_rows(self, gradients: Sequence[RowGradients | None], scales: Tensor) -> Tensor:
        """Adds the gradients of rows, each times a scale and then clipped; returns how long they were."""
        return add_clipped_rows(self.sums, gradients, scales, self._clip)

    def _forget(self) -> None:
        """Removes gradients that are there: a backward pass would add to them."""
        for parameter in self._parameters:
            parameter.grad = None
