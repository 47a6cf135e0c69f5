"""What integer noise in a sum is worth: epsilon of the Skellam mechanism, and the noise an epsilon needs.

A Skellam variable is the difference of two Poisson variables of one mean, half its variance. Sums of Skellam
variables are Skellam again, so that each site of a secure sum can add a share of the noise. dp-accounting
does not know the mechanism; what is worked out here are its Renyi divergences, and the library turns them
into an epsilon.

**One step.** Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning",
2021, theorem 3.5: for integer orders a > 1, integer vectors of sensitivity l2 and l1, and variance v,

    a l2^2 / (2 v) + min(((2 a - 1) l2^2 + 6 l1) / (4 v^2), 3 l1 / (2 v)).

The first term is the Gaussian's. The others vanish as v grows; exact divergences on one number stay below the
first in all cases that were tried, but what is proved is the sum.

**Subsampling.** With Poisson sampling at rate q, the divergence of order a of (1 - q) Q + q P from Q is, by
the binomial expansion of its a-th moment, at most

    log(sum over k = 0..a of C(a, k) (1 - q)^(a - k) q^k e^((k - 1) r(k))) / (a - 1), with r(0) = r(1) = 0,

for any bound r on the divergences of P from Q at integer orders (Mironov, Talwar and Zhang, "Renyi
Differential Privacy of the Sampled Gaussian Mechanism", 2019, section 3.3; Zhu and Wang, "Poisson Subsampled
Renyi Differential Privacy", 2019, theorem 6, have a factor 3 in the terms from k = 3 for mechanisms in
general). That factor covers the other direction, of Q from the mixture, and is not needed here: theorem 5 of
Mironov et al. shows that this direction is the smaller one wherever a map of the outcomes that is its own
inverse exchanges P and Q. With P the noise about an integer vector x and Q the noise about 0, that is
y -> x - y, for the noise is symmetric. What the other units add, and how a unit was rounded, is drawn
independently of whether the unit is in the sum, and given all this the divergences are those of P and Q for
one x; a mixture over it has no larger ones (quasi-convexity).

**Neighbours** are those of `fedstrata.privacy.accounting`: one unit's data is replaced by nothing, and the
number of units is public.

**With Gaussian steps** of other runs the divergences of both are added, order by order. Those of a Gaussian
are a l2^2 / (2 v), and with Poisson sampling what the binomial expansion has of them (Mironov et al.,
section 3.3).

**Sums in a ring.** Reducing the noised sum modulo 2^32 is post-processing: an overflow would spoil the
result, never the protection.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedstrata.privacy.accounting import Mechanism

_ORDERS = (*range(2, 64), *range(64, 128, 4), *range(128, 256, 16), *range(256, 1025, 64))
"""Orders that are tried; the bound holds for integers alone."""

_CLOSER = 1e-6
"""The share of epsilon to which the part of delta that is lost to inexact noise is worked out."""

_REFINEMENTS = 60
_LARGEST = 10**9
"""Thousandths of a sensitivity that noise may have."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How much one unit can change a sum of integer vectors.

    Attributes:
        l2: The most in the Euclidean norm, > 0.
        l1: The most in the sum of sizes, >= l2.
    """

    l2: float
    l1: float

    def __post_init__(self) -> None:
        if not 0.0 < self.l2 <= self.l1 < math.inf:
            raise ValueError(f"0 < l2 <= l1 is needed of the sensitivities, not {self}")


@dataclass(frozen=True, slots=True)
class SkellamMechanism:
    """So many steps, each an integer sum over units drawn by Poisson sampling, with Skellam noise.

    Attributes:
        sigma: Standard deviation of the noise in units of `sensitivity.l2`; 0 for none.
        sensitivity: What one unit can change.
        rate: The probability of each unit in each step.
        steps: How many steps.

    Raises:
        ValueError: One of them cannot be.
    """

    sigma: float
    sensitivity: Sensitivity
    rate: float
    steps: int

    def __post_init__(self) -> None:
        if not (0.0 <= self.sigma < math.inf and 0.0 <= self.rate <= 1.0 and self.steps >= 0):
            raise ValueError(f"sigma >= 0, a rate in [0, 1] and steps >= 0 are needed, not {self}")


def epsilon_of(
    mechanisms: Sequence[SkellamMechanism],
    delta: float,
    distance: float = 0.0,
    gaussians: Sequence[Mechanism] = (),
) -> float:
    """Returns an epsilon of everything that was released about a unit, at one delta.

    It is an upper bound: divergences of all steps are added, order by order, and turned into an epsilon by
    dp-accounting (Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020,
    proposition 12). If the noise as it was drawn is within a total variation distance of true noise, each
    probability is off by so much, and a mechanism of (epsilon, delta) has
    (epsilon, delta + (1 + e^epsilon) distance).

    Args:
        mechanisms: What was released, in any order; equal steps are one mechanism.
        delta: The delta.
        distance: The total variation distance between all the noise that was drawn and true Skellam noise.
        gaussians: What was released of the same unit with Gaussian noise; by itself
            `fedstrata.privacy.accounting.epsilon_of` has less of that.

    Returns:
        Epsilon: 0 if nothing was released, infinity if something was without noise, or if nothing of delta
        is left once the distance is paid for.

    Raises:
        ValueError: Delta is not in (0, 1), or the distance is negative.
    """
    if not (0.0 < delta < 1.0 and distance >= 0.0):
        raise ValueError(f"delta in (0, 1) and a distance >= 0 are needed, not {delta} and {distance}")
    from dp_accounting.rdp import compute_epsilon  # noqa: PLC0415 - heavy, optional

    every: list[SkellamMechanism | Mechanism] = [*mechanisms, *gaussians]
    spent = [each for each in every if each.steps and each.rate]
    if not spent:
        return 0.0
    if any(not each.sigma for each in spent):
        return math.inf
    divergences = sum(each.steps * _divergences(each) for each in spent)
    epsilon = 0.0
    for _ in range(_REFINEMENTS):
        # The loss is that of a slightly larger epsilon, so that what is returned is a bound.
        larger = epsilon * (1.0 + _CLOSER) if distance else epsilon
        left = delta - (1.0 + math.exp(min(larger, 700.0))) * distance
        if left <= 0.0:
            return math.inf
        found = float(compute_epsilon(_ORDERS, divergences, left)[0])
        if found <= larger:
            return larger
        epsilon = found
    return math.inf


@lru_cache(maxsize=256)
def sigma_for(
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    sensitivity: Sensitivity,
    distance: float = 0.0,
) -> float:
    """Returns the smallest noise, to three decimals, with which so many steps cost no more than epsilon.

    Args:
        epsilon: What may be spent, > 0.
        delta: The delta, in (0, 1).
        rate: The probability of each unit in each step, in (0, 1].
        steps: How many steps, >= 1.
        sensitivity: What one unit can change.
        distance: As in `epsilon_of`.

    Returns:
        Sigma in units of `sensitivity.l2`, at least 0.001.

    Raises:
        ValueError: An argument is outside its range, or no noise is enough, as where the distance is too
            large for delta.
    """
    if not (0.0 < epsilon < math.inf and 0.0 < rate <= 1.0 and steps >= 1):
        raise ValueError(f"no noise is defined for epsilon {epsilon}, rate {rate} and {steps} steps")

    def enough(thousandths: int) -> bool:
        mechanism = SkellamMechanism(thousandths / 1000, sensitivity, rate, steps)
        return epsilon_of([mechanism], delta, distance) <= epsilon

    above = 1
    while not enough(above):
        above *= 2
        if above > _LARGEST:
            raise ValueError(f"no noise gives epsilon {epsilon} at delta {delta} and distance {distance}")
    below = above // 2
    while above - below > 1:
        middle = (above + below) // 2
        above, below = (middle, below) if enough(middle) else (above, middle)
    return above / 1000


def step_divergence(
    orders: NDArray[np.int64], deviation: float, sensitivity: Sensitivity
) -> NDArray[np.float64]:
    """Returns the bound of theorem 3.5 on the Renyi divergences of a step that sees every unit.

    Args:
        orders: Integers > 1, (orders,).
        deviation: Standard deviation of the noise, in integers.
        sensitivity: What one unit can change, in integers.

    Returns:
        (orders,).
    """
    variance, squared, l1 = deviation**2, sensitivity.l2**2, sensitivity.l1
    fine = ((2.0 * orders - 1.0) * squared + 6.0 * l1) / (4.0 * variance**2)
    coarse = 3.0 * l1 / (2.0 * variance)
    bound: NDArray[np.float64] = orders * squared / (2.0 * variance) + np.minimum(fine, coarse)
    return bound


def subsampled(rate: float, divergences: NDArray[np.float64], order: int) -> float:
    """Returns a bound on a Renyi divergence of a step that sees each unit with some probability.

    The terms k = 0 and 1 of the binomial sum in the head of this file, and 1 of each other term, add up to 1;
    what is more than 1 is summed without them, so that nothing is lost where it is small.

    Args:
        rate: The probability, in (0, 1].
        divergences: Bounds at the orders 2 to at least `order`, (orders,), without subsampling.
        order: The order, an integer > 1.
    """
    from scipy.special import logsumexp  # noqa: PLC0415 - heavy
    from scipy.stats import binom  # noqa: PLC0415 - heavy

    terms = np.arange(2, order + 1)
    exponents = (terms - 1) * divergences[: order - 1]
    more_than_1 = exponents + np.log(-np.expm1(-exponents))
    log_excess = logsumexp(binom.logpmf(terms, order, rate) + more_than_1)
    return float(np.logaddexp(0.0, log_excess)) / (order - 1)


@lru_cache(maxsize=256)
def _divergences(mechanism: SkellamMechanism | Mechanism) -> NDArray[np.float64]:
    """Returns the bounds of one step at all orders, (orders,)."""
    orders = np.arange(2, max(_ORDERS) + 1)
    if isinstance(mechanism, Mechanism):
        whole: NDArray[np.float64] = orders / (2.0 * mechanism.sigma**2)
    else:
        deviation = mechanism.sigma * mechanism.sensitivity.l2
        whole = step_divergence(orders, deviation, mechanism.sensitivity)
    if mechanism.rate == 1.0:
        return np.array([whole[order - 2] for order in _ORDERS])
    return np.array([subsampled(mechanism.rate, whole, order) for order in _ORDERS])
