"""What a run's noise is worth: epsilon of a mechanism, and the noise that an epsilon needs.

The figures are dp-accounting's (https://github.com/google/differential-privacy, python/dp_accounting), by
privacy loss distributions: Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations of Privacy
Loss Distributions", 2022. Losses are put on a grid in such a way that every epsilon is an upper bound,
whatever the grid.

**Neighbours.** One unit's data is replaced by nothing, and the number of units is public: the "zero-out"
relation of Kairouz et al., "Practical and Private (Deep) Learning without Sampling or Shuffling", 2021,
definition 1.1, which dp-accounting calls `REPLACE_SPECIAL`. It fits what is done here: the number of units is
declared, every sum is divided by a configured constant, and a unit without data adds nothing to the sum, so
that the sums of neighbours differ by at most one clipped vector, in a step where the unit is drawn. For
Poisson-subsampled Gaussians its privacy loss is that of `ADD_OR_REMOVE_ONE`, both directions of which are
looked at. `REPLACE_ONE`, another unit's data in place of one's own, moves the sum by two clipped vectors and
is not what is claimed.

**Rate.** The rate of a mechanism is that of units in a step, and of nothing else. The server knows which
clients took part in a round, so their sampling amplifies nothing against it, and a product of both rates
would claim too much.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from fedstrata.core.errors import refused

_POINTS = 500
"""Points of the first grid: so many intervals are as long as the largest loss of one step."""

_FINER = 4
"""How many times finer each grid is than the one before, whose points it keeps: epsilon can only fall."""

_GRIDS = 6
"""After so many grids the last one counts, settled or not; it is reached where epsilon is almost nothing."""

_SETTLED = 2e-3
"""A grid is fine enough when epsilon fell by less than this share. What a grid adds falls with the square of
its interval, so a fifteenth of that is left: about 1e-4 of epsilon."""

_TAIL = 10.0
"""Deviations of the noise within which dp-accounting keeps the loss (it cuts a mass of e^-50)."""

_HOPELESS = 7.5e-4
"""Below this sigma epsilon is called infinite: a step that sees a unit loses 10^6, and grids grow with it."""

_LEAST = 1e-3
_ALMOST_NOTHING = 1e-12

_DISTRIBUTIONS = 32
_FIGURES = 4096


@dataclass(frozen=True, slots=True)
class Mechanism:
    """So many steps, each a clipped sum over units drawn by Poisson sampling, with Gaussian noise.

    Attributes:
        sigma: Standard deviation of the noise in units of the clipping norm; 0 for none.
        rate: The probability of each unit in each step.
        steps: How many steps.

    Raises:
        ValueError: One of them cannot be.
    """

    sigma: float
    rate: float
    steps: int

    def __post_init__(self) -> None:
        if not (0.0 <= self.sigma < math.inf and 0.0 <= self.rate <= 1.0 and self.steps >= 0):
            raise ValueError(f"sigma >= 0, a rate in [0, 1] and steps >= 0 are needed, not {self}")


def require_installed() -> None:
    """Checks that the libraries of differential privacy are installed.

    Raises:
        ConfigurationError: One is missing; the message says how to install it.
    """
    needed = {"opacus": "opacus", "dp_accounting": "dp-accounting"}
    missing = [package for module, package in needed.items() if find_spec(module) is None]
    if missing:
        message = f"{', '.join(missing)} is not installed; install it with: pip install 'fedstrata[privacy]'"
        raise refused("privacy.mechanism", message, "not_installed")


def epsilon_of(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """Returns the epsilon of everything that was released about a unit, at one delta.

    It is an upper bound, at most about 1e-4 of itself too high. Mechanisms are composed, never their
    epsilons added: rounds, repeated turns and sites that hold the same unit are more of them. A figure is
    worked out once in a process, in 0.05 to 0.5 s for up to some thousand steps.

    Args:
        mechanisms: What was released, in any order.
        delta: The delta; below 1e-10 the float64 of the library's Fourier transforms no longer resolves it.

    Returns:
        Epsilon: 0 if nothing was released, infinity if something was without noise.

    Raises:
        ValueError: Delta is not in (0, 1).
    """
    return _settled(_merged(mechanisms), _checked(delta))[0]


def epsilon_curve(mechanisms_by_round: Sequence[Sequence[Mechanism]], delta: float) -> list[float]:
    """Returns epsilon after each round, of that round and all before it.

    The grid is that which the last figure needs, so every figure is an upper bound as tight as that of
    `epsilon_of`, and the last is the same. A round costs one convolution: 100 equal rounds take about 1 s,
    100 of which no two are equal 25 s.

    Args:
        mechanisms_by_round: What was released in each round, (rounds,); possibly nothing.
        delta: The delta.

    Returns:
        Epsilons in ascending order, (rounds,).

    Raises:
        ValueError: Delta is not in (0, 1).
    """
    every = [_merged(mechanisms) for mechanisms in mechanisms_by_round]
    known = [not any(_hopeless(each) for each in mechanisms) for mechanisms in every]
    every = every[: known.index(False) if False in known else None]
    last, interval = _settled(_merged([each for mechanisms in every for each in mechanisms]), _checked(delta))
    if not interval:  # nothing was released, or so much that there is no figure
        return [last] * len(every) + [math.inf] * (len(known) - len(every))
    curve: list[float] = []
    so_far: Any = None
    for mechanisms in every:
        before = curve[-1] if curve else 0.0
        for each in mechanisms:
            added = _steps(each, interval)
            so_far = added if so_far is None else so_far.compose(added)
        after = float(so_far.get_epsilon_for_delta(delta)) if mechanisms else before
        # The last bits of many convolutions must not make a curve fall, or pass its last figure.
        curve.append(min(last, max(before, after)))
    return [*curve[:-1], last] + [math.inf] * (len(known) - len(curve))


@lru_cache(maxsize=_FIGURES)
def sigma_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Returns the smallest noise, to three decimals, with which so many steps cost no more than epsilon.

    The root is bracketed from above by the noise that the same steps need at rate 1, which is known in closed
    form (Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018, theorem 8, as
    dp-accounting has it), and found on coarse grids. How much those exaggerate epsilon changes little with
    sigma, so it is asked of settled grids once and allowed for. Then `epsilon_of` itself decides between
    neighbouring thousandths. That is 0.5 to 3 s for up to 3000 steps, 8 s for 10,000 at a rate of 0.001.

    Args:
        epsilon: What may be spent, > 0.
        delta: The delta, in (0, 1).
        rate: The probability of each unit in each step, in (0, 1].
        steps: How many steps, >= 1.

    Returns:
        Sigma in units of the clipping norm, at least 0.001. Where it is above 10, the last decimals are those
        of an epsilon that is 1e-4 of itself too high.

    Raises:
        ValueError: An argument is outside its range.
    """
    if not (0.0 < epsilon < math.inf and 0.0 < rate <= 1.0 and steps >= 1):
        raise ValueError(f"no noise is defined for epsilon {epsilon}, rate {rate} and {steps} steps")
    from dp_accounting import get_sigma_gaussian  # noqa: PLC0415 - optional

    def coarse(sigma: float) -> float:
        mechanisms = _merged([Mechanism(sigma, rate, steps)])
        return _composed(mechanisms, delta, _first_interval(mechanisms) / _FINER)

    def settled(sigma: float) -> float:
        return epsilon_of([Mechanism(sigma, rate, steps)], delta)

    above = 1.01 * math.sqrt(steps) * float(get_sigma_gaussian(epsilon, _checked(delta)))
    sigma = _root(coarse, epsilon, above)
    exaggerated = coarse(sigma) / max(settled(sigma), _ALMOST_NOTHING)
    thousandths = math.ceil(1000 * _root(coarse, epsilon * exaggerated, 1.001 * sigma))
    while settled(thousandths / 1000) > epsilon:
        thousandths += 1
    while thousandths > 1 and settled((thousandths - 1) / 1000) <= epsilon:
        thousandths -= 1
    return thousandths / 1000


