"""What the server has besides the shared model: a few documents of its own, to try models on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedstrata.train.evaluate import mean_loss

if TYPE_CHECKING:
    from fedstrata.core.documents import Document
    from fedstrata.core.settings.training import TrainingSettings
    from fedstrata.core.task import Task
    from fedstrata.core.types import Tensors
    from fedstrata.models.state import Model


class ServerDocuments:
    """The server's documents, which are encoded when they are first needed.

    Args:
        documents: The documents, annotated; without any there is no loss to ask for.
        model: The shared model.
        task: The task.
        settings: Batch size and precision.
    """

    def __init__(
        self, documents: Sequence[Document], model: Model, task: Task, settings: TrainingSettings
    ) -> None:
        self._documents, self._model, self._task, self._settings = documents, model, task, settings

    def loss(self, tensors: Tensors) -> float:
        """Returns the mean loss of the shared model with these tensors in it, which is then as it was."""
        with self._model.holding(tensors):
            return mean_loss(self._model, self._task, self._examples, self._settings)

    @cached_property
    def _examples(self) -> list[Any]:
        return self._task.encode(self._documents, self._model.tokenizer)
