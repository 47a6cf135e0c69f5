"""Gaussian noise on the hidden states, or on the gradients, that leave the client.

Source: FL-LLaMA, section 3.2.2. The paper's noise scales (0.02, 0.1, 0.5) are compared with the mean absolute
value of the hidden states, and in the code its authors released a scale is the mean absolute value of the
noise: `mean_abs`. For Gaussian noise of deviation s that is s sqrt(2 / pi), so s = scale sqrt(pi / 2). With
`std` the scale is the deviation itself. `relative` measures the scale in units of the states: in their mean
absolute value, or in their standard deviation.

The section tries two places: on the states that leave A, which the paper then uses, and on the gradient by
B's states that leaves C (`gradients`), of which it says that losses often diverge to NaN. A scale is then
one of the gradient of a batch's mean loss; the states go up as they are.

This is not differential privacy. Nothing bounds how much one text changes the hidden states, and hidden
states that are sent many times can be averaged. What the noise is worth against an attack has to be measured.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstrata.core.errors import SettingError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Settings
from fedstrata.split.rows import Rows

Kind = Literal["mean_abs", "std"]


class NoiseSettings(Settings):
    """Gaussian noise on what leaves a client; it is not differential privacy."""

    on: Literal["states", "gradients"] = Field(
        default="states",
        description="Add noise to the hidden states that leave the client's front blocks, or to the "
        "gradients that leave its back blocks.",
    )
    scale: Annotated[float, Field(ge=0.0)] = Field(default=0.02, description="Amount of noise; see `kind`.")
    kind: Kind = Field(
        default="mean_abs",
        description="Meaning of the scale: mean absolute value, or standard deviation of the noise.",
    )
    relative: bool = Field(
        default=False, description="Scale the noise relative to the values it is added to."
    )
    inference: bool = Field(default=False, description="Add noise in evaluation and generation too.")

    def _misfits(self) -> Iterator[SettingError]:
        if self.inference and self.on == "gradients":
            message = "inference=True has no meaning with on gradients: only training has any"
            yield SettingError(message, "no_effect")


@dataclass(frozen=True, slots=True)
class Noise:
    """How much noise is added, and where it comes from.

    Attributes:
        settings: How much; a scale of 0 adds nothing.
        seed: Where it is drawn from. Equal names give equal noise, so a step that is sent again looks the
            same.
    """

    settings: NoiseSettings
    seed: Seed

    def add(self, states: Tensor, rows: Rows, *names: str | int) -> Tensor:
        """Returns states with noise; the gradient by the sum is the gradient by the states.

        Args:
            states: (rows, columns, hidden).
            rows: The lengths of the rows; padding has no part in the units of `relative`.
            names: What it is drawn for: round, step, batch.
        """
        if self.settings.scale == 0:
            return states
        noise = torch.randn(states.shape, generator=self.seed.child(*names).torch())
        return states + (noise.to(states.device) * self.deviation(states, rows)).to(states.dtype)

    def add_to_gradient(self, gradient: Tensor, terms: Tensor, rows: Rows, *names: str | int) -> Tensor:
        """Returns the gradient with noise; where rows are padding it stays 0, or B would learn from it.

        Args:
            gradient: Of a batch's summed loss, (rows, columns, hidden).
            terms: How many terms the loss has, ().
            rows: The lengths of the rows.
            names: What it is drawn for: step, batch.
        """
        if self.settings.scale == 0:
            return gradient
        scale = terms.clamp(min=1)
        noised = self.add(gradient / scale, rows, "gradient", *names) * scale
        noised = torch.where(terms > 0, noised, gradient)  # of a batch without terms B learns nothing
        mask = rows.mask(gradient.device)
        return (noised if mask is None else noised * mask[..., None]).to(gradient.dtype)

    def deviation(self, states: Tensor, rows: Rows) -> Tensor:
        """Returns the standard deviation of what is added to these states."""
        settings = self.settings
        deviation = settings.scale * (math.sqrt(math.pi / 2) if settings.kind == "mean_abs" else 1.0)
        if not settings.relative:
            return torch.tensor(deviation, device=states.device)
        mask = rows.mask(states.device)
        columns = states.shape[1]
        own = states if mask is None else states[mask[:, -columns:].bool()]
        unit = own.float().abs().mean() if settings.kind == "mean_abs" else own.float().std()
        return deviation * unit.detach()
