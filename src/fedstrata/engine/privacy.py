"""Whether a run may have the privacy that it asks for, and what follows from it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.method import Method
from fedstrata.core.model import Layout
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import TrainedTokenizer
from fedstrata.core.settings.privacy import (
    LEAST_SITES,
    MOST_KNOWN_SITES,
    MOST_SITES,
    BudgetSettings,
    PrivacySettings,
    delta_fault,
)
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.task import Task
from fedstrata.data.split import Split, units_of
from fedstrata.engine.sampling import sample, sample_size
from fedstrata.privacy.budgets import budget
from fedstrata.privacy.budgets.pseudonyms import PseudonymKey, key_of
from fedstrata.privacy.mechanism import EVERYBODY, Privacy, solved, solved_jointly

IDLE = {
    "epochs": "privacy.steps says how long a client trains",
    "batch_size": "privacy.expected_batch says how many units a step sees",
    "accumulation": "privacy.expected_batch says how many units a step sees",
    "group_by_length": "who meets in a step is drawn, each unit by itself",
    "clip_norm": "privacy.clip bounds what a unit does to a step",
}
"""Settings of `training` that private training at a client has others for."""


MOST_COMPOSED = 10**6
"""Steps of a client for which noise is searched: that takes three minutes, and many times more gigabytes."""


def settings_problems(settings: RunSettings, task: Task, method: Method | None) -> list[Problem]:
    """Returns why a run cannot be private as it asks, whatever its data are."""
    privacy = settings.privacy
    found = []
    if method is not None and privacy.secure_aggregation and (reason := method.not_summed()):
        found.append(
            Problem(
                "privacy.secure_aggregation",
                f"does not go with {method.name}: {reason}",
                code="not_supported",
            )
        )
    elif method is not None and privacy.secure_aggregation and privacy.scores == "summed" and method.personal:
        message = (
            f"'summed' adds up what clients count of one model, and with {method.name} each has its own; "
            "leave it out: a client finds its scores in its own folder"
        )
        found.append(Problem("privacy.scores", message, code="not_supported"))
    if privacy.mechanism == "none":
        return found
    if method is not None and (reason := _not_private(method, privacy.mechanism)):
        message = f"{privacy.mechanism!r} does not go with {method.name}: {reason}"
        found.append(Problem("privacy.mechanism", message, code="not_private"))
    steps = (privacy.steps or 1) * (settings.federation.rounds + privacy.spare_turns)
    if privacy.epsilon is not None and steps > MOST_COMPOSED:
        message = (
            f"{steps} steps over all rounds are more than the {MOST_COMPOSED} for which noise can be worked "
            "out from an epsilon; take fewer, or give sigma in its place"
        )
        found.append(Problem("privacy.steps", message, code="out_of_range"))
    if privacy.by_unit:
        together = privacy.mechanism == "joint" or (method is not None and method.pooled)
        if together and privacy.units and privacy.delta is not None:
            found += _of_delta(privacy.delta, sum(privacy.units.values()), "units of all clients together")
        return [*found, *_of_local(settings, task)]
    if settings.federation.min_clients is not None and settings.federation.sample < 1:
        message = (
            "with privacy.mechanism 'central' and federation.sample below 1 anybody or nobody takes part"
        )
        found.append(Problem("federation.min_clients", message, code="conflict"))
    return found


def _of_delta(delta: float, count: int, of: str) -> list[Problem]:
    fault = delta_fault(delta, count, of)
    return [Problem("privacy.delta", fault, code="out_of_range")] if fault else []


def _not_private(method: Method, mechanism: str) -> str:
    """Returns why a method cannot run under a mechanism; empty if it can."""
    if mechanism == "joint":  # what private clients may not tell they may not tell here either
        return method.not_private("local") or method.not_joint()
    return method.not_private(mechanism)


def _of_local(settings: RunSettings, task: Task) -> Iterator[Problem]:
    """Yields what does not go with private training at clients, with noise of their own or joint."""
    usual, mechanism = TrainingSettings(), f"privacy.mechanism {settings.privacy.mechanism!r}"
    for name, why in IDLE.items():
        if (value := getattr(settings.training, name)) != getattr(usual, name):
            message = f"{value} has no effect with {mechanism}: {why}"
            yield Problem(f"training.{name}", message, code="no_effect")
    if settings.federation.corrupt.names_clients:
        message = f"corrupt clients and {mechanism} are not combined"
        yield Problem("federation.corrupt", message, code="conflict")
    yield from task.left_to_documents()
    if isinstance(settings.model.tokenizer, TrainedTokenizer):
        message = f"one that is built from texts tells of them; with {mechanism} name one"
        yield Problem("model.tokenizer", message, code="not_private")
    if settings.privacy.unit == "window" and task.whole_documents:
        message = (
            f"an example of task {task.name} is a whole document; use 'document' or 'patient', not 'window'"
        )
        yield Problem("privacy.unit", message, code="not_supported")


def count_problems(settings: RunSettings, method: Method | None, clients: int) -> list[Problem]:
    """Returns why so many clients cannot be protected, or hidden in a masked sum, if they cannot.

    Args:
        settings: The run's settings.
        method: Its method; of one that is not summed at all no more is said.
        clients: How many there are.
    """
    privacy, share = settings.privacy, settings.federation.sample
    if privacy.mechanism == "central" and privacy.delta is not None:
        return _of_delta(privacy.delta, clients, "clients")
    if not privacy.secure_aggregation or (method is not None and method.not_summed()):
        return []
    asked, needed = sample_size(clients, share), privacy.survivors or LEAST_SITES
    whose = f"{clients} clients, of which federation.sample takes {share:g}, are {asked} a round"
    if clients > MOST_KNOWN_SITES:
        message = f"{clients} clients; a site's federation.lock names at most {MOST_KNOWN_SITES}"
        return [Problem("privacy.secure_aggregation", message, code="out_of_range")]
    if needed <= asked <= MOST_SITES:
        return []
    least = LEAST_SITES if privacy.survivors is None or asked < LEAST_SITES else needed
    why = "with fewer, each could subtract its own update; with more, the ring overflows"
    path = "privacy.secure_aggregation" if least == LEAST_SITES else "privacy.survivors"
    message = f"needs {least} to {MOST_SITES} clients a round, and {whose}: {why}"
    return [Problem(path, message, code="not_enough_data" if asked < needed else "out_of_range")]


def unit_problems(
    settings: RunSettings, clients: Mapping[str, Split], *, apart: bool = False
) -> list[Problem]:
    """Returns what the clients' training documents have other than is declared of them.

    Args:
        settings: The run's settings.
        clients: Each client's documents by split.
        apart: Whether there are other clients elsewhere.
    """
    privacy = settings.privacy
    if not privacy.by_unit or privacy.units is None:
        return []
    trains = {name: own.train for name, own in clients.items() if own.train}
    problems = []
    if missing := [name for name in trains if name not in privacy.units]:
        told = f"declares {', '.join(privacy.units)}, and {missing[0]!r} trains too"
        message = f"{told}; declare its units, {privacy.unit}s, as well"
        problems.append(Problem("privacy.units", message, code="missing"))
    if not apart and (strangers := [name for name in privacy.units if name not in trains]):
        message = f"{strangers[0]!r} is no client that trains; these are: {', '.join(trains)}"
        problems.append(Problem("privacy.units", message, code="unknown_name"))
    if privacy.unit == "patient":
        nameless = [each.id for own in trains.values() for each in own if not each.patient]
        if nameless:
            message = f"'patient' needs a patient for every training document, and {len(nameless)} have none"
            example = f"(for example {nameless[0]!r}); name them by data.patients, or say unit: document"
            return [*problems, Problem("privacy.unit", f"{message} {example}", code="missing")]
    if privacy.unit == "window":  # counted once they are encoded
        return problems
    if not apart:
        problems += _scattered(trains, privacy.unit, settings.partition.by)
    for name, documents in trains.items():
        problems += _beyond_declared(privacy, name, len(units_of(documents, privacy.unit)))
    return problems


def _scattered(clients: Mapping[str, Sequence[Document]], unit: str, partition: str) -> list[Problem]:
    """Returns why the epsilon of a client is not that of a unit, which is at several clients, if one is."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for client, documents in clients.items():
        for whose in units_of(documents, unit):
            places[whose].append(client)
    several = [who for who in places.values() if len(who) > 1]
    if partition == "tokens":
        what = "it cuts documents"
    elif several:  # whose names are for no message
        what = f"{len(several)} {unit}s are at several clients (for example at {', '.join(several[0])})"
    else:
        return []
    message = f"{partition!r} parts what privacy.unit {unit!r} is to protect as a whole: {what}"
    return [Problem("partition.by", f"{message}; 'site' keeps it together", code="conflict")]


