"""The batches of a local training, in an order that is drawn anew in every epoch."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from fedstrata.core.client import Client
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.training import TrainingSettings

BATCHES_IN_A_DRAW = 50
"""Batches whose examples are drawn together and then sorted by length, at most; transformers' number."""


class LengthGroups(Sampler[list[int]]):
    """Batches of examples of about the same length, so that little of a batch is padding.

    The examples are shuffled and dealt into draws of several batches; within a draw they are sorted by length
    and cut into batches, and the batches of all draws are shuffled again. Every epoch goes through all
    examples once, and which ones meet in a batch changes from epoch to epoch.

    Args:
        lengths: The length of every example.
        size: Examples in a batch; the last ones may be fewer.
        generator: What orders them.
    """

    def __init__(self, lengths: Sequence[int], size: int, generator: torch.Generator) -> None:
        self._lengths, self._size, self._generator = torch.tensor(lengths), size, generator
        # As in transformers: four draws where batches are few, or each epoch would have the same ones.
        self._draw = size * max(1, min(BATCHES_IN_A_DRAW, len(self) // 4))

    def __len__(self) -> int:
        return math.ceil(len(self._lengths) / self._size)

    def __iter__(self) -> Iterator[list[int]]:
        shuffled = torch.randperm(len(self._lengths), generator=self._generator)
        draws = (draw[self._lengths[draw].argsort(stable=True)] for draw in torch.split(shuffled, self._draw))
        batches = list(chain.from_iterable(torch.split(draw, self._size) for draw in draws))
        for index in torch.randperm(len(batches), generator=self._generator).tolist():
            yield batches[index].tolist()


def training_steps(client: Client, rng: Seed) -> tuple[int, Iterator[tuple[int, Sequence[Any]]]]:
    """Returns how many steps a local training takes, and for each the number of its epoch and its batches.

    Of a client that trains under differential privacy a step has the examples of every unit that is drawn,
    not collated, and there are no epochs.

    Args:
        client: The client.
        rng: Seed of the order of its examples.
    """
    if (private := client.privacy) is not None:
        return private.steps, ((0, drawn) for drawn in private.draws())
    settings, batches = client.training, training_batches(client, rng)
    steps = settings.epochs * math.ceil(len(batches) / settings.accumulation)

    def each() -> Iterator[tuple[int, Sequence[Any]]]:
        for epoch in range(settings.epochs):
            left = iter(batches)
            while own := list(islice(left, settings.accumulation)):
                yield epoch, own

    return steps, each()


def training_batches(client: Client, rng: Seed) -> DataLoader[Any]:
    """Returns the client's examples in batches; their order is drawn anew each time they are gone through."""
    return loader(client.examples, client.training, rng.child("order"), client.task.collate)


def loader(
    examples: Sequence[Any], settings: TrainingSettings, rng: Seed, collate: Callable[[list[Any]], Any]
) -> DataLoader[Any]:
    """Returns what goes through the examples of a client as its training does.

    Args:
        examples: The examples.
        settings: The size of a batch, and whether its examples are of about the same length.
        rng: Seed of the order.
        collate: What makes a batch of a list of examples.
    """
    own: Any = examples  # a sequence serves as a dataset
    generator, size = rng.torch(), settings.batch_size
    if settings.group_by_length:
        groups = LengthGroups([len(example) for example in examples], size, generator)
        return DataLoader(own, batch_sampler=groups, collate_fn=collate)
    return DataLoader(own, batch_size=size, shuffle=True, generator=generator, collate_fn=collate)


def steps_in_round(examples: int, training: TrainingSettings) -> int:
    """Returns how many steps a client with so many examples takes in a round."""
    return training.epochs * math.ceil(math.ceil(examples / training.batch_size) / training.accumulation)
