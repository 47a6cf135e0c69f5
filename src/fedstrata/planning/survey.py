"""What a run will process, counted without running the model: every client's examples, batches and tokens.

The samples for a rehearsal are taken on the way, since an encoded corpus is not kept in memory.
"""

import heapq
import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from torch import Tensor

from fedstrata.client.site import Site
from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.scoring import scores_everywhere
from fedstrata.engine.sites import sites_of
from fedstrata.privacy.clipping import UnitGradients
from fedstrata.privacy.randomness import SeededRandomness
from fedstrata.privacy.row_gradients import rows_together
from fedstrata.train.batches import loader
from fedstrata.train.evaluate import batches_by_length, encoded_groups

BATCHES = 6
"""Batches of a rehearsed client's turn, all epochs together; of private training units of a step."""
DRAWN_STEPS = 32
"""Steps of private training that are drawn for each client, to see what rows of units come to, padded."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one client trains on in a round.

    Attributes:
        id: The client's name.
        examples: Its training examples, n_k.
        tokens: Tokens in them, without padding.
        batches: Padded tokens of every batch of an epoch; which examples share a batch is drawn at random. Of
            private training those of every pass of the steps that were drawn.
        encode_seconds: What encoding the documents takes that it looks at in a round.
        steps: Its optimiser steps in a round.
        round_tokens: The padded tokens that they go through.
        round_passes: In how many batches, on average.
        units: How many units of differential privacy it has; none without.
    """

    id: str
    examples: int
    tokens: int
    batches: tuple[int, ...]
    encode_seconds: float
    steps: int
    round_tokens: float
    round_passes: float
    units: int | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """What a rehearsal runs on.

    Attributes:
        largest: The examples of the batch with most padded tokens, which decides the memory that is needed;
            as often as it takes for a step after the first, when the optimiser holds its moments.
        typical: Examples of batches drawn at random.
        scored: For `validation` and `test`, the longest documents of the client that has most text, and
            documents drawn at random; both about one batch.
        units: The first two by units of differential privacy, each a list of examples; none without. The
            largest ones have what fits into one pass alone.
    """

    largest: Sequence[Any]
    typical: Sequence[Any]
    scored: Mapping[str, tuple[Sequence[Document], Sequence[Document]]]
    units: tuple[Sequence[Sequence[Any]], Sequence[Sequence[Any]]] | None = None


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
    surveyed: _Batches | _Units = _Units(experiment) if _is_private(experiment) else _Batches(experiment)
    workloads = []
    for site in trainers:
        started = time.perf_counter()
        units = [unit for unit in map(list, site.encoded_units()) if unit]
        encode_seconds = time.perf_counter() - started
        workloads.append(surveyed.workload(site, units, encode_seconds, seed))
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
    return Survey(tuple(workloads), tokens_of, surveyed.samples(scored))


def _is_private(experiment: Experiment) -> bool:
    return experiment.privacy.settings.by_unit