def _root(figure: Callable[[float], float], epsilon: float, above: float) -> float:
    """Returns the sigma at which a falling figure is epsilon, or 0.001 if that is enough already.

    Args:
        figure: Epsilon of a sigma.
        epsilon: What it should be.
        above: Where to look first: a sigma at which the figure is epsilon or less.
    """
    from scipy.optimize import brentq  # noqa: PLC0415 - heavy

    def gap(log_sigma: float) -> float:
        # Almost a line in logarithms; the limits keep 0 and infinity, both of which occur, inside them.
        return math.log(min(max(figure(math.exp(log_sigma)) / epsilon, 1e-3), 1e3))

    below, step = above, 1.05
    while figure(below) <= epsilon:
        if below <= _LEAST:
            return _LEAST
        above, below, step = below, max(_LEAST, below / step), step * step
    if above == below:
        return above
    return math.exp(brentq(gap, math.log(below), math.log(above), xtol=2e-4 / max(1.0, above)))


def _checked(delta: float) -> float:
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta is a probability in (0, 1), not {delta}")
    return delta


def _merged(mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """Returns the same releases with equal steps counted together, in a fixed order; steps of nobody go."""
    counts: dict[tuple[float, float], int] = {}
    for each in mechanisms:
        if each.steps and each.rate:
            key = (float(each.sigma), float(each.rate))
            counts[key] = counts.get(key, 0) + each.steps
    return tuple(Mechanism(sigma, rate, steps) for (sigma, rate), steps in sorted(counts.items()))


@lru_cache(maxsize=_FIGURES)
def _settled(mechanisms: tuple[Mechanism, ...], delta: float) -> tuple[float, float]:
    """Returns epsilon of merged mechanisms on the first grid that is fine enough, and the grid's interval."""
    if not mechanisms or any(_hopeless(each) for each in mechanisms):
        return (math.inf if mechanisms else 0.0), 0.0
    interval = _first_interval(mechanisms)
    epsilon = _composed(mechanisms, delta, interval)
    for _ in range(_GRIDS - 1):
        coarser, interval = epsilon, interval / _FINER
        epsilon = _composed(mechanisms, delta, interval)
        # Infinity comes of a delta that is smaller than the tails that are cut: no grid changes that.
        if math.isinf(epsilon) or coarser - epsilon <= _SETTLED * epsilon:
            break
    return epsilon, interval


def _composed(mechanisms: tuple[Mechanism, ...], delta: float, interval: float) -> float:
    """Returns epsilon of merged mechanisms on one grid; infinity if one of them is hopeless."""
    if any(_hopeless(each) for each in mechanisms):
        return math.inf
    first, *others = (_steps(each, interval) for each in mechanisms)
    for other in others:
        first = first.compose(other)
    return float(first.get_epsilon_for_delta(delta))


@lru_cache(maxsize=_DISTRIBUTIONS)
def _steps(mechanism: Mechanism, interval: float) -> Any:
    """Returns the privacy loss distribution of all steps of a mechanism."""
    one = _step(_deviation(mechanism), mechanism.rate, interval)
    # At rate 1 that is all of them already, exactly and with nothing to convolve.
    return one if mechanism.rate == 1.0 else one.self_compose(mechanism.steps)


@lru_cache(maxsize=_DISTRIBUTIONS)
def _step(sigma: float, rate: float, interval: float) -> Any:
    """Returns the privacy loss distribution of one step."""
    from dp_accounting import NeighboringRelation  # noqa: PLC0415 - heavy, optional
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism  # noqa: PLC0415

    return from_gaussian_mechanism(
        sigma,
        sampling_prob=rate,
        value_discretization_interval=interval,
        neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
    )


def _first_interval(mechanisms: tuple[Mechanism, ...]) -> float:
    """Returns the interval of the coarsest grid, in the scale of the largest loss there is."""
    largest = max(_largest_loss(each) for each in mechanisms)
    return min(100.0, largest / _POINTS)  # the library takes exp of an interval


def _hopeless(mechanism: Mechanism) -> bool:
    """Tells whether there is no figure, as where there is no noise."""
    return _deviation(mechanism) < _HOPELESS


def _largest_loss(mechanism: Mechanism) -> float:
    """Returns about the largest loss of one step: ln(1 - q + q e^l) for l = 1 / (2 s^2) + 10 / s.

    l is the loss of a Gaussian of deviation s (in clipping norms) where its noise is 10 deviations.
    """
    sigma, rate = _deviation(mechanism), mechanism.rate
    loss = 0.5 / sigma**2 + _TAIL / sigma
    return loss + math.log(rate + (1.0 - rate) * math.exp(-loss))


def _deviation(mechanism: Mechanism) -> float:
    """Returns the sigma of a mechanism, or of the one Gaussian that all steps are if each sees every unit."""
    return mechanism.sigma / math.sqrt(mechanism.steps) if mechanism.rate == 1.0 else mechanism.sigma
