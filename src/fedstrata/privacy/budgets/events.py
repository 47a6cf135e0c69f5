"""What runs have released of a unit, as mechanisms, and the most that anyone has spent by them.

The steps of all runs that a unit was in are composed as if they were one run's: Gaussian ones by their
privacy losses, Skellam ones by their Renyi divergences. What has both is bounded in two ways, of which the
smaller figure counts: Renyi divergences of all, and the sum of both epsilons, each at half of delta. Both
hold for runs that are chosen by what came of earlier ones; the second is smaller where one kind has spent
almost nothing, since Renyi divergences exaggerate a Gaussian's epsilon.

Units of the same runs have spent the same, so that there are few figures, however many units.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstrata.privacy import skellam
from fedstrata.privacy.accounting import Mechanism, epsilon_of
from fedstrata.privacy.skellam_noise import distance_of

GAUSSIAN, SKELLAM = "gaussian", "skellam"
MOST_FIGURES = 32
"""Epsilons that are worked out; where more units differ in what they were in, some count as those beside."""


@dataclass(frozen=True, slots=True, order=True)
class MechanismEvent:
    """So many steps of one mechanism.

    Attributes:
        kind: Which mechanism: `gaussian` or `skellam`. Another one needs a rule of composition here.
        sigma: Its noise, in units of the clipping norm; of Skellam noise in units of `l2`.
        rate: The probability of each unit in each step.
        steps: How many steps.
        l2: Of Skellam noise how long a unit's rounded gradient can be, in integers.
        l1: Of Skellam noise how large the sum of the sizes of its numbers can be.
        numbers: Of Skellam noise how many are drawn in a step, by all sites, each almost as it should be.
    """

    kind: str
    sigma: float
    rate: float
    steps: int
    l2: float = 0.0
    l1: float = 0.0
    numbers: int = 0


Profile: TypeAlias = tuple[MechanismEvent, ...]
"""All that was released of a unit: equal steps counted together, in a fixed order."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What some units have spent.

    Attributes:
        epsilon: Of each of them; infinity where nothing bounds it.
        units: How many they are.
    """

    epsilon: float
    units: int


def profile_of(events: Iterable[MechanismEvent]) -> Profile:
    """Returns events with equal steps counted together."""
    counts: Counter[MechanismEvent] = Counter()
    for event in events:
        counts[replace(event, steps=1)] += event.steps
    return tuple(replace(step, steps=count) for step, count in sorted(counts.items()) if count)


def composed(events: Iterable[MechanismEvent], delta: float) -> float:
    """Returns an epsilon of all that was released of a unit, an upper bound.

    Args:
        events: What was released, in any order.
        delta: The delta.

    Raises:
        ValueError: There is a kind of mechanism that this version cannot compose.
    """
    every = list(events)
    if unknown := {event.kind for event in every} - {GAUSSIAN, SKELLAM}:
        raise ValueError(f"mechanisms that cannot be composed: {', '.join(sorted(unknown))}")
    gaussians = [Mechanism(own.sigma, own.rate, own.steps) for own in every if own.kind == GAUSSIAN]
    of_skellam = [own for own in every if own.kind == SKELLAM]
    noise = [
        skellam.SkellamMechanism(own.sigma, skellam.Sensitivity(own.l2, own.l1), own.rate, own.steps)
        for own in of_skellam
    ]
    distance = distance_of(float(sum(own.numbers * own.steps for own in of_skellam)))
    alone = epsilon_of(gaussians, delta), skellam.epsilon_of(noise, delta, distance)
    if min(alone) == 0.0:
        return max(alone)
    together = skellam.epsilon_of(noise, delta, distance, gaussians)
    added = epsilon_of(gaussians, delta / 2.0) + skellam.epsilon_of(noise, delta / 2.0, distance)
    # Grids of privacy losses exaggerate a little, by more than what other noise may add to the bound.
    return max(*alone, min(together, added))


def largest(profiles: Mapping[Profile, int], delta: float) -> list[Spending]:
    """Returns what those have spent whom nobody exceeds in every mechanism; the most first.

    Epsilon grows with the steps of each mechanism, so that the largest is among them. Where they are many,
    neighbours are counted as if each had been in all that one of them was in: a bound from above.

    Args:
        profiles: How many units have had what released of them.
        delta: The delta.
    """
    if not profiles:
        return []
    kinds, steps = _table(profiles)
    units, rows = np.array(list(profiles.values())), _maximal(steps)
    found = [
        Spending(_epsilon(kinds, steps[group].max(axis=0), delta), int(units[group].sum()))
        for group in np.array_split(rows, min(len(rows), MOST_FIGURES))
    ]
    return sorted(found, key=lambda each: -each.epsilon)


def exceeds(profiles: Mapping[Profile, int], delta: float, most: float) -> bool:
    """Whether a unit has spent more than so much.

    Args:
        profiles: How many units have had what released of them.
        delta: The delta.
        most: The epsilon that is allowed.
    """
    if not profiles:
        return False
    kinds, steps = _table(profiles)
    # Whoever was in everything has spent no less than anybody: one figure, which is often enough.
    return _epsilon(kinds, steps.max(axis=0), delta) > most and largest(profiles, delta)[0].epsilon > most


def _table(profiles: Iterable[Profile]) -> tuple[list[MechanismEvent], NDArray[np.int64]]:
    """Returns one step of each mechanism of some profiles, and how many, (profiles, mechanisms)."""
    every = [{replace(event, steps=1): event.steps for event in own} for own in profiles]
    kinds = sorted({kind for own in every for kind in own})
    return kinds, np.array([[own.get(kind, 0) for kind in kinds] for own in every], dtype=np.int64)


def _maximal(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the rows that no other row has in itself, in the order of their numbers from the left."""
    found: list[int] = []
    for row in np.argsort(-steps.sum(axis=1), kind="stable"):
        if not (steps[found] >= steps[row]).all(axis=1).any():
            found.append(int(row))
    return np.array(sorted(found, key=lambda row: tuple(steps[row])), dtype=np.int64)


def _epsilon(kinds: list[MechanismEvent], steps: NDArray[np.int64], delta: float) -> float:
    counted = zip(kinds, steps, strict=True)
    return composed((replace(step, steps=int(count)) for step, count in counted), delta)
