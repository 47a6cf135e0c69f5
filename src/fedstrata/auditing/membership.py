"""A membership audit: a run is made in a scratch folder with canaries in it, and what leaves is judged.

The server is honest and curious. It knows the configuration and the canaries, and not who of them is trained
on. By `updates` it looks at every plan and every update of every client, by `losses` at the first and the
last model, by `threshold` at the last model, and by `lira` at that and at shadow runs of its own, of the same
configuration. A canary that is held out is a unit that a client declares and has nothing of: audited is what
the epsilon is of, by zero-out.

A bound below a claim says something only if it would have been above it, had the claim been false. `power`
says that of an ideal attacker. What the scores here would have found is tried: the run is made once more with
less noise than is claimed (`Target.falsified`).
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstrata.auditing.canary_runs import AttackedRun, attacked_run, shadow_losses
from fedstrata.auditing.observed_run import unseen
from fedstrata.client.site import Site
from fedstrata.core.errors import ConfigurationError, Problem, refused
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import Source
from fedstrata.data.split import units_of
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.privacy import privacy_of
from fedstrata.engine.sites import sites_of
from fedstrata.privacy.attacks.audit import FALSE_BY_HALF, Audit, Claim, audit
from fedstrata.privacy.attacks.canaries import Canaries, make_canaries, require_drawable, shadow_coins
from fedstrata.privacy.attacks.lira import LEAST_SHADOWS, likelihood_ratios
from fedstrata.privacy.attacks.power import Power, power
from fedstrata.privacy.attacks.rates import Rates, rates_of
from fedstrata.record.findings import what_was_attacked
from fedstrata.record.log import Listener

REFERENCE = Claim(1.0, 1e-5)
"""What guesses are planned for where nothing is claimed."""

Score: TypeAlias = Literal["updates", "losses", "threshold", "lira"]
Falsity: TypeAlias = Literal["half", "none"]
"""How a claim is made false: with the noise of `FALSE_BY_HALF` times its epsilon, or with none."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is attacked, and how.

    Attributes:
        canaries: How many there are, 2 or more.
        words: Of each.
        clients: Whose patients they are, in turn; those of all clients that train if none.
        score: What decides.
        raise_units: Whether declared units, and the expected batch with them, may be raised to hold canaries.
        shadows: How many shadow runs `lira` has: 0, or `LEAST_SHADOWS` or more; without there is no `lira`.
        falsified: How the claim is made false in a further run; there is none if none.
    """

    canaries: int = 2000
    words: int = 6
    clients: tuple[str, ...] = ()
    score: Score = "updates"
    raise_units: bool = False
    shadows: int = 0
    falsified: Falsity | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """What scores of one run show, each by the score's name.

    Attributes:
        scores: Of each canary, (canaries,).
        rates: How well those who were trained on are told apart; none where all canaries are on one side.
        audits: What follows for the claim.
    """

    scores: Mapping[str, NDArray[np.float64]]
    rates: Mapping[str, Rates | None]
    audits: Mapping[str, Audit]


@dataclass(frozen=True, slots=True)
class Falsified:
    """What the scores would have found, were the claim false.

    Attributes:
        falsity: How it was made false.
        epsilon: What was true of the run; none without noise.
        sigma: Its noise, in units of the clipping norm.
        shown: What its scores show.
    """

    falsity: Falsity
    epsilon: float | None
    sigma: float
    shown: Shown


@dataclass(frozen=True, slots=True)
class Membership:
    """What was found.

    Attributes:
        clients: Whose patients the canaries were.
        unit: What is protected as a whole; empty without privacy.
        epsilon: What the accountant says that the run has spent of the client of them that has spent most;
            none without noise.
        shown: What the scores of the run show.
        score: The one that decides.
        shadows: How many shadow runs there were.
        power: What an ideal audit would have found, were twice the epsilon true; none without noise.
        falsified: What these scores would have found, were the claim false; none if that was not tried.
        factor: By what declared units and the expected batch were raised.
        updates: How many updates were seen.
        share: The share of the coordinates by which canaries are told apart.
        seconds: How long the runs and the attack took.
        included: Which canaries were trained on.
        attacked: What a reader has to know of the run to make the attack again.
    """

    clients: tuple[str, ...]
    unit: str
    epsilon: float | None
    shown: Shown
    score: Score
    shadows: int
    power: Power | None
    falsified: Falsified | None
    factor: int
    updates: int
    share: float
    seconds: float
    included: NDArray[np.bool_]
    attacked: Mapping[str, Any]

    @property
    def decisive(self) -> Audit:
        """What decides."""
        return self.shown.audits[self.score]


@dataclass(frozen=True, slots=True)
class _Stage:
    """What is run, as often as there are runs.

    Attributes:
        experiment: The experiment without canaries, with room for them.
        canaries: The canaries, with the coins of the run that is judged.
        coins: Who is trained on in shadow runs, (shadows, canaries).
        seed: Of all that is drawn for the audit.
        listen: Told of the run's events, and of `shadow` runs.
    """

    experiment: Experiment
    canaries: Canaries
    coins: NDArray[np.bool_]
    seed: Seed
    listen: Listener

    def judged(self, sigma: float | None = None) -> tuple[AttackedRun, dict[str, NDArray[np.float64]]]:
        """Makes the run, and its shadow runs, and returns it and its scores.

        Whoever judges believes in the noise that is claimed, whatever the noise is.

        Args:
            sigma: The noise, in units of the clipping norm; that of the experiment if none.
        """
        claimed = self.experiment.privacy
        noise = claimed if sigma is None else replace(claimed, sigma=sigma)
        experiment = replace(self.experiment, privacy=noise)
        run = attacked_run(with_canaries(experiment, self.canaries), self.canaries, self.listen, claimed)
        scores = {"updates": run.by_updates(), "losses": run.first - run.final, "threshold": -run.final}
        if len(self.coins):
            scores["lira"] = likelihood_ratios(run.final, self._shadow_losses(experiment), self.coins)
        return run, scores

    def _shadow_losses(self, experiment: Experiment) -> NDArray[np.float64]:
        found = []
        for number, coins in enumerate(self.coins, 1):
            canaries = replace(self.canaries, included=coins)
            seed = self.seed.child("shadow", number)
            found.append(shadow_losses(with_canaries(experiment, canaries), canaries, seed))
            self.listen("shadow", {"number": number, "shadows": len(self.coins)})
        return np.stack(found)

    def shown(self, scores: Mapping[str, NDArray[np.float64]], claim: Claim) -> Shown:
        """Returns what scores show."""
        included = self.canaries.included
        rates = {name: rates_of(own, included) for name, own in scores.items()}
        seeds = {name: self.seed.child("audit", name) for name in scores}
        return Shown(
            scores, rates, {name: audit(own, included, claim, seeds[name]) for name, own in scores.items()}
        )

    def falsified(self, falsity: Falsity, run: AttackedRun, claim: Claim) -> Falsified:
        """Makes the run once more, with less noise than is claimed.

        Args:
            falsity: With how much.
            run: The run with the noise that is claimed.
            claim: What is claimed.
        """
        sigma = run.sigma_at(FALSE_BY_HALF) if falsity == "half" else 0.0
        self.listen("falsified", {"sigma": sigma})
        _, scores = self.judged(sigma)
        epsilon = FALSE_BY_HALF * claim.epsilon if falsity == "half" else None
        return Falsified(falsity, epsilon, sigma, self.shown(scores, claim))


def audit_membership(source: Source, target: Target, listen: Listener) -> Membership:
    """Makes a run with canaries in it and judges what leaves its clients.

    Args:
        source: The run's configuration.
        target: What is attacked, and how.
        listen: Told of the run's events; of `shadow` runs, and that a run is `falsified`.

    Raises:
        ConfigurationError: The configuration is wrong, or cannot be attacked in this way.
        FedstrataError: A run failed, or nothing left the clients that hold canaries.
    """
    experiment = prepare(source)
    problems = [
        *unattackable(experiment),
        *_strangers(experiment, target),
        *_without_shadows(target),
        *_unfalsifiable(experiment, target),
    ]
    if problems:
        raise ConfigurationError(source.located(problems))
    started, seed = time.perf_counter(), experiment.seed.child("membership")
    names = target.clients or tuple(name for name, own in experiment.clients.items() if own.train)
    made = (names, target.canaries, target.words, seed.child("canaries"))
    canaries = make_canaries(experiment.task, experiment.model.tokenizer, *made)
    experiment, factor = _with_room(experiment, canaries, target.raise_units)
    coins = shadow_coins(target.canaries, target.shadows, seed.child("shadow", "coins"))
    stage = _Stage(experiment, canaries, coins, seed, listen)
    run, scores = stage.judged()
    delta = experiment.privacy.settings.delta or REFERENCE.delta
    claim = Claim(run.epsilon or REFERENCE.epsilon, delta)
    return Membership(
        names,
        experiment.settings.privacy.unit if experiment.privacy.mechanism == "local" else "",
        run.epsilon,
        stage.shown(scores, claim),
        target.score,
        target.shadows,
        power(target.canaries, claim, seed.child("power")) if run.epsilon else None,
        stage.falsified(target.falsified, run, claim) if target.falsified else None,
        factor,
        sum(own.seen for own in run.scorers.values()),
        min(own.share for own in run.scorers.values()),
        time.perf_counter() - started,
        canaries.included,
        what_was_attacked(experiment.settings),
    )


def with_canaries(experiment: Experiment, canaries: Canaries) -> Experiment:
    """Returns an experiment with the canaries in it that are trained on."""
    clients = {name: canaries.added_to(name, own) for name, own in experiment.clients.items()}
    return replace(experiment, clients=clients, workers=1)


def unattackable(experiment: Experiment) -> list[Problem]:
    """Returns why canaries would say nothing of a run."""
    settings = experiment.settings
    found: list[Problem] = []
    try:
        require_drawable(experiment.task)
    except ConfigurationError as error:
        found += error.problems
    found += unseen(experiment)
    if experiment.privacy.mechanism == "central":
        message = "'central' protects clients as a whole, and canaries are patients of a client"
        found.append(Problem("privacy.mechanism", message, code="not_supported"))
    if settings.privacy.secure_aggregation:
        message = (
            "hides single updates, by which canaries are told apart: a server sees the sum of a round alone; "
            "audit the run without it (with privacy.mechanism 'local' or 'none', since 'joint' needs it)"
        )
        found.append(Problem("privacy.secure_aggregation", message, code="not_supported"))
    by_window = experiment.privacy.mechanism == "local" and settings.privacy.unit == "window"
    if by_window and experiment.task.packed:
        message = "windows of several documents, in which a canary is no unit of its own; use 'document'"
        found.append(
            Problem(
                "privacy.unit", f"'window' of task {experiment.task.name} are {message}", code="not_supported"
            )
        )
    return found


def _strangers(experiment: Experiment, target: Target) -> list[Problem]:
    trains = [name for name, own in experiment.clients.items() if own.train]
    return [
        Problem(
            "--client",
            f"{name!r} is no client that trains; these are: {', '.join(trains)}",
            code="unknown_name",
        )
        for name in target.clients
        if name not in trains
    ]


def _without_shadows(target: Target) -> Iterator[Problem]:
    """Yields what is asked of too few shadow runs."""
    least = f"{LEAST_SHADOWS} or more, so that each canary is at least twice in and twice out"
    if 0 < target.shadows < LEAST_SHADOWS:
        yield Problem(
            "--shadows", f"must be 0 (no score 'lira'), or {least}, not {target.shadows}", code="out_of_range"
        )
    elif target.score == "lira" and not target.shadows:
        yield Problem(
            "--score",
            f"'lira' holds losses against those of shadow runs; give --shadows {least}",
            code="missing",
        )


def _unfalsifiable(experiment: Experiment, target: Target) -> Iterator[Problem]:
    """Yields why a claim cannot be made false."""
    if target.falsified is None:
        return
    privacy = experiment.settings.privacy
    if not privacy.spends:
        message = "has no effect on a run without noise, of which nothing is claimed"
        yield Problem(
            "--falsified",
            f"{target.falsified!r} {message}; give privacy.epsilon, or leave it out",
            code="no_effect",
        )
    if privacy.bounded_by is not None:
        message = "makes a run that spends more of patients than is claimed, against privacy.budget"
        yield Problem(
            "--falsified", f"{target.falsified!r} {message}; leave one of the two out", code="conflict"
        )


def _with_room(experiment: Experiment, canaries: Canaries, raised: bool) -> tuple[Experiment, int]:
    """Returns the experiment with room for canaries, and by what its declared units were raised.

    Both are raised by one whole factor, so that the chance of a step to see a unit, and with it the noise,
    stays what it is.

    Raises:
        ConfigurationError: A client declares too few units to hold its canaries, whatever coins say.
    """
    settings = experiment.settings.privacy
    if experiment.privacy.mechanism != "local":
        return experiment, 1
    assert settings.units is not None and settings.expected_batch is not None  # noqa: S101 - checked
    room = {site.id: _needed(site, canaries) for site in sites_of(experiment)[0] if site.documents.train}
    factor = max(ceil(needed / settings.units[name]) for name, needed in room.items())
    if factor == 1:
        return experiment, 1
    if not raised:
        raise ConfigurationError([_no_room(experiment, room)])
    units = {name: factor * count for name, count in settings.units.items()}
    if settings.delta is not None and settings.delta * max(units.values()) >= 1.0:
        message = f"must be below 1/{max(units.values())}, for the units that are declared with canaries"
        raise refused("privacy.delta", f"{message}, not {settings.delta:g}", "out_of_range")
    more = {"units": units, "expected_batch": factor * settings.expected_batch}
    own = experiment.settings.model_copy(update={"privacy": settings.model_copy(update=more)})
    privacy = privacy_of(own, experiment.method, experiment.model.layout)
    return replace(experiment, settings=own, privacy=privacy), factor


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
    return Problem("privacy.units", f"{told}; {way}, both by the same factor", code="out_of_range")
