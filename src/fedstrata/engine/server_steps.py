"""The steps of a run whose clients send gradients in a sum: the server takes them, as `training` says.

With the mean gradient of a round, noised or not, the server does what a client's local training does with
that of a step: the same optimiser, weight decay and schedule, a round being a step. What an optimiser keeps
between steps lies beside the ranges of masked sums, a file for each committed round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.types import Message, Tensors
from fedstrata.train.local import optimizer_of, rate_factor
from fedstrata.wire import frame


@dataclass
class ServerSteps:
    """The optimiser of a run.

    Attributes:
        training: How it steps.
        rounds: How many steps there are.
    """

    training: TrainingSettings
    rounds: int
    _kept: dict[str, dict[str, Tensor]] = field(default_factory=dict, init=False)  # by parameter and kind

    def step(self, number: int, base: Tensors, gradients: Tensors) -> dict[str, Tensor]:
        """Takes the step of a round.

        Args:
            number: The round.
            base: What clients were sent, by name.
            gradients: The mean gradient of it, float32 on the CPU.

        Returns:
            The new values of what has a gradient, float32 on the CPU.
        """
        own = {name: Parameter(base[name].detach().cpu().float().clone()) for name in gradients}
        optimizer = optimizer_of(list(own.values()), self.training)
        for group in optimizer.param_groups:
            group["lr"] *= rate_factor(self.training, number - 1, self.rounds)
        for name, parameter in own.items():
            parameter.grad = gradients[name]
            if name in self._kept:
                optimizer.state[parameter] = dict(self._kept[name])
        optimizer.step()
        self._kept = {
            name: {kind: each for kind, each in optimizer.state[parameter].items() if torch.is_tensor(each)}
            for name, parameter in own.items()
        }
        return {name: parameter.detach() for name, parameter in own.items()}

    def save(self, path: Path) -> None:
        """Writes what the optimiser keeps; it appears complete or not at all."""
        kept = {f"{kind}/{name}": each for name, own in self._kept.items() for kind, each in own.items()}
        frame.encode(Message(kept)).write(path)

    def load(self, path: Path) -> None:
        """Goes on with what was saved; with nothing if there is no such file, as before the first step."""
        self._kept = {}
        if path.exists():
            for key, each in frame.decode(frame.read(path), Message).tensors.items():
                kind, _, name = key.partition("/")
                self._kept.setdefault(name, {})[kind] = each.clone()
