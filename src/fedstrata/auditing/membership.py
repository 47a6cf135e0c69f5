"""A membership audit: a run is made in a scratch folder with canaries in it, and what leaves is judged.

The server is honest and curious. It sees every plan and every update of every client, and the final model; it
knows the configuration and the canaries, and not who of them is trained on. A canary that is held out is a
unit that a client declares and has nothing of: audited is what the epsilon is of, by zero-out.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstrata.auditing.observed_run import canary_run, divided
from fedstrata.client.site import Site
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.settings.source import Source
from fedstrata.data.split import units_of
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.privacy import privacy_of
from fedstrata.engine.sites import sites_of
from fedstrata.privacy.attacks.audit import Audit, Claim, audit
from fedstrata.privacy.attacks.canaries import Canaries, make_canaries, require_drawable
from fedstrata.privacy.attacks.power import Power, power
from fedstrata.record.log import Listener

REFERENCE = Claim(1.0, 1e-5)
"""What guesses are planned for where nothing is claimed."""

Score: TypeAlias = Literal["updates", "losses"]


@dataclass(frozen=True, slots=True)
class Target:
    """What is attacked, and how.

    Attributes:
        canaries: How many there are, 2 or more.
        words: Of each.
        clients: Whose patients they are, in turn; those of all clients that train if none.
        score: What decides: what updates tell of a canary, or how far its loss has fallen.
        raise_units: Whether declared units, and the expected batch with them, may be raised to hold canaries.
    """

    canaries: int = 2000
    words: int = 6
    clients: tuple[str, ...] = ()
    score: Score = "updates"
    raise_units: bool = False


@dataclass(frozen=True, slots=True)
class Membership:
    """What was found.

    Attributes:
        clients: Whose patients the canaries were.
        unit: What is protected as a whole; empty without privacy.
        epsilon: What the accountant says that the run has spent of the client of them that has spent most;
            none without noise.
        audits: What each score shows, by its name.
        score: The one that decides.
        power: What an audit would have found, were twice the epsilon true; none without noise.
        factor: By what declared units and the expected batch were raised.
        updates: How many updates were seen.
        share: The share of the coordinates by which canaries are told apart.
        seconds: How long the run and the attack took.
        scores: Of each canary, by name of the score.
        included: Which canaries were trained on.
    """

    clients: tuple[str, ...]
    unit: str
    epsilon: float | None
    audits: Mapping[str, Audit]
    score: Score
    power: Power | None
    factor: int
    updates: int
    share: float
    seconds: float
    scores: Mapping[str, NDArray[np.float64]]
    included: NDArray[np.bool_]

    @property
    def decisive(self) -> Audit:
        """What decides."""
        return self.audits[self.score]


def audit_membership(source: Source, target: Target, listen: Listener) -> Membership:
    """Makes a run with canaries in it and judges what leaves its clients.

    Args:
        source: The run's configuration.
        target: What is attacked, and how.
        listen: Told of the run's events.

    Raises:
        ConfigurationError: The configuration is wrong, or cannot be attacked in this way.
        FedstrataError: The run failed, or nothing left the clients that hold canaries.
    """
    experiment = prepare(source)
    problems = [*_unattackable(experiment), *_strangers(experiment, target)]
    if problems:
        raise ConfigurationError(source.located(problems))
    started, seed = time.perf_counter(), experiment.seed.child("membership")
    names = target.clients or tuple(name for name, own in experiment.clients.items() if own.train)
    made = (names, target.canaries, target.words, seed.child("canaries"))
    canaries = make_canaries(experiment.task, experiment.model.tokenizer, *made)
    experiment, factor = _with_room(experiment, canaries, target.raise_units)
    run = canary_run(experiment, canaries, listen)
    scores = {"updates": run.by_updates(), "losses": run.by_losses}
    delta = experiment.privacy.settings.delta or REFERENCE.delta
    claim = Claim(run.epsilon or REFERENCE.epsilon, delta)
    included, private = canaries.included, experiment.privacy.mechanism == "local"
    return Membership(
        names,
        experiment.settings.privacy.unit if private else "",
        run.epsilon,
        {name: audit(own, included, claim, seed.child("audit", name)) for name, own in scores.items()},
        target.score,
        power(target.canaries, claim, seed.child("power")) if run.epsilon else None,
        factor,
        sum(own.seen for own in run.scorers.values()),
        min(own.share for own in run.scorers.values()),
        time.perf_counter() - started,
        scores,
        included,
    )


def _unattackable(experiment: Experiment) -> list[Problem]:
    """Returns why canaries would say nothing of a run."""
    settings = experiment.settings
    found: list[Problem] = []
    try:
        require_drawable(experiment.task)
    except ConfigurationError as error:
        found += error.problems
    found += divided(experiment)
    if experiment.privacy.mechanism == "central":
        message = "'central' protects clients as a whole, and canaries are patients of a client"
        found.append(Problem("privacy.mechanism", message))
    if settings.privacy.secure_aggregation:
        message = (
            "hides single updates, by which canaries are told apart: a server sees the sum of a round alone; "
            "audit the run without it (with privacy.mechanism 'local' or 'none', since 'joint' needs it)"
        )
        found.append(Problem("privacy.secure_aggregation", message))
    by_window = experiment.privacy.mechanism == "local" and settings.privacy.unit == "window"
    if by_window and experiment.task.packed:
        message = "windows of several documents, in which a canary is no unit of its own; use 'document'"
        found.append(Problem("privacy.unit", f"'window' of task {experiment.task.name} are {message}"))
    return found


def _strangers(experiment: Experiment, target: Target) -> list[Problem]:
    trains = [name for name, own in experiment.clients.items() if own.train]
    return [
        Problem("--client", f"{name!r} is no client that trains; these are: {', '.join(trains)}")
        for name in target.clients
        if name not in trains
    ]


def _with_room(experiment: Experiment, canaries: Canaries, raised: bool) -> tuple[Experiment, int]:
    """Returns the experiment with canaries in it, and by what its declared units were raised.

    Both are raised by one whole factor, so that the chance of a step to see a unit, and with it the noise,
    stays what it is.

    Raises:
        ConfigurationError: A client declares too few units to hold its canaries, whatever coins say.
    """
    clients = {name: canaries.added_to(name, own) for name, own in experiment.clients.items()}
    added = replace(experiment, clients=clients, workers=1)
    settings = experiment.settings.privacy
    if experiment.privacy.mechanism != "local":
        return added, 1
    assert settings.units is not None and settings.expected_batch is not None  # noqa: S101 - checked
    room = {site.id: _needed(site, canaries) for site in sites_of(experiment)[0] if site.documents.train}
    factor = max(ceil(needed / settings.units[name]) for name, needed in room.items())
    if factor == 1:
        return added, 1
    if not raised:
        raise ConfigurationError([_no_room(experiment, room)])
    units = {name: factor * count for name, count in settings.units.items()}
    if settings.delta is not None and settings.delta * max(units.values()) >= 1.0:
        message = f"must be below 1/{max(units.values())}, for the units that are declared with canaries"
        raise ConfigurationError([Problem("privacy.delta", f"{message}, not {settings.delta:g}")])
    more = {"units": units, "expected_batch": factor * settings.expected_batch}
    own = experiment.settings.model_copy(update={"privacy": settings.model_copy(update=more)})
    return replace(
        added, settings=own, privacy=privacy_of(own, experiment.method, experiment.model.layout)
    ), factor


def _needed(site: Site, canaries: Canaries) -> int:
    """Returns how many units a client has with all of its canaries."""
    if site.unit == "window":
        documents = [canaries.documents[number] for number in canaries.of(site.id)]
        return len(site.encoded_units()) + len(site.task.training_examples(documents, site.tokenizer))
    return len(units_of(site.documents.train, site.unit)) + len(canaries.of(site.id))


def _no_room(experiment: Experiment, room: Mapping[str, int]) -> Problem:
    settings = experiment.settings.privacy
    units = settings.units or {}
    name, needed = max(room.items(), key=lambda each: each[1] / units[each[0]])
    told = f"{name!r} declares {units[name]} {settings.unit}s, and with its canaries it may have {needed}"
    way = "declare more, take fewer --canaries, or let --raise-units raise this and privacy.expected_batch"
    return Problem("privacy.units", f"{told}; {way}, both by the same factor")
