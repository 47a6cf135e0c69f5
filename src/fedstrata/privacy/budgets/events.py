"""What runs have released of a unit, as mechanisms, and the most that anyone has spent by them.

Epsilons are never added: the steps of all runs that a unit was in are composed as if they were one run's.
Units of the same runs have spent the same, so that there are few figures, however many units.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstrata.privacy.accounting import Mechanism, epsilon_of

GAUSSIAN = "gaussian"
MOST_FIGURES = 32
"""Epsilons that are worked out; where more units differ in what they were in, some count as those beside."""


@dataclass(frozen=True, slots=True, order=True)
class MechanismEvent:
    """So many steps of one mechanism.

    Attributes:
        kind: Which mechanism: `gaussian`. Another one needs a rule of composition here.
        sigma: Its noise, in units of the clipping norm.
        rate: The probability of each unit in each step.
        steps: How many steps.
    """

    kind: str
    sigma: float
    rate: float
    steps: int


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
    counts: Counter[tuple[str, float, float]] = Counter()
    for event in events:
        counts[event.kind, event.sigma, event.rate] += event.steps
    every = sorted(counts.items())
    return tuple(MechanismEvent(kind, sigma, rate, n) for (kind, sigma, rate), n in every if n)


def composed(events: Iterable[MechanismEvent], delta: float) -> float:
    """Returns the epsilon of all that was released of a unit.

    Args:
        events: What was released, in any order.
        delta: The delta.

    Raises:
        ValueError: There is a kind of mechanism that this version cannot compose.
    """
    every = list(events)
    if unknown := {event.kind for event in every} - {GAUSSIAN}:
        raise ValueError(f"mechanisms that cannot be composed: {', '.join(sorted(unknown))}")
    return epsilon_of([Mechanism(event.sigma, event.rate, event.steps) for event in every], delta)


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


def _table(profiles: Iterable[Profile]) -> tuple[list[tuple[str, float, float]], NDArray[np.int64]]:
    """Returns the mechanisms of some profiles, and the steps of each, (profiles, mechanisms)."""
    every = [{(event.kind, event.sigma, event.rate): event.steps for event in own} for own in profiles]
    kinds = sorted({kind for own in every for kind in own})
    return kinds, np.array([[own.get(kind, 0) for kind in kinds] for own in every], dtype=np.int64)


def _maximal(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the rows that no other row has in itself, in the order of their numbers from the left."""
    found: list[int] = []
    for row in np.argsort(-steps.sum(axis=1), kind="stable"):
        if not (steps[found] >= steps[row]).all(axis=1).any():
            found.append(int(row))
    return np.array(sorted(found, key=lambda row: tuple(steps[row])), dtype=np.int64)


def _epsilon(kinds: list[tuple[str, float, float]], steps: NDArray[np.int64], delta: float) -> float:
    counted = zip(kinds, steps, strict=True)
    return composed((MechanismEvent(kind, sigma, rate, int(n)) for (kind, sigma, rate), n in counted), delta)
