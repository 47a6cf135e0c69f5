"""A copy of the middle that learns: B with its optimiser.

Source: FL-LLaMA, section 3.1, equation 4: each segment has an optimiser of its own. B's gradient is clipped
by itself, as the client's is (`training.clip_norm`).
"""

import math

import torch
from torch import Tensor

from fedstrata.core.cut import Cut
from fedstrata.core.errors import TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.split.middle import Middle
from fedstrata.split.rows import Rows
from fedstrata.train.local import autocast, clip, optimizer_of, schedule_of


class Replica:
    """A middle and its optimiser, for one round.

    Args:
        middle: The middle.
        training: How it trains.
        steps: How many steps it will take, by which the learning rate's schedule goes.
        rng: Seed of its dropout.

    Attributes:
        middle: The middle.
        names: What of it trains.
        steps: Steps taken so far.
    """

    def __init__(self, middle: Middle, training: TrainingSettings, steps: int, rng: Seed) -> None:
        model = middle.model
        # What both sides hold (DeBERTa's relative positions) learns at the clients.
        self.names = tuple(name for block in model.layout.blocks for name in block)
        self.middle, self.steps = middle, 0
        model.train_only(self.names)
        self._parameters = model.parameters(self.names)
        self._training, self._rng = training, rng
        self._optimizer = optimizer_of(self._parameters, training) if self.names else None
        self._schedule = schedule_of(self._optimizer, training, max(steps, 1)) if self._optimizer else None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Views of what trains, by name."""
        return self.middle.model.tensors(self.names)

    def forward(
        self,
        name: str,
        states: Tensor,
        rows: Rows,
        *,
        batch: int,
        wants_gradient: bool,
        cut: Cut | None = None,
    ) -> Tensor:
        """Runs B; see `Middle.forward`. Dropout goes by the steps taken, the name and the batch."""
        seeded = self._rng.child(self.steps, name, batch).everywhere()
        with seeded, autocast(self._training, self.middle.model.device):
            return self.middle.forward(name, states, rows, needs_gradient=wants_gradient, cut=cut)

    def discard(self) -> None:
        """Forgets the step that has begun: its gradients so far, and what waits for more."""
        for name in self.middle.waiting:
            self.middle.drop(name)
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)

    def step(self, terms: float) -> None:
        """Takes a step by the gradients so far.

        Args:
            terms: What they are divided by: the number of terms of the loss if they are those of its sum.

        Raises:
            TrainingError: The gradient is not finite; it is forgotten, and the weights are as before.
        """
        self.steps += 1
        found = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if self._optimizer is None or self._schedule is None or not found:
            return
        torch._foreach_mul_(found, 1.0 / max(terms, 1.0))
        norm = clip(self._parameters, self._training)
        if not math.isfinite(norm):
            self.discard()
            message = f"the norm of the server's gradient became {norm} in step {self.steps}"
            raise TrainingError(message, code="not_finite")
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