def window_problems(
    settings: RunSettings, task: Task, tokenizer: Any, clients: Mapping[str, Split]
) -> list[Problem]:
    """Returns which clients have more windows than they declare, where these are the units."""
    privacy = settings.privacy
    if privacy.unit != "window" or not privacy.by_unit or privacy.units is None:
        return []
    counts = {name: len(task.training_examples(own.train, tokenizer)) for name, own in clients.items()}
    return [problem for name, there in counts.items() for problem in _beyond_declared(privacy, name, there)]


def _beyond_declared(privacy: PrivacySettings, client: str, there: int) -> list[Problem]:
    """Returns why a client has too many units, if it has; one that declares none is told of elsewhere."""
    declared = (privacy.units or {}).get(client, 0)
    message = f"{client!r} declares {declared} {privacy.unit}s, and has {there}; declare at least as many"
    return [Problem("privacy.units", message, code="out_of_range")] if 0 < declared < there else []


def privacy_of(settings: RunSettings, method: Method, layout: Layout | None = None) -> Privacy:
    """Returns the mechanism of a run with what follows from its settings, from declared numbers alone.

    Args:
        settings: The run's.
        method: Its method.
        layout: Of the whole model; only joint noise depends on it, on how many numbers train.

    Raises:
        ConfigurationError: Joint noise does not go with so many sites or numbers.
    """
    privacy, rounds = settings.privacy, settings.federation.rounds
    if privacy.mechanism == "none":
        return Privacy(privacy)
    if privacy.mechanism == "central":
        return solved(privacy, {EVERYBODY: settings.federation.sample}, rounds + privacy.spare_turns)
    assert privacy.units is not None and privacy.expected_batch is not None  # noqa: S101 - checked together
    units: Mapping[str, int] = {"pooled": sum(privacy.units.values())} if method.pooled else privacy.units
    rates = {name: privacy.expected_batch / count for name, count in units.items()}
    turns = most_turns(list(units), settings.federation.sample, Seed(settings.seed), rounds)
    turns += privacy.spare_turns
    if privacy.mechanism == "local":
        return solved(privacy, rates, turns)
    assert layout is not None  # noqa: S101 - whoever has no model has no joint noise
    sites = sample_size(len(units), settings.federation.sample)
    numbers = sum(layout.sizes[name] for name in method.trainable(layout))
    return solved_jointly(privacy, rates, turns, sites=sites, numbers=numbers)