class _Batches:
    """Counts clients that train on batches, and keeps the samples of a rehearsal of them."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._keep = max(2, math.ceil(BATCHES / experiment.settings.training.epochs))
        self._drawn: list[tuple[float, list[Any]]] = []
        self._largest: tuple[int, list[Any]] = (0, [])

    def workload(self, site: Site, units: Sequence[Sequence[Any]], seconds: float, seed: Seed) -> Workload:
        """Returns what a client trains on in a round."""
        training, examples = self._experiment.settings.training, list(chain.from_iterable(units))
        order = seed.child("order", site.id)
        batches = list(loader(examples, training, order, list))  # as in training
        sizes = tuple(padded_tokens(site.task.collate(batch)) for batch in batches)
        repeated = _until_second_step(len(batches), self._experiment)
        candidates = [(size, batch * repeated) for size, batch in zip(sizes, batches, strict=True)]
        self._largest = max(self._largest, *candidates, key=lambda item: item[0])
        keys = seed.child("sample", site.id).numpy().random(len(batches))
        self._drawn = heapq.nsmallest(
            self._keep, [*self._drawn, *zip(keys, batches, strict=True)], key=lambda item: item[0]
        )
        steps = training.epochs * -(-len(batches) // training.accumulation)
        passes, tokens = training.epochs * len(batches), training.epochs * sum(sizes)
        own = sum(map(len, examples))
        return Workload(site.id, len(examples), own, sizes, seconds, steps, tokens, passes)

    def samples(self, scored: Mapping[str, tuple[Sequence[Document], Sequence[Document]]]) -> Samples:
        """Returns what a rehearsal runs on."""
        typical = [example for _, batch in self._drawn for example in batch]
        return Samples(self._largest[1], typical, scored)


class _Units:
    """Counts clients that train under differential privacy, unit by unit, and keeps samples of units."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._settings = experiment.privacy.settings
        self._most = _rows_at_a_time(experiment)
        self._drawn: list[tuple[float, Sequence[Any]]] = []
        self._largest: list[tuple[int, Sequence[Any]]] = []

    def workload(self, site: Site, units: Sequence[Sequence[Any]], seconds: float, seed: Seed) -> Workload:
        """Returns what a client trains on in a round: some steps are drawn as the run draws them."""
        drawn_from = SeededRandomness(seed.child("steps", site.id))
        private = UnitGradients(self._experiment.privacy, site.declared, drawn_from, lambda: units)
        drawn = list(islice(private.draws(), DRAWN_STEPS))
        sizes = [padded_tokens(site.task.collate(rows)) for step in drawn for rows in self._passes(step)]
        met = max(1, sum(map(len, drawn)))
        # What is drawn of chance is how much a unit comes to; how many meet in a step is known.
        rate = private.expected_batch / max(1, site.declared)
        in_round = private.steps * rate * len(units) / met
        looked_at = 1.0 if site.unit == "window" else 1.0 - (1.0 - rate) ** private.steps
        self._keep(site, units, seed)
        return Workload(
            site.id,
            sum(map(len, units)),
            sum(len(example) for unit in units for example in unit),
            tuple(sizes),
            seconds * looked_at,
            steps=private.steps,
            round_tokens=in_round * sum(sizes),
            round_passes=in_round * len(sizes),
            units=len(units),
        )

    def _passes(self, step: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Returns the rows of each pass of a step, as `privacy.clipping` goes through its units."""
        if self._most > 1 and all(_windows(unit) == 1 for unit in step):
            rows = [example for unit in step for example in unit]
            return [rows[start : start + self._most] for start in range(0, len(rows), self._most)]
        return [list(unit) for unit in step]

    def _keep(self, site: Site, units: Sequence[Sequence[Any]], seed: Seed) -> None:
        """Keeps a few units that are drawn by chance, and those whose passes are largest."""
        keys = seed.child("sample", site.id).numpy().random(len(units))
        drawn = [*self._drawn, *zip(keys, units, strict=True)]
        self._drawn = heapq.nsmallest(BATCHES, drawn, key=lambda item: item[0])
        worst = [self._worst(unit) for unit in units]
        sized = [(padded_tokens(site.task.collate(rows)), rows) for rows in worst]
        together = max(1, min(self._most, self._settings.expected_batch or 1))
        self._largest = heapq.nlargest(together, [*self._largest, *sized], key=lambda item: item[0])

    def _worst(self, unit: Sequence[Any]) -> list[Any]:
        """Returns the longest examples of a unit, as many as a step may see of it."""
        by_length = sorted(unit, key=len, reverse=True)
        rows = by_length[:1]
        for example in by_length[1:]:
            if _windows([*rows, example]) > self._settings.windows:
                break
            rows.append(example)
        return rows

    def samples(self, scored: Mapping[str, tuple[Sequence[Document], Sequence[Document]]]) -> Samples:
        """Returns what a rehearsal runs on; of the largest several only where they share a pass."""
        largest = [rows for _, rows in self._largest]
        if not all(_windows(rows) == 1 for rows in largest):
            largest = largest[:1]
        typical = [unit for _, unit in self._drawn]
        flat = [list(chain.from_iterable(units)) for units in (largest, typical)]
        return Samples(flat[0], flat[1], scored, (largest, typical))


def _windows(unit: Sequence[Any]) -> int:
    return sum(len(example.windows) for example in unit)


def _rows_at_a_time(experiment: Experiment) -> int:
    """Returns how many units of one row each share a pass; 1 where every unit has its own."""
    model = experiment.model
    trainable = experiment.method.trainable(model.layout)
    model.train_only(trainable)
    together = rows_together(model, model.parameters(trainable))
    model.train_only(())
    return together


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
