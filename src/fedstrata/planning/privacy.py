"""What differential privacy will cost a run: epsilon, noise, and whether anything can be learnt through it.

**Hopeless noise.** A step moves the model along the mean gradient, which is at most C long (C: `clip`), and
adds noise of deviation sigma C / B to each of P trained numbers (B: `expected_batch`), together
sigma C sqrt(P) / B long. Over T steps at each of n sites whose models are averaged, gradients that all point
one way have come T C far, and noise, which points everywhere, sigma C sqrt(P T / n) / B. The ratio of both,

    r = sigma sqrt(P) / (B sqrt(T n)),

is how much longer what noise has done is than the most that can have been learnt. Above `HOPELESS` = 1 a plan
warns. Real gradients are shorter than C and do not all point one way, so that much is lost before: the top 2
blocks of the small model (789,129 numbers, 2 sites, 100 steps of 8 notes, AdamW, one seed) had F1 .83 without
noise, .52 at r = .08, .34 at .24, .15 at .8 and .06 at 2.4. At r = 1 nothing is left to lose, so a warning is
seldom wrong; it does not follow that noise below is harmless. 40 patients with batches of 8 and 1500 steps,
at sigma / B = 1.05, are hopeless for more than 1400 numbers that train; 400 patients with batches of 64 and
300 steps, at .049, for more than 120,000, and ten such sites for more than 1.2 million.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedstrata.client.site import Site
from fedstrata.data.degenerate import named
from fedstrata.engine.budgets import room_for
from fedstrata.engine.facts import joint_facts
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.sampling import sample_size
from fedstrata.engine.sites import sites_of
from fedstrata.planning.estimate import Estimate
from fedstrata.privacy.accounting import Mechanism
from fedstrata.privacy.groups import epsilon_of_group
from fedstrata.privacy.mechanism import ADJACENCY, Privacy

HOPELESS = 1.0
"""The ratio above which noise is called hopeless; see above."""
FEW = 0.8
"""Share of the declared units of which a site that has fewer is told."""
MOST_TOGETHER = 20
"""Units of one patient up to which an epsilon is worked out: further ones take long and mean nothing."""


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """What of a budget over all runs is spent, and will be, by the unit of a client that has spent most.

    Attributes:
        most: The epsilon that may be spent.
        delta: Of all of them.
        spent: What is spent now, or reserved by runs that have not ended.
        after: What will be once this run has reserved all turns that its noise allows.
    """

    most: float
    delta: float
    spent: float
    after: float


@dataclass(frozen=True, slots=True)
class SitePrivacy:
    """What one client declares, has, and will have spent.

    Attributes:
        declared: Units that it declares.
        found: Units that have examples.
        rate: The chance of a unit in a step.
        rounds: The rounds that it takes part in.
        epsilon: What these spend if no turn is taken again; null if nothing bounds it.
        most: What it spends if it takes all turns that the noise allows for; null if nothing bounds it.
        budget: What of its budget over all runs is spent, and will be; null without one.
    """

    declared: int
    found: int
    rate: float
    rounds: int
    epsilon: float | None
    most: float | None
    budget: BudgetPlan | None = None


@dataclass(frozen=True, slots=True)
class PatientPrivacy:
    """What an epsilon by smaller units is worth to whoever has several of them.

    Attributes:
        of: `patient`, or `document` where none names a patient.
        units: The most units that are one's, at any client.
        counted: For how many the epsilon is: at most 20.
        epsilon: Their epsilon, all turns that are allowed taken; null if nothing bounds it or none is known.
    """

    of: str
    units: int
    counted: int
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class PrivacyPlan:
    """What a run's differential privacy will be.

    Attributes:
        mechanism: `local`, `central` or `joint`.
        unit: What is protected as a whole.
        adjacency: How neighbours differ.
        delta: Of every epsilon here.
        epsilon: The most that a client can spend, with all allowed turns; null if nothing bounds it.
        sigma: The noise, in units of `clip`.
        clip: The clipping norm.
        noise: `secure` or `seeded`.
        expected: What the sum is divided by: units of a step or, central, clients of a round.
        noise_on_mean: Deviation of the noise of a step on the mean gradient (central: on the mean change of a
            round), in units of `clip`.
        ratio: How much longer what noise does in the run is than the most that can be learnt.
        steps: Steps of a turn; null where the server adds the noise.
        turns: Turns of a client (central: rounds) that the noise allows.
        spare_turns: How many of them are to be taken again.
        clients: Each client's units and epsilon; empty where clients are the units.
        patients: What the epsilon is worth to a patient of several units; null where each has one.
        joint: How clients share the noise (`engine.facts.joint_facts`); null where it is not joint.
    """

    mechanism: str
    unit: str
    adjacency: str
    delta: float
    epsilon: float | None
    sigma: float
    clip: float
    noise: str
    expected: float
    noise_on_mean: float
    ratio: float
    steps: int | None
    turns: int
    spare_turns: int
    clients: dict[str, SitePrivacy]
    patients: PatientPrivacy | None
    joint: dict[str, Any] | None


def plan_privacy(estimate: Estimate, trainable: int) -> PrivacyPlan | None:
    """Returns what a run's differential privacy will be; none without.

    Args:
        estimate: The run.
        trainable: How many numbers train.
    """
    experiment, privacy = estimate.experiment, estimate.experiment.privacy
    if privacy.mechanism == "none":
        return None
    settings, federation, local = (
        privacy.settings,
        experiment.settings.federation,
        privacy.settings.by_unit,
    )
    assert privacy.rates is not None and settings.delta is not None  # noqa: S101 - a mechanism has them
    rates = privacy.rates
    cohort = sample_size(len(estimate.workloads), federation.sample)
    clients = federation.sample * len(estimate.workloads)  # who takes part is drawn, each by itself
    expected = float(settings.expected_batch or 1) if local else clients
    deviation, own = privacy.sigma, local
    if (joint := privacy.joint) is not None:  # the sum of all clients has the noise, and one step is taken
        expected, own = expected * cohort, False
        rounded = joint.rounding.sensitivity.l2 / (joint.rounding.scale * settings.clip)
        deviation *= joint.sharing.cost * rounded
    noise = deviation / expected
    steps = federation.rounds * (privacy.steps if local else 1)
    averaging = 1 if experiment.method.personal or not own else cohort
    return PrivacyPlan(
        mechanism=privacy.mechanism,
        unit=settings.unit if local else "client",
        adjacency=ADJACENCY,
        delta=settings.delta,
        epsilon=privacy.epsilon(max(rates, key=lambda name: rates[name]), privacy.turns),
        sigma=privacy.sigma,
        clip=settings.clip,
        noise=settings.noise,
        expected=expected,
        noise_on_mean=noise,
        ratio=noise_ratio(noise, trainable, steps * averaging),
        steps=privacy.steps if local else None,
        turns=privacy.turns,
        spare_turns=settings.spare_turns,
        clients=_clients(estimate, privacy) if local else {},
        patients=_patients(experiment, privacy) if local else None,
        joint=joint_facts(joint) if joint is not None else None,
    )


def noise_ratio(noise: float, trainable: int, steps: int) -> float:
    """Returns how much longer what noise has done is than the most that can have been learnt.

    Args:
        noise: Deviation of the noise on the mean gradient, in units of the clipping norm.
        trainable: How many numbers it is added to.
        steps: How often, over all clients whose models are averaged.
    """
    return noise * math.sqrt(trainable / max(1, steps))


def _clients(estimate: Estimate, privacy: Privacy) -> dict[str, SitePrivacy]:
    pooled, own = estimate.experiment.method.pooled, privacy.settings.bounded_by
    room = room_for(estimate.experiment)
    return {
        name: SitePrivacy(
            declared=privacy.settings.declared(name, pooled=pooled),
            found=workload.units or 0,
            rate=(privacy.rates or {})[name],
            rounds=estimate.turns[name],
            epsilon=privacy.epsilon(name, estimate.turns[name]),
            most=privacy.epsilon(name, privacy.turns),
            budget=BudgetPlan(own.epsilon, own.delta, *room[name]) if own else None,
        )
        for name, workload in estimate.workloads.items()
    }


def _patients(experiment: Experiment, privacy: Privacy) -> PatientPrivacy | None:
    """Returns what epsilon is by patient, or by document, where units are smaller than that."""
    unit, delta = privacy.settings.unit, privacy.settings.delta
    if unit == "patient" or delta is None or privacy.rates is None:
        return None
    sites = [part for site in sites_of(experiment)[1] for part in site.parts or [site]]
    named = all(document.patient for site in sites for document in site.documents.train)
    of = "patient" if named else "document"
    if of == unit:
        return None
    most, site = max(((_most_units(site, of, unit), site) for site in sites), key=lambda item: item[0])
    if most < 2:
        return None
    rate = privacy.rates.get(site.id, max(privacy.rates.values()))
    counted = min(most, MOST_TOGETHER)
    if privacy.settings.noise == "seeded":
        return PatientPrivacy(of, most, counted, None)
    if privacy.joint is not None:
        epsilon = privacy.joint.epsilon([rate] * counted, privacy.turns * privacy.steps, delta)
    else:
        mechanism = Mechanism(privacy.sigma, rate, privacy.turns * privacy.steps)
        epsilon = epsilon_of_group(mechanism, counted, delta)
    return PatientPrivacy(of, most, counted, epsilon if math.isfinite(epsilon) else None)


def _most_units(site: Site, of: str, unit: str) -> int:
    """Returns how many units are one patient's, or one document's, at most.

    Where texts are packed, one that stands behind another may reach into one window more than alone.
    """
    more = int(unit == "window" and site.task.packed)
    counts: Counter[tuple[str, str]] = Counter()
    for document in site.documents.train:
        owner = document.patient if of == "patient" else document.id
        windows = len(site.task.training_examples([document], site.tokenizer)) if unit == "window" else 1
        counts[document.site, owner] += windows + more
    return max(counts.values(), default=0)


def privacy_warnings(plan: PrivacyPlan) -> Iterator[str]:
    """Yields what is to be known before a private run starts."""
    if plan.noise == "seeded":
        yield (
            "privacy.noise is 'seeded': whoever knows the run's seed can take the noise off again, so this "
            "is an experiment and protects nobody"
        )
    if plan.sigma == 0.0:
        yield "privacy.sigma is 0: gradients are clipped, nothing is protected, and there is no epsilon"
    if plan.ratio > HOPELESS:
        yield _hopeless(plan)
    yield from _unit_warnings(plan)
    patients = plan.patients
    if patients is not None and plan.epsilon is not None:
        figure = "none that can be worked out" if patients.epsilon is None else f"{patients.epsilon:.3g}"
        above = "above " if patients.counted < patients.units else ""
        yield (
            f"privacy.unit is {plan.unit!r}, and a {patients.of} has up to {patients.units}: epsilon "
            f"{plan.epsilon:.3g} protects one {plan.unit}; that of the {patients.of} is {above}{figure}. Use "
            f"unit {patients.of!r} to protect {patients.of}s"
        )


def _hopeless(plan: PrivacyPlan) -> str:
    local = plan.steps is not None
    helps = "more units at a site with a larger privacy.expected_batch" if local else "more clients a round"
    return (
        f"the noise is hopeless: {plan.noise_on_mean:.3g} of the clipping norm on every trained number in "
        f"a {'step' if local else 'round'}, by the end of the run {plan.ratio:.3g} times as long as the most "
        f"that can be learnt (above {HOPELESS:g} nothing is, see docs/differential_privacy.md). What helps: "
        f"{helps}, fewer trained parameters, or a larger epsilon"
    )


def _unit_warnings(plan: PrivacyPlan) -> Iterator[str]:
    fewer = {name: own for name, own in plan.clients.items() if own.found < FEW * own.declared}
    if fewer:
        told = named([f"{name} {own.found} of {own.declared}" for name, own in fewer.items()])
        yield (
            f"fewer {plan.unit}s than declared ({told}): steps see fewer than privacy.expected_batch "
            "and are divided by it all the same, so that the noise weighs more than it has to"
        )


def sum_warnings(experiment: Experiment) -> Iterator[str]:
    """Yields what is to be known before a run whose updates are seen as sums alone; nothing of others."""
    if not experiment.privacy.settings.secure_aggregation:
        return
    privacy, training = experiment.privacy.settings, experiment.settings.training
    if privacy.mechanism == "none" and training.optimizer != "sgd":
        yield (
            f"{training.optimizer} moves a number by an amount that is known: a server can work out of a "
            "secure sum of few clients whose a move is, and whose a word is. Differential privacy bounds "
            "this (privacy.mechanism), masks do not"
        )
    clients, share = len(sites_of(experiment)[1]), experiment.settings.federation.sample
    asked = sample_size(clients, share)
    if share < 1:
        yield (
            f"federation.sample is {share:g}: where clients of two rounds differ by few, their sums can be "
            "subtracted from each other, which masks do not hinder; let all take part, or add noise"
        )
    if asked < (needed := threshold_of(clients)):
        yield (
            f"federation.sample draws {asked} of {clients} clients, and each of them demands {needed} in a "
            "sum: the run is refused before its first round"
        )
    elif threshold_of(asked) == asked:
        yield (
            f"a secure sum of {asked} clients needs all of them: one that drops out costs the round. Four "
            "clients bear one that does"
        )


def threshold_of(clients: int) -> int:
    """Returns how many clients of a masked sum must be left to unmask it."""
    from fedstrata.privacy.secure_sum.shares import threshold  # noqa: PLC0415 - for masks alone

    return threshold(clients)
