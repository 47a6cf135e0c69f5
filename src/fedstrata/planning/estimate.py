"""Scales what a rehearsal measured to a whole run, by what a survey of its data counted."""

from __future__ import annotations

import heapq
import shutil
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from scipy.optimize import nnls

from fedstrata.client.store import KEEP
from fedstrata.core.files import nearest_existing
from fedstrata.core.preflight import Growth
from fedstrata.core.types import ClientInfo
from fedstrata.engine.facts import size_facts
from fedstrata.engine.floors import has_untrained
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.sampling import sample
from fedstrata.engine.scoring import due_for_scoring, scores_everywhere
from fedstrata.engine.sites import drop_outs, sites_of
from fedstrata.planning.measurements import Rehearsed, Turn
from fedstrata.planning.survey import Survey, Workload

if TYPE_CHECKING:
    from fedstrata.planning.secure_sums import SumBytes  # for masks alone

COMMUNICATION = (
    "bytes_up",
    "bytes_down",
    "bytes_up_per_client_round",
    "bytes_down_per_client_round",
    "percent_of_full_model",
    "full_model_bytes_up",
)

REHEARSED_CLIENTS = 2

REPORT_BYTES, REPORT_BYTES_OF_CLIENT = 55_000, 800
"""What the report, the summary and the settings come to: by themselves, and for each client."""


