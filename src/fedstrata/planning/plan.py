"""What a run will train, send and cost, before it starts (`fedstrata plan`).

Counted exactly: parameters, examples, optimiser steps, who takes part in which round, and, up to the digits
of a loss and of the ranges of masked sums, bytes. Measured in a rehearsal (`fedstrata.planning.rehearsal`)
and scaled by what a survey counted (`fedstrata.planning.survey`): seconds, memory and disk.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedstrata.core.errors import refused
from fedstrata.core.files import nearest_existing
from fedstrata.core.settings.source import Source
from fedstrata.data.patients import patients_of
from fedstrata.data.split import PARTS, Split
from fedstrata.engine.budgets import room_for
from fedstrata.engine.corpus import corpus_facts
from fedstrata.engine.facts import OTHER, limit_facts
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.sites import sites_of
from fedstrata.planning.estimate import Estimate
from fedstrata.planning.leaks import leak_warnings
from fedstrata.planning.privacy import PrivacyPlan, plan_privacy, privacy_warnings, sum_warnings
from fedstrata.planning.rehearsal import SECONDS, rehearse
from fedstrata.planning.survey import survey
from fedstrata.record.corpus import cut_shares, data_lines

NEARLY_ALL = 0.95


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One part of the model.

    Attributes:
        name: `embedding`, `block 0` and so on, `final norm`, `head`, or `other` for what travels besides.
        parameters: Numbers in it.
        trainable_parameters: How many of them train.
        bytes: Its size.
        bytes_down: What of it a client is sent in a round.
        bytes_up: What of it a client sends in a round.
    """

    name: str
    parameters: int
    trainable_parameters: int
    bytes: int
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """What one client does.

    Attributes:
        documents: Its documents by split.
        patients: The patients whose documents these are, by split; none where no document names one.
        examples: Its training examples, n_k.
        steps: Its optimiser steps in a round.
        rounds: The rounds it takes part in.
        seconds: Its training time in a round.
    """

    documents: dict[str, int]
    patients: dict[str, int] | None
    examples: int
    steps: int
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run. Keys that `summary.json` has too mean the same there.

    Attributes:
        name: The run's name.
        method: The method's name.
        travels: What travels, in words.
        task: The task's name.
        metric: The score the run is judged by.
        metrics: Every score the task may give.
        device: Where it runs.
        threads: The threads of a client.
        workers: How many clients compute at once.
        rounds: Number of rounds.
        clients: What each client does, by name.
        model: `name`, `parameters`, `blocks`, `bytes`.
        trainable_parameters: Numbers that train; where a run chooses, as the rehearsal chose.
        groups: The parts of the model.
        communication: Bytes in all and for a client's turn; null where a method sends no model.
        secure_aggregation: `bytes_up` and `bytes_down` that the exchanges of masked sums take beside updates
            and plans, which are in those of `communication` too; null without.
        time: Seconds.
        memory: Peaks, and what this machine has.
        disk: What the run directory will hold, and what is free.
        privacy: What its differential privacy will be; null without.
        cut: Shares of documents and tokens that are not read, as in `summary.json`; null where all is.
        rehearsal: What the estimates rest on.
        limit: How far `data.limit` has cut the documents down; null without.
        warnings: What will not fit, not happen, or give texts away.
    """

    name: str
    method: str
    travels: str
    task: str
    metric: str
    metrics: tuple[str, ...]
    device: str
    threads: int
    workers: int
    rounds: int
    clients: dict[str, ClientPlan]
    model: dict[str, Any]
    trainable_parameters: int
    groups: tuple[GroupPlan, ...]
    communication: dict[str, float | int | None]
    secure_aggregation: dict[str, int] | None
    time: dict[str, float]
    memory: dict[str, int | None]
    disk: dict[str, int]
    privacy: PrivacyPlan | None
    cut: dict[str, dict[str, float] | None] | None
    rehearsal: dict[str, float]
    limit: dict[str, int] | None
    warnings: tuple[str, ...]


def make_plan(source: Source, *, folder: Path = Path(), seconds: float = SECONDS) -> RunPlan:
    """Checks a configuration as a run does, rehearses it and says what the run will cost.

    The peak of memory is that of this process, so it means most in a fresh one.

    Args:
        source: The configuration.
        folder: Where the run directory will be; its free space is looked up, and the rehearsal writes there
            what a run writes, and deletes it.
        seconds: How long to measure.

    Raises:
        ConfigurationError: With every problem that could be found.
        FedstrataError: The rehearsal failed as the run would.
    """
    started = time.perf_counter()
    experiment = prepare(source)
    room_for(experiment)  # a run that would pass a budget is refused at once, and not rehearsed
    corpus = corpus_facts(experiment, experiment.clients, served=False)
    prepared = time.perf_counter()
    surveyed = survey(experiment)
    try:
        rehearsed = rehearse(experiment, surveyed.samples, seconds=seconds, place=nearest_existing(folder))
    except torch.OutOfMemoryError:
        message = (
            f"a training step or a batch for scoring does not fit in the memory of {experiment.model.device}"
        )
        raise refused("training.batch_size", message, "too_large") from None
    estimate = Estimate(experiment, surveyed, rehearsed)
    return _assemble(estimate, corpus, folder, prepared - started, time.perf_counter() - prepared)


def _assemble(
    estimate: Estimate, corpus: Mapping[str, Any], folder: Path, preparation: float, rehearsal: float
) -> RunPlan:
    """Puts the plan together; the seconds are those its own parts took."""
    experiment, settings = estimate.experiment, estimate.experiment.settings
    model, method = experiment.model, experiment.method
    trainable = model.parameters(estimate.measured.trainable)
    memory, disk = estimate.memory(), estimate.disk(folder)
    numbers = sum(parameter.numel() for parameter in trainable)
    privacy = plan_privacy(estimate, numbers)
    return RunPlan(
        name=settings.name,
        method=method.name,
        travels=method.travels,
        task=experiment.task.name,
        metric=experiment.metric,
        metrics=experiment.task.score_names,
        device=str(model.device),
        threads=torch.get_num_threads(),
        workers=experiment.workers,
        rounds=settings.federation.rounds,
        clients=_clients(estimate),
        model=estimate.model,
        trainable_parameters=numbers,
        groups=_groups(estimate),
        communication=estimate.communication(),
        secure_aggregation=estimate.secure_aggregation(),
        time=estimate.time() | {"preparation_seconds": preparation},
        memory=memory,
        disk=disk,
        privacy=privacy,
        cut=cut_shares(corpus),
        rehearsal={
            "seconds": rehearsal,
            "rounds": len(estimate.measured.rounds),
            "steps": sum(len(turn.steps) for turn in estimate.measured.turns),
        },
        limit=limit_facts(experiment),
        warnings=(
            *_warnings(estimate, memory, disk),
            *_message_warnings(experiment),
            *(privacy_warnings(privacy) if privacy else ()),
            *sum_warnings(experiment),
            *leak_warnings(estimate),
            *data_lines(corpus),
        ),
    )


def _clients(estimate: Estimate) -> dict[str, ClientPlan]:
    _, trainers = sites_of(estimate.experiment)
    workloads = estimate.workloads
    return {
        site.id: ClientPlan(
            documents={part: len(getattr(site.documents, part)) for part in PARTS},
            patients=_patients(site.documents),
            examples=workloads[site.id].examples,
            steps=workloads[site.id].steps,
            rounds=estimate.turns[site.id],
            seconds=estimate.turn_seconds(workloads[site.id]),
        )
        for site in trainers
    }


def _patients(documents: Split) -> dict[str, int] | None:
    counts = {part: len(patients_of(getattr(documents, part))) for part in PARTS}
    return counts if any(counts.values()) else None


def _groups(estimate: Estimate) -> tuple[GroupPlan, ...]:
    """Sorts what trains and travels by part of the model."""
    model = estimate.experiment.model
    trains = set(estimate.measured.trainable)
    groups: dict[str, list[str]] = {}
    for name in model.layout.all:
        groups.setdefault(model.layout.group_of(name), []).append(name)
    up, down = dict(estimate.measured.up), dict(estimate.measured.down)
    rows = [
        GroupPlan(
            group,
            sum(parameter.numel() for parameter in model.parameters(names)),
            sum(parameter.numel() for parameter in model.parameters(trains.intersection(names))),
            model.bytes_of(names),
            sum(down.pop(name, 0) for name in names),
            sum(up.pop(name, 0) for name in names),
        )
        for group, names in groups.items()
    ]
    if up or down:
        rows.append(GroupPlan(OTHER, 0, 0, 0, sum(down.values()), sum(up.values())))
    return tuple(rows)


def _warnings(estimate: Estimate, memory: Mapping[str, int | None], disk: Mapping[str, int]) -> Sequence[str]:
    """Says what will not fit or not happen."""
    found, settings = [], estimate.training
    for kind, place in (("rss", "memory"), ("gpu", "GPU memory")):
        peak, available = memory[f"peak_{kind}_bytes"], memory[f"available_{kind}_bytes"]
        if peak is not None and available is not None and peak > NEARLY_ALL * available:
            found.append(f"the run needs nearly all of this machine's {place} that is free")
    if disk["bytes"] + estimate.measured.checkpoint_bytes > disk["free_bytes"]:  # one while it is written
        found.append("the run directory will not fit on the disk")
    waiting, room = estimate.held_updates()[1], shutil.disk_usage(tempfile.gettempdir()).free
    if waiting:
        needed = f"the updates of a round take {waiting / 1e9:.3g} GB of the temporary folder"
        found.append(f"{needed}, which has {room / 1e9:.3g} GB (method.aggregation.memory_gigabytes)")
    if disk["caches_bytes"] < estimate.cache_bytes:
        needed = f"all clients' states take {estimate.cache_bytes / 1e9:.3g} GB"
        found.append(
            f"{needed}, more than training.cache_gigabytes allows ({settings.cache_gigabytes:g}): some "
            "clients will run their frozen blocks every time, and take longer than estimated"
        )
    for part, loses in (("validation", "rounds"), ("test", "the finished model")):
        if not estimate.surveyed.scored_tokens[part]:
            found.append(f"no client has {part} documents: {loses} will not be scored")
    found += estimate.experiment.method.cautions
    found += filter(None, [estimate.experiment.idle_cores])
    idle = [client for client in estimate.workloads if client not in estimate.turns]
    if idle:
        found.append(f"{len(idle)} of {len(estimate.workloads)} clients are drawn in no round")
    return found


def _message_warnings(experiment: Experiment) -> Iterator[str]:
    """Yields why the run can be simulated alone, if what it sends does not fit into one message."""
    from fedstrata.engine.remote.agreeing import too_large, travelling  # noqa: PLC0415 - for a served run alone
    from fedstrata.transport.timing import MOST_MEGABYTES  # noqa: PLC0415

    method, model = experiment.method, experiment.model
    cuts = [method.divides(client) for client in experiment.clients]
    if not method.pooled and None in cuts:
        model.restore()
        problem = too_large(method.name, travelling(method, model, None), MOST_MEGABYTES * 2**20)
        if problem is not None:
            yield f"fedstrata serve would refuse this run: {problem.message}"