def budget_terms(own: BudgetSettings, unit: str, *, apart: bool) -> budget.Terms:
    """Returns what must hold of a budget's file.

    A client that is a process of its own has one file, in which a name is one unit, whatever its site is
    called: a site that is renamed has spent what it had spent.

    Args:
        own: What is configured.
        unit: `patient` or `document`.
        apart: Whether the file is that of a client that is a process of its own.

    Raises:
        ConfigurationError: The key of its pseudonyms cannot be read.
    """
    named_by = "site" if own.disjoint_sites and not apart else "name"
    try:
        key = PseudonymKey.read(key_of(Path(own.path)))
    except ConfigurationError as error:
        raise ConfigurationError(
            [Problem("privacy.budget.path", each.message, code=each.code) for each in error.problems]
        ) from None
    return budget.Terms(unit, own.delta, key.check, named_by)


def check_budget(settings: PrivacySettings, *, apart: bool = False) -> None:
    """Checks that the file and the key of a budget are in order, as far as they are there.

    Raises:
        ConfigurationError: They are not.
    """
    if (own := settings.bounded_by) is not None:
        budget.room_for(Path(own.path), budget_terms(own, settings.unit, apart=apart), (), own.epsilon)


def most_turns(clients: Sequence[str], share: float, seed: Seed, rounds: int) -> int:
    """Returns in how many rounds the client takes part that takes part in most."""
    drawn = (sample(clients, share, seed.child("round", number, "sample")) for number in range(1, rounds + 1))
    return max(Counter(name for chosen in drawn for name in chosen).values(), default=0)
