"""What an epsilon is worth to a patient who has several units, or is at several clients.

With several units at one client, neighbours differ in all of them. Each is drawn by itself with the same
rate, so that a step sees a binomial number of them, and its sum moves by at most so many clipped vectors: a
mixture of Gaussians (dp-accounting's `MixtureOfGaussiansDpEvent`), of which the worst case is that all
vectors point one way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from fedstrata.privacy.accounting import Mechanism, epsilon_of
from fedstrata.privacy.mechanism import Privacy

if TYPE_CHECKING:
    from fedstrata.privacy.joint import JointNoise  # for masks alone

_POINTS = 2_000
"""Intervals of the grid, over the largest loss of a step."""
_NEVER = 1e-15
"""What a step sees less often of a patient than this, summed, is counted as if it saw all units."""


@lru_cache(maxsize=256)
def epsilon_of_group(mechanism: Mechanism, units: int, delta: float) -> float:
    """Returns the epsilon of someone who has so many units, each of which a mechanism protects by itself.

    Args:
        mechanism: The steps, with the noise and the rate of a unit.
        units: How many are the same person's, at least 1.
        delta: The delta.

    Returns:
        An upper bound; infinity without noise.
    """
    if units == 1 or not (mechanism.steps and mechanism.rate):
        return epsilon_of([mechanism], delta)
    if mechanism.sigma == 0.0:
        return math.inf
    if mechanism.rate == 1.0:  # all units in every step: one Gaussian whose noise is so many times less
        return epsilon_of([Mechanism(mechanism.sigma / units, 1.0, mechanism.steps)], delta)
    from dp_accounting.pld.privacy_loss_distribution import (  # noqa: PLC0415 - heavy, optional
        from_mixture_gaussian_mechanism,
    )
    from scipy.stats import binom  # noqa: PLC0415 - heavy

    seen = list(range(units + 1))
    chances = [float(chance) for chance in binom.pmf(seen, units, mechanism.rate)]
    most = next(count for count in seen if binom.sf(count, units, mechanism.rate) < _NEVER)
    seen, rest = [*range(most), units], math.fsum(chances[most:])
    chances = [*chances[:most], rest]
    scale = math.fsum(chances)
    largest = 0.5 * (units / mechanism.sigma) ** 2 + 10.0 * units / mechanism.sigma
    step = from_mixture_gaussian_mechanism(
        mechanism.sigma,
        [float(count) for count in seen],
        [chance / scale for chance in chances],
        value_discretization_interval=min(0.01, max(1e-4, largest / _POINTS)),
    )
    return float(step.self_compose(mechanism.steps).get_epsilon_for_delta(delta))


def epsilon_at_two(privacy: Privacy, turns: Mapping[str, int], *, pooled: bool) -> float | None:
    """Returns the epsilon of someone whose data are a unit at each of two clients, those that spent most.

    What both release is composed, which is more than either figure and less than their sum. Of pooled data
    both are units of the one client, and with joint noise of the one sum.

    Args:
        privacy: The mechanism, of the clients' own units.
        turns: How many turns each client has begun.
        pooled: Whether one client holds the documents of all sites.

    Returns:
        An upper bound; none where there are no two clients, or nothing bounds it.
    """
    if privacy.settings.noise == "seeded":
        return None
    assert privacy.rates is not None and privacy.settings.delta is not None  # noqa: S101 - it has noise
    rates, delta = privacy.rates, privacy.settings.delta
    if privacy.joint is not None:
        return _at_two_jointly(privacy.joint, rates, turns, delta)
    spent = [Mechanism(privacy.sigma, rates[name], privacy.steps * count) for name, count in turns.items()]
    if pooled and spent:
        epsilon = epsilon_of_group(spent[0], 2, delta)
    elif len(spent) > 1:
        most = sorted(spent, key=lambda own: epsilon_of([own], delta))[-2:]
        epsilon = epsilon_of(most, delta)
    else:
        return None
    return epsilon if math.isfinite(epsilon) else None


def _at_two_jointly(
    noise: JointNoise, rates: Mapping[str, float], turns: Mapping[str, int], delta: float
) -> float | None:
    """Returns the epsilon of someone who has a unit at each of the two clients of the largest rates."""
    if len(turns) < 2:
        return None
    most = sorted(rates[name] for name in turns)[-2:]
    epsilon = noise.epsilon(most, max(turns.values()), delta)
    return epsilon if math.isfinite(epsilon) else None
