"""Scoring a model: one pass over the examples, then a score for any subset of their documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch

from fedstrata.train.local import autocast, to_device

if TYPE_CHECKING:
    import numpy as np

    from fedstrata.core.config import TrainingSettings
    from fedstrata.core.documents import Document
    from fedstrata.core.method import Model, Task
    from fedstrata.models.state import Model as LoadedModel


BATCHES_TOGETHER = 8
"""Batches for which the examples of small owners are put together; an owner with more is not divided."""


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
    return answer_owners(model, task, {"": documents}, settings)[""]


def answer_owners(
    model: LoadedModel, task: Task, documents: Mapping[str, Sequence[Document]], settings: TrainingSettings
) -> dict[str, list[Any]]:
    """Returns the model's answer to every document, in order, by owner.

    Each owner's documents are encoded by themselves, but a batch may hold those of several: a hundred
    clients with two examples each are four batches and not a hundred.

    Args:
        model: The model with its tokenizer; left in evaluation mode.
        task: The task.
        documents: The documents of each owner.
        settings: Batch size and precision.
    """
    answers: dict[str, list[Any]] = {}
    encoded = ((owner, task.encode(own, model.tokenizer)) for owner, own in documents.items())
    for group in grouped(encoded, settings.eval_batch_size):
        predicted = iter(predict(model, task, list(chain.from_iterable(group.values())), settings))
        for owner, examples in group.items():
            own = documents[owner]
            answers[owner] = task.decode(own, examples, list(islice(predicted, len(examples))))
    return answers


def grouped(encoded: Iterable[tuple[str, list[Any]]], batch_size: int) -> Iterator[dict[str, list[Any]]]:
    """Yields the examples of as many owners together as it takes to fill some batches.

    Args:
        encoded: Owners and their examples.
        batch_size: Examples of a batch.
    """
    group: dict[str, list[Any]] = {}
    count = 0
    for owner, examples in encoded:
        group[owner] = examples
        count += len(examples)
        if count >= BATCHES_TOGETHER * batch_size:
            yield group
            group, count = {}, 0
    if group:
        yield group
