"""A task that counts what a model trains on and is asked about while a run is rehearsed."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.core.task import Task
from fedstrata.planning.survey import padded_tokens


class WatchedTask:
    """The task, and a count of the padded tokens that the model trains on and is asked about.

    What a cache runs through the model without a gradient, to fill itself, is not counted.

    Args:
        task: The task.

    Attributes:
        tokens: Padded tokens since `reset`.
        passes: Batches that the model trained on since then.
        began: When the first batch since then was begun; none before it.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self.tokens, self.passes = 0, 0
        self.began: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the task's loss; counts the batch if the model trains on it.

        A call that is broken off, as that of the front of a divided model is, is made again for the rest.
        """
        if not torch.is_grad_enabled():
            return self._task.loss(module, batch)
        self._begin()
        result = self._task.loss(module, batch)
        self.tokens += padded_tokens(batch)
        self.passes += 1
        return result

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the task's predictions and counts the batch."""
        self._begin()
        self.tokens += padded_tokens(batch)
        return self._task.predict(module, batch)

    def _begin(self) -> None:
        if self.began is None:
            self.began = time.perf_counter()

    def reset(self) -> None:
        """Starts to count from 0."""
        self.tokens, self.passes, self.began = 0, 0, None