class Estimate:
    """Scales what a rehearsal measured to the whole run.

    Args:
        experiment: The run.
        surveyed: What it will process.
        rehearsed: What was measured.

    Attributes:
        workloads: What each client trains on, by name.
        sampled: The clients of every round, drawn as the run will draw them.
        delivered: Those of them that do not drop out; none of a round that is abandoned.
        turns: How many rounds each client trains in.
        measured: What was measured.
        model: The model's name and size.
    """

    def __init__(self, experiment: Experiment, surveyed: Survey, rehearsed: Rehearsed) -> None:
        self.experiment, self.surveyed, self.measured = experiment, surveyed, rehearsed
        self.model = size_facts(experiment, experiment.model)
        self.federation = experiment.settings.federation
        self.training = experiment.settings.training
        self.workloads = {workload.id: workload for workload in surveyed.workloads}
        self.sampled = _sampled(experiment)
        self.delivered = _delivered(experiment, self.sampled)
        self.turns = Counter(client for clients in self.delivered for client in clients)
        self.per_step, self.per_pass, self.per_token, self.per_turn = _training_price(rehearsed)
        self.per_scored_token = _scoring_price(rehearsed)

    def turn_seconds(self, workload: Workload) -> float:
        """Returns a client's training time in a round."""
        steps = self.per_step * workload.steps + self.per_pass * workload.round_passes
        return self.per_turn + steps + self.per_token * workload.round_tokens

    def communication(self) -> dict[str, float | int | None]:
        """Returns bytes in all, and on average for a client's turn; null where notes travel and no model."""
        if self.experiment.method.pooled:
            return dict.fromkeys(COMMUNICATION)
        first, later = self.measured.rounds[0], self.measured.rounds[1:]
        turns = self.turns.total()
        up, down = (
            getattr(first, key) * sum(map(len, clients[:1]))
            + fmean(getattr(cost, key) for cost in later) * sum(map(len, clients[1:]))
            for key, clients in (("bytes_up", self.delivered), ("bytes_down", self.sampled))
        )
        if self.experiment.method.begins_in_full:
            down += self._late_beginners() * (first.bytes_down - fmean(cost.bytes_down for cost in later))
        tokens = self._trained_tokens
        up += tokens * fmean(cost.said_up for cost in later)
        down += tokens * fmean(cost.said_down for cost in later)
        if self._growth is not None:
            run, rehearsed = self._growth
            each = rehearsed.sent[-1] // REHEARSED_CLIENTS
            down += sum(run.sent) - each * sum(map(len, self.sampled[1:]))
        senders = turns
        if (sums := self._sums) is not None:  # whoever is asked sends keys, also one that then drops out
            up, down, senders = up + sums.up + sums.more_up, down + sums.down + sums.more_down, self._asked
        full, each = self.model["bytes"], max(1, senders)
        values = (round(up), round(down), up / each, down / each, 100.0 * up / each / full, full * turns)
        return dict(zip(COMMUNICATION, values, strict=True))

    def secure_aggregation(self) -> dict[str, int] | None:
        """Returns the bytes of the exchanges of masked sums beside updates and plans; none without."""
        return None if self._sums is None else {"bytes_up": self._sums.up, "bytes_down": self._sums.down}

    @cached_property
    def _sums(self) -> SumBytes | None:
        """What the protocol of masked sums takes in the whole run; none without."""
        experiment = self.experiment
        if not experiment.privacy.settings.secure_aggregation:
            return None
        from fedstrata.planning.secure_sums import bytes_of_sums  # noqa: PLC0415 - for masks alone

        declared = experiment.privacy.settings.units or {}
        clients = {
            name: ClientInfo(name, declared.get(name, workload.examples))
            for name, workload in self.workloads.items()
        }
        return bytes_of_sums(experiment, self.measured.sums, clients, self.sampled, self.delivered)

    @property
    def _asked(self) -> int:
        """How often a client is asked, in the whole run."""
        return sum(map(len, self.sampled))

    @property
    def _trained_tokens(self) -> float:
        """The padded tokens that all clients train on in the whole run."""
        return sum(count * self.workloads[client].round_tokens for client, count in self.turns.items())

    def _late_beginners(self) -> int:
        """Returns how often, after the first round, a client is sent everything for having nothing yet.

        That is until it has delivered once.
        """
        times, begun = 0, set(self.delivered[0]) if self.delivered else set()
        for sampled, delivered in zip(self.sampled[1:], self.delivered[1:], strict=True):
            times += len(set(sampled) - begun)
            begun.update(delivered)
        return times

    def time(self) -> dict[str, float]:
        """Returns seconds by purpose, as `summary.json` divides them; `finish` scores the test and saves.

        Where clients compute at once the seconds of all rounds are fewer than the sum of their parts.
        """
        turns, rounds = self.turns.total(), self.federation.rounds
        train = sum(count * self.turn_seconds(self.workloads[client]) for client, count in self.turns.items())
        train += self._first_turns_seconds()
        scorings = sum(due_for_scoring(number, self.federation) for number in range(1, rounds + 1))
        tokens = scorings * self.surveyed.scored_tokens["validation"] + self._scored_by_clients()
        at_server = (
            turns * self.surveyed.scored_tokens["server"] if self.experiment.method.tries_updates else 0
        )
        evaluate = (tokens + at_server) * self.per_scored_token
        costs = self.measured.rounds[1:]
        serve = self._trained_tokens * fmean(cost.serve_seconds for cost in costs)
        engine = rounds * fmean(cost.round_seconds for cost in costs)
        engine += turns * fmean(cost.client_seconds for cost in costs)
        # A client's documents are encoded for each of its turns, and once more to count its examples.
        engine += sum(
            (count + 1) * self.workloads[client].encode_seconds for client, count in self.turns.items()
        )
        models = self._models
        finish = models * self.measured.save_seconds
        # A model of its own for every client is scored on everybody's test documents.
        passes = models if scores_everywhere(self.experiment) else 1
        settings = self.experiment.settings
        passes += settings.federation.floors and has_untrained(settings, self.experiment.task)
        workers = self.experiment.workers
        finish += 1 / workers * passes * self.per_scored_token * self.surveyed.scored_tokens["test"]
        at_once = self._longest_seconds() if workers > 1 else train
        scoring = (tokens / workers + at_server) * self.per_scored_token
        in_rounds = at_once + serve + scoring + engine
        return {
            "total_seconds": in_rounds + finish,
            "train_seconds": train,
            "serve_seconds": serve,
            "evaluate_seconds": evaluate,
            "engine_overhead_seconds": engine,
            "finish_seconds": finish,
            "seconds_per_round": in_rounds / max(1, rounds),
            "seconds_per_client_round": train / max(1, turns),
        }

    def _longest_seconds(self) -> float:
        """Returns the time of whichever process trains longest, in all rounds, where there are several."""
        seconds = {client: self.turn_seconds(workload) for client, workload in self.workloads.items()}
        total = 0.0
        for clients in self.delivered:
            busy = [0.0] * self.experiment.workers
            for client in clients:
                heapq.heapreplace(busy, busy[0] + seconds[client])
            total += max(busy)
        return total + self._first_turns_seconds() / self.experiment.workers

    def _scored_by_clients(self) -> int:
        """Returns the padded tokens on which clients' just-trained models are scored."""
        if not self.federation.score_clients:
            return 0
        tokens = self.surveyed.scored_tokens
        due = [
            len(clients)
            for number, clients in enumerate(self.delivered, start=1)
            if due_for_scoring(number, self.federation)
        ]
        return sum(due) * tokens["validation"] + sum(map(len, self.delivered[-1:])) * tokens["test"]

    @property
    def _models(self) -> int:
        """How many models are saved at the end: held-out sites have none of their own."""
        return len(self.workloads) if self.experiment.method.personal else 1

    def _first_turns_seconds(self) -> float:
        """Returns what clients' first turns take longer than later ones.

        The second client of a rehearsal knows: its first turns do not warm up the process. Turns without a
        step, such as those that look at gradients, are had by the clients of the first round that is not
        abandoned; a first training may fill a cache.
        """
        second = self.measured.turns[-1].client
        first = [turn for turn in self.measured.turns if turn.round == 1 and turn.client == second]
        looking = sum(turn.fixed_seconds for turn in first if not turn.steps)
        filling = self._filling_seconds([turn for turn in first if turn.steps])
        return looking * len(next(filter(None, self.delivered), ())) + filling

    def _filling_seconds(self, first: Sequence[Turn]) -> float:
        """Returns what filling caches takes, from how long a client's first training turns took."""
        if not self.measured.cache_bytes:
            return 0.0
        steps = [step for turn in first for step in turn.steps]
        tokens = sum(step.tokens for step in steps)
        seconds = sum(step.seconds for step in steps) + sum(turn.fixed_seconds for turn in first)
        usual = self.per_turn + self.per_step * len(steps) + self.per_token * tokens
        usual += self.per_pass * sum(step.passes for step in steps)
        surplus = max(0.0, seconds - usual)
        if self.surveyed.samples.units is not None:  # steps go through some units, the cache holds all
            held = _distinct_tokens(self.surveyed.samples.typical)
            return surplus / max(1, held) * sum(self.workloads[client].tokens for client in self.turns)
        surplus *= self.training.epochs / max(1, tokens)
        return surplus * sum(sum(self.workloads[client].batches) for client in self.turns)

    def memory(self) -> dict[str, int | None]:
        """Returns the peaks, and what this process could have."""
        process = psutil.Process().memory_info().rss
        device = self.experiment.model.device
        gpu = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None
        return {
            "peak_rss_bytes": self._processes * self.measured.peak_rss_bytes + self.held_updates()[0],
            "peak_gpu_bytes": self.measured.peak_gpu_bytes,
            "available_rss_bytes": psutil.virtual_memory().available + process,
            "available_gpu_bytes": gpu,
        }

    @property
    def _processes(self) -> int:
        """How many hold a model: the one that has the server's half, and those that only compute."""
        workers = self.experiment.workers
        return workers + 1 if workers > 1 else 1

    def held_updates(self) -> tuple[int, int]:
        """Returns the bytes of a round's updates that a method keeps in memory, and in files, at one time.

        Those of the two clients that are rehearsed are left out; a robust rule is not rehearsed at all, two
        clients being too few for it.
        """
        method = self.experiment.method
        size, updates = sum(self.measured.up.values()), max(map(len, self.delivered), default=0)
        in_memory, in_files = method.held_updates(updates, size)
        if method.rehearsed() is method:
            in_memory = max(0, in_memory - REHEARSED_CLIENTS)
        return in_memory * size, in_files * size

    @cached_property
    def _growth(self) -> tuple[Growth, Growth] | None:
        """What grows with the clients of a round, in the run and in the rehearsal; none if nothing does."""
        known = (self.experiment.model, self.measured.up)
        run = self.experiment.method.growth(*known, self.sampled, self.delivered)
        pairs = [["one", "other"]] * len(self.measured.rounds)
        rehearsed = self.experiment.method.growth(*known, pairs, pairs)
        return (run, rehearsed) if run is not None and rehearsed is not None else None

    def disk(self, place: Path) -> dict[str, int]:
        """Returns what a run directory will hold at the end, and what is free at its place."""
        measured, rounds = self.measured, self.federation.rounds
        clients = len(self.experiment.clients)
        checkpoint, writes = measured.checkpoint_bytes, self.turns
        if self._growth is not None:
            run, rehearsed = self._growth
            checkpoint, writes = checkpoint + run.kept - rehearsed.kept, Counter(run.writes)
        versions = sum(min(KEEP + 1, count) for count in writes.values())
        events = measured.event_bytes
        turns = self.turns.total()
        # Half of a rehearsal's two clients' scores and bytes are in a `round` event for each client.
        record = events.get("client", 0.0) * turns + events.get("round", 0.0) * rounds * max(1.0, clients / 2)
        parts = {
            "checkpoints_bytes": checkpoint * min(KEEP, rounds),
            "stores_bytes": measured.store_bytes * versions,
            "caches_bytes": min(self.cache_bytes, int(self.training.cache_gigabytes * 1e9)),
            "models_bytes": measured.model_bytes * self._models,
            "releases_bytes": measured.release_bytes * len(self.turns),
            "ledgers_bytes": round(
                measured.ledger_bytes * turns + measured.ledger_bytes_said * self._trained_tokens
            ),
            "sums_bytes": 0 if self._sums is None else self._sums.kept,
            "record_bytes": round(record),
            "report_bytes": REPORT_BYTES + REPORT_BYTES_OF_CLIENT * clients,
        }
        free = shutil.disk_usage(nearest_existing(place)).free
        return {"bytes": sum(parts.values()), **parts, "free_bytes": free}

    @property
    def cache_bytes(self) -> int:
        """Size of what clients would cache of their examples, in proportion to the tokens of these."""
        samples = self.surveyed.samples
        rehearsed = _distinct_tokens(samples.typical) + _distinct_tokens(samples.largest)
        per_token = self.measured.cache_bytes / max(1, rehearsed)
        return round(per_token * sum(self.workloads[client].tokens for client in self.turns))


