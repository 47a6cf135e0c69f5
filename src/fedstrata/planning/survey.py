"""What a run will process, counted without running the model: every client's examples, batches and tokens.

The samples for a rehearsal are taken on the way, since an encoded corpus is not kept in memory.
"""

import heapq
import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor

from fedstrata.client.site import Site
from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.scoring import scores_everywhere
from fedstrata.engine.sites import sites_of
from fedstrata.train.batches import loader
from fedstrata.train.evaluate import batches_by_length, encoded_groups

BATCHES = 6
"""Batches of a rehearsed client's turn, all epochs together."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one client trains on in a round.

    Attributes:
        id: The client's name.
        examples: Its training examples, n_k.
        tokens: Tokens in them, without padding.
        batches: Padded tokens of every batch of an epoch; which examples share a batch is drawn at random.
        encode_seconds: What encoding its documents took.
    """

    id: str
    examples: int
    tokens: int
    batches: tuple[int, ...]
    encode_seconds: float


@dataclass(frozen=True, slots=True)
class Samples:
    """What a rehearsal runs on.

    Attributes:
        largest: The examples of the batch with most padded tokens, which decides the memory that is needed;
            as often as it takes for a step after the first, when the optimiser holds its moments.
        typical: Examples of batches drawn at random.
        scored: For `validation` and `test`, the longest documents of the client that has most text, and
            documents drawn at random; both about one batch.
    """

    largest: Sequence[Any]
    typical: Sequence[Any]
    scored: Mapping[str, tuple[Sequence[Document], Sequence[Document]]]


@dataclass(frozen=True, slots=True)
class Survey:
    """What a whole run will process.

    Attributes:
        workloads: Of every client that trains.
        scored_tokens: Padded tokens of one pass over `validation`, over `test`, and over the `server`'s own.
        samples: What a rehearsal runs on.
    """

    workloads: tuple[Workload, ...]
    scored_tokens: Mapping[str, int]
    samples: Samples


def padded_tokens(batch: Mapping[str, Tensor]) -> int:
    """Returns the tokens of a batch, padding included: what the time of a step goes by."""
    return batch["input_ids"].numel()


def survey(experiment: Experiment) -> Survey:
    """Counts what a run will process; encodes every client once, as the run does."""
    sites, trainers = sites_of(experiment)
    seed = experiment.seed.child("survey")
    keep = max(2, math.ceil(BATCHES / experiment.settings.training.epochs))
    workloads = []
    drawn: list[tuple[float, list[Any]]] = []
    largest: tuple[int, list[Any]] = (0, [])
    for site in trainers:
        started = time.perf_counter()
        examples = site.encode()
        encode_seconds = time.perf_counter() - started
        order = seed.child("order", site.id)
        batches = list(loader(examples, experiment.settings.training, order, list))  # as in training
        sizes = tuple(padded_tokens(site.task.collate(batch)) for batch in batches)
        tokens = sum(map(len, examples))
        workloads.append(Workload(site.id, len(examples), tokens, sizes, encode_seconds))
        repeated = _until_second_step(len(batches), experiment)
        candidates = [(size, batch * repeated) for size, batch in zip(sizes, batches, strict=True)]
        largest = max(largest, *candidates, key=lambda item: item[0])
        keys = seed.child("sample", site.id).numpy().random(len(batches))
        drawn = heapq.nsmallest(keep, [*drawn, *zip(keys, batches, strict=True)], key=lambda item: item[0])
    typical = [example for _, batch in drawn for example in batch]
    parts = ("validation", "test")
    scored = {part: _scored_documents(sites, part, experiment, seed.child(part)) for part in parts}
    # Rounds score personal models each on its own client's documents, the end all of them on everybody's
    # unless they are many.
    apart = [[site] for site in sites] if experiment.method.personal else [sites]
    passes = {"validation": apart, "test": [sites] if scores_everywhere(experiment) else apart}
    tokens_of = {
        part: sum(
            _scored_tokens({site.id: site.scored(part) for site in some}, experiment) for some in passes[part]
        )
        for part in parts
    }
    tokens_of["server"] = _scored_tokens({"": list(experiment.server)}, experiment)
    return Survey(tuple(workloads), tokens_of, Samples(largest[1], typical, scored))


def _until_second_step(batches: int, experiment: Experiment) -> int:
    """Returns how many batches it takes for a second step, if a client with so many an epoch takes one."""
    training = experiment.settings.training
    return min(batches, training.accumulation + 1) if training.epochs == 1 else 1


def _scored_tokens(documents: Mapping[str, Sequence[Document]], experiment: Experiment) -> int:
    """Returns the padded tokens of one pass over their owners' documents, divided as scoring divides it."""
    size, task = experiment.settings.training.eval_batch_size, experiment.task
    total = 0
    for group in encoded_groups(task, experiment.model.tokenizer, documents, size):
        examples = list(chain.from_iterable(own for _, own in group))
        batches = ([examples[index] for index in batch] for batch in batches_by_length(examples, size))
        total += sum(padded_tokens(task.collate(batch)) for batch in batches)
    return total


def _scored_documents(
    sites: Sequence[Site], part: str, experiment: Experiment, seed: Seed
) -> tuple[list[Document], list[Document]]:
    """Draws the documents whose scoring is rehearsed; see `Samples.scored`."""
    owned = [site.scored(part) for site in sites]
    most = max(owned, key=lambda documents: sum(map(_characters, documents)))
    longest = sorted(most, key=_characters, reverse=True)
    everybody = [document for documents in owned for document in documents]
    shuffled = [everybody[index] for index in seed.numpy().permutation(len(everybody))]
    return _about_a_batch(longest, experiment), _about_a_batch(shuffled, experiment)


def _characters(document: Document) -> int:
    return sum(map(len, document.texts))


def _about_a_batch(documents: Sequence[Document], experiment: Experiment) -> list[Document]:
    """Returns the first documents, as few as make up a batch for scoring: a task may pack several."""
    wanted, task = experiment.settings.training.eval_batch_size, experiment.task

    def examples(count: int) -> int:
        return len(task.encode(documents[:count], experiment.model.tokenizer))

    most = 1
    while most < len(documents) and examples(most) < wanted:
        most *= 2
    return list(documents[: bisect_left(range(most + 1), wanted, lo=1, key=examples)])
