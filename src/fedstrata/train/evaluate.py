"""Scoring a model: one pass over the examples, then a score for any subset of their documents."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
import torch

from fedstrata.core.documents import Document
from fedstrata.core.errors import TrainingError
from fedstrata.core.model import Model
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.task import Task
from fedstrata.core.types import LossMean
from fedstrata.models.state import Model as LoadedModel
from fedstrata.train.local import autocast, to_device

_DIVERGED = (
    "the model's answers are not finite, so it cannot be scored: its training has diverged; a smaller "
    "training.learning_rate may help, or, where clients are not to be trusted, a method.aggregation"
)
Predictor: TypeAlias = Callable[[Iterator[list[Any]]], Iterator[Sequence[Any]]]
"""Gives the answers to the examples of each batch, in order."""
Place = tuple[str, int]
"""Whose a document is, and which of theirs."""
BATCHES_TOGETHER = 8
"""Batches for which the examples of small owners are put together; an owner with more is not divided."""


def batches_by_length(
    examples: Sequence[Any], size: int, length: Callable[[Any], int] = len
) -> list[list[int]]:
    """Returns the indices of each batch when examples are sorted by length, the shortest first."""
    order = sorted(range(len(examples)), key=lambda index: length(examples[index]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def predict(
    model: Model,
    task: Task,
    examples: Sequence[Any],
    settings: TrainingSettings,
    predictor: Predictor | None = None,
) -> list[np.ndarray]:
    """Returns the model's answer to every example, in order.

    Examples run sorted by length, so that a batch holds little padding; where answers are generated that is
    the length of what is read and may be written, since the right answer must not decide which go together.

    Args:
        model: The model; left in evaluation mode.
        task: The task that made the examples.
        examples: Encoded examples; `len(example)` is its number of tokens.
        settings: Batch size and precision.
        predictor: Answers batches with such a model elsewhere; this one does if none.

    Raises:
        TrainingError: An answer is not finite.
    """
    answers: list[Any] = [None] * len(examples)
    batches = batches_by_length(
        examples, settings.eval_batch_size, lambda example: getattr(example, "scored_length", len(example))
    )
    if predictor is None:
        predictor = partial(map, lambda batch: predict_batch(model, task, batch, settings))
    answered = predictor([examples[index] for index in chosen] for chosen in batches)
    for chosen, outputs in zip(batches, answered, strict=True):
        for index, output in zip(chosen, outputs, strict=True):
            if not np.isfinite(output).all():
                raise TrainingError(_DIVERGED, code="diverged")
            answers[index] = output
    return answers


@torch.inference_mode()
def predict_batch(
    model: Model, task: Task, batch: Sequence[Any], settings: TrainingSettings
) -> Sequence[np.ndarray]:
    """Returns the model's answer to every example of a batch, which run together; see `predict`."""
    module = model.module
    module.train(False)
    device = next(module.parameters()).device
    collated = to_device(task.collate(batch), device)
    with autocast(settings, device):
        return task.predict(module, collated)


@torch.inference_mode()
def mean_loss(
    model: Model, task: Task, examples: Sequence[Any], settings: TrainingSettings, over: LossMean = "terms"
) -> float:
    """Returns the mean loss of some examples, in evaluation mode.

    The other arguments are those of `predict`. A mean over `terms` is one over all terms of the loss, tokens
    in token tasks; one over `records` is over examples, of each the sum of its terms.

    Raises:
        TrainingError: They have no term at all.
    """
    module = model.module
    module.train(False)
    device = next(module.parameters()).device
    total = terms = 0.0
    for chosen in batches_by_length(examples, settings.eval_batch_size):
        batch = to_device(task.collate([examples[index] for index in chosen]), device)
        with autocast(settings, device):
            loss, count = task.loss(module, batch)
        total, terms = total + float(loss), terms + float(count)
    if not terms:
        message = f"there is no loss: {len(examples)} examples hold nothing that counts in it"
        raise TrainingError(message, code="not_enough_data")
    return total / (terms if over == "terms" else len(examples))


def answer(
    model: LoadedModel, task: Task, documents: Sequence[Document], settings: TrainingSettings
) -> list[Any]:
    """Returns the model's answer to every document, in order; all are in memory as examples at once.

    The arguments are those of `answer_owners`, for a single owner.
    """
    return answer_owners(model, task, {"": documents}, settings)[""]


def answer_owners(
    model: LoadedModel,
    task: Task,
    documents: Mapping[str, Sequence[Document]],
    settings: TrainingSettings,
    predictor: Predictor | None = None,
) -> dict[str, list[Any]]:
    """Returns the model's answer to every document, in order, by owner.

    A batch may hold the documents of several owners: a hundred clients with two examples each are a few
    batches and not a hundred. Where documents are packed, all owners' are one text, in the order of their
    ids, so that their scores together do not depend on who owns which.

    Args:
        model: The model with its tokenizer; left in evaluation mode.
        task: The task.
        documents: The documents of each owner.
        settings: Batch size and precision.
        predictor: Answers batches with such a model elsewhere; this one does if none.
    """
    answers: dict[str, list[Any]] = {owner: [None] * len(own) for owner, own in documents.items()}
    for group in encoded_groups(task, model.tokenizer, documents, settings.eval_batch_size):
        examples = list(chain.from_iterable(own for _, own in group))
        predicted = iter(predict(model, task, examples, settings, predictor))
        for places, own in group:
            texts = [documents[owner][index] for owner, index in places]
            found = task.decode(texts, own, list(islice(predicted, len(own))))
            for (owner, index), each in zip(places, found, strict=True):
                answers[owner][index] = each
    return answers


def encoded_groups(
    task: Task, tokenizer: Any, documents: Mapping[str, Sequence[Document]], batch_size: int
) -> Iterator[list[tuple[list[Place], list[Any]]]]:
    """Yields what is scored together: documents that are encoded together, and their examples.

    Args:
        task: The task.
        tokenizer: The model's.
        documents: The documents of each owner.
        batch_size: Examples of a batch; a group fills some, as far as there are examples.
    """
    places = [[(owner, index) for index in range(len(own))] for owner, own in documents.items()]
    if task.packed:
        places = [sorted(chain.from_iterable(places), key=lambda at: (documents[at[0]][at[1]].id, at))]
    group: list[tuple[list[Place], list[Any]]] = []
    for together in places:
        texts = [documents[owner][index] for owner, index in together]
        group.append((together, task.encode(texts, tokenizer)))
        if sum(len(examples) for _, examples in group) >= BATCHES_TOGETHER * batch_size:
            yield group
            group = []
    if group:
        yield group