def _distinct_tokens(examples: Sequence[Any]) -> int:
    """Returns the tokens of these examples' windows; a cache holds equal ones once."""
    return sum(len(text) for text in {tuple(window) for each in examples for window in each.windows})


def _delivered(experiment: Experiment, sampled: list[list[str]]) -> list[list[str]]:
    """Returns the clients of every round that do not drop out of it; none where too few are left."""
    needed = 1 if experiment.method.pooled else experiment.settings.federation.min_clients or 1
    left = []
    for number, clients in enumerate(sampled, start=1):
        lost = drop_outs(experiment, number, clients)
        there = [client for client in clients if client not in lost]
        left.append(there if len(there) >= needed else [])
    return left


def _sampled(experiment: Experiment) -> list[list[str]]:
    """Returns the clients of every round, drawn as the run will draw them."""
    federation = experiment.settings.federation
    _, trainers = sites_of(experiment)
    numbers = range(1, federation.rounds + 1)
    seeds = (experiment.seed.child("round", number, "sample") for number in numbers)
    return [[site.id for site in sample(trainers, federation.sample, seed)] for seed in seeds]


def _training_price(measured: Rehearsed) -> tuple[float, float, float, float]:
    """Returns the seconds of a step, of a pass and a padded token in it, and of a turn besides its steps.

    The first three are fitted to all steps after the first round by least squares, none below 0; passes only
    where steps have been told them, which have one each else.
    """
    turns = [turn for turn in measured.turns if turn.round > 1]
    steps = [step for turn in turns for step in turn.steps]
    turns_of_clients = len({(turn.round, turn.client) for turn in turns})  # one may run several handlers
    fixed = sum(turn.fixed_seconds for turn in turns) / turns_of_clients
    if not steps:
        return 0.0, 0.0, 0.0, fixed
    passes = np.array([step.passes for step in steps], dtype=np.float64)
    tokens = np.array([step.tokens for step in steps], dtype=np.float64)
    seconds = np.array([step.seconds for step in steps])
    (per_step, per_pass, per_token), _ = nnls(
        np.stack([np.ones_like(tokens), passes, tokens], axis=1), seconds
    )
    return float(per_step) + measured.noise_seconds, float(per_pass), float(per_token), fixed


def _scoring_price(measured: Rehearsed) -> float:
    """Returns the seconds of scoring a padded token; the first scoring warms up where there are others."""
    scorings = measured.scorings[1:] or measured.scorings
    tokens = sum(scoring.tokens for scoring in scorings)
    return sum(scoring.seconds for scoring in scorings) / tokens if tokens else 0.0
