"""Scoring a model: one pass over the examples, then a score for any subset of their documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fedstrata.train.local import autocast, to_device

if TYPE_CHECKING:
    import numpy as np

    from fedstrata.core.config import TrainingSettings
    from fedstrata.core.documents import Document
    from fedstrata.core.method import Model, Task
    from fedstrata.models.state import Model as LoadedModel


def batches_by_length(examples: Sequence[Any], size: int) -> list[list[int]]:
    """Returns the indices of each batch when examples are sorted by length, the shortest first."""
    order = sorted(range(len(examples)), key=lambda index: len(examples[index]))
    return [order[start : start + size] for start in range(0, len(order), size)]


@torch.inference_mode()
def predict(
    model: Model, task: Task, examples: Sequence[Any], settings: TrainingSettings
) -> list[np.ndarray]:
    """Returns the model's answer to every example, in order.

    Examples run sorted by length, so that a batch holds little padding.

    Args:
        model: The model; left in evaluation mode.
        task: The task that made the examples.
        examples: Encoded examples; `len(example)` is its number of tokens.
        settings: Batch size and precision.
    """
    module = model.module
    module.train(False)
    device = next(module.parameters()).device
    answers: list[Any] = [None] * len(examples)
    for chosen in batches_by_length(examples, settings.eval_batch_size):
        batch = to_device(task.collate([examples[index] for index in chosen]), device)
        with autocast(settings, device):
            outputs = task.predict(module, batch)
        for index, output in zip(chosen, outputs, strict=True):
            answers[index] = output
    return answers


def answer(
    model: LoadedModel, task: Task, documents: Sequence[Document], settings: TrainingSettings
) -> list[Any]:
    """Returns the model's answer to every document, in order.

    Args:
        model: The model with its tokenizer; left in evaluation mode.
        task: The task.
        documents: The documents; all are in memory as examples at once.
        settings: Batch size and precision.
    """
    examples = task.encode(documents, model.tokenizer)
    return task.decode(documents, examples, predict(model, task, examples, settings))
