"""One noise for all sites: units rounded to integers, and a share of Skellam noise from each site.

In a secure sum nobody sees what a single site adds, so that the noise has to be in the sum alone. Each of n
sites adds a share, and any t - c of them carry what is asked for together: t is the threshold of the sum, as
many sites at least survive, and c of these may tell the server their shares. With all n shares the sum has

    sqrt(n / (t - c))

times the deviation that a trusted server would add, where local noise has sqrt(n) times:

    sites  threshold  colluders  joint  local
       10          7          0   1.20   3.16
       10          7          3   1.58   3.16
       30         21          9   1.58   5.48
       64         43         21   1.71   8.00

**Rounding.** Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning
with Secure Aggregation", 2021, section on conditional randomized rounding. A unit's clipped gradient g of d
numbers is scaled to z = s g, and each number rounded up or down at random, so that the expectation is z. With
|z| <= sC the squared norm of what comes of it is at most

    L2^2 = min((sC + sqrt(d))^2, (sC)^2 + d/4 + sqrt(2 ln(1/b)) (sC + sqrt(d)/2))

but with probability b (Hoeffding), and a vector that is longer counts as zero. The paper draws again instead;
with b = 2^-40 that is as rare as it is without consequence, and zero needs no second copy of the gradient.
The expectation is off by at most b (sC + sqrt(d)), in the norm. The sizes of a vector of integers sum to at
most min(sqrt(d) L2, L2^2). Since the length is checked after rounding, the sensitivities hold whatever the
gradient was.

**Room.** The scale is the largest with which the sum of all units, and 12 deviations of all the noise, stay
below 2^31. Noise is added after rounding, and never clipped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.core.errors import refused
from fedstrata.privacy.randomness import Randomness
from fedstrata.privacy.secure_sum.messages import RING
from fedstrata.privacy.secure_sum.quantization import RoundingError
from fedstrata.privacy.secure_sum.shares import threshold
from fedstrata.privacy.skellam import Sensitivity, SkellamMechanism, epsilon_of, sigma_for
from fedstrata.privacy.skellam_noise import LEAST_VARIANCE, SkellamNoise, distance_of

TOO_LONG = 2.0**-40
"""The probability b with which rounding makes a vector longer than its bound."""
COARSEST = 1.1
"""How many times longer rounding may make a vector at the most; noise grows as much."""
_ROOM = 2.0**31
_DEVIATIONS = 12.0
_CLIPPING = 1.0 + 2.0**-16
"""How many times longer than the clip what was clipped in float32 may be."""
_SUMMING = 1.0 + 2.0**-36
"""How many times larger than its float64 a sum of squares may be: 2^15 of them a block, and 2^15 blocks."""
_BLOCK = 1 << 15


@dataclass(frozen=True, slots=True)
class Sharing:
    """Between whom noise is shared.

    Attributes:
        sites: n, of a secure sum.
        colluders: c, how many may tell the server all they know; they count as bringing no noise.

    Raises:
        ConfigurationError: There are too many colluders for a secure sum of so many sites.
    """

    sites: int
    colluders: int

    def __post_init__(self) -> None:
        most = 2 * threshold(self.sites) - self.sites - 1
        if self.sites < 3 or not 0 <= self.colluders <= most:
            told = f"{self.colluders} colluders among {self.sites} sites: a secure sum of 3 or more sites"
            raise refused("privacy.colluders", f"{told} bears 0 to {max(0, most)}", "out_of_range")

    @property
    def carriers(self) -> int:
        """How many honest survivors there are at least, t - c; together they carry the noise asked for."""
        return threshold(self.sites) - self.colluders

    @property
    def cost(self) -> float:
        """How many times the noise of a trusted server the sum has if every site adds its share."""
        return math.sqrt(self.sites / self.carriers)


def usual_colluders(sites: int) -> int:
    """Returns how many colluders are allowed for where nothing else is said: fewer than a third."""
    return (sites - 1) // 3


@dataclass(frozen=True, slots=True)
class Rounding:
    """How gradients become integers.

    Attributes:
        clip: C, the most that a unit's gradient is long.
        scale: s, integers in one unit of a gradient.
        numbers: d, of a gradient, over all its tensors.
    """

    clip: float
    scale: float
    numbers: int

    @property
    def scaled(self) -> float:
        """How long a clipped gradient is at most once it is scaled."""
        return self.scale * self.clip * _CLIPPING

    @property
    def most_squared(self) -> int:
        """The most that the squares of a rounded gradient's numbers may sum to."""
        root = math.sqrt(self.numbers)
        likely = math.sqrt(2.0 * math.log(1.0 / TOO_LONG)) * (self.scaled + root / 2.0)
        squared = min((self.scaled + root) ** 2, self.scaled**2 + self.numbers / 4.0 + likely)
        return max(1, math.floor(squared))  # a vector of integers that is not zero is at least 1 long

    @property
    def sensitivity(self) -> Sensitivity:
        """How long a rounded gradient is at most, in integers."""
        l2 = math.sqrt(self.most_squared * _SUMMING)
        return Sensitivity(l2, min(math.sqrt(self.numbers) * l2, l2**2))

    @property
    def largest(self) -> int:
        """The largest size of a number of a rounded gradient that was no longer than the clip."""
        return math.ceil(self.scaled)

    @property
    def bias(self) -> float:
        """How far the expectation of a rounded gradient is off at most, in the norm, as a gradient."""
        return TOO_LONG * (self.scaled + math.sqrt(self.numbers)) / self.scale


@dataclass(frozen=True, slots=True)
class JointNoise:
    """The mechanism of a step over a secure sum.

    Attributes:
        sharing: Between whom.
        rounding: How gradients become integers.
        sigma: The noise that is asked for, in units of the L2 sensitivity.
    """

    sharing: Sharing
    rounding: Rounding
    sigma: float

    @property
    def share_variance(self) -> float:
        """Of the noise that each site adds, in integers."""
        return (self.sigma * self.rounding.sensitivity.l2) ** 2 / self.sharing.carriers

    def share(self) -> SkellamNoise:
        """Returns the noise that each site adds to its sum, drawn anew in every step."""
        return SkellamNoise(self.share_variance)

    def among(self, sites: int) -> "JointNoise":
        """Returns the noise of a sum of so many sites: the fewer they are, the larger is each one's share.

        Raises:
            ConfigurationError: Too few for the colluders that are allowed for.
        """
        return replace(self, sharing=Sharing(sites, self.sharing.colluders))

    def epsilon(self, rates: Sequence[float], steps: int, delta: float) -> float:
        """Returns what so many steps cost someone.

        One whose data are several units is in a step if one of them is, and moves the sum by no more than all
        of them: an upper bound, and what is drawn of them otherwise is drawn independently of that.

        Args:
            rates: The probability of each of the person's units in a step, wherever it is.
            steps: How many steps.
            delta: The delta.
        """
        most, units = self.rounding.sensitivity, len(rates)
        seen = rates[0] if units == 1 else 1.0 - math.prod(1.0 - rate for rate in rates)
        several = Sensitivity(units * most.l2, units * most.l1)
        spent = SkellamMechanism(self.sigma / units, several, seen, steps)
        return epsilon_of([spent], delta, self.distance(steps))

    def error(self, expected: int, most: int) -> RoundingError:
        """Returns what rounding changes in a mean gradient; the noise is no part of it.

        Args:
            expected: How many units its sum has on average, by which it is divided.
            most: How many it has at the most.
        """
        step = 1.0 / (self.rounding.scale * expected)
        return RoundingError(step, step * math.sqrt(expected) / 2.0, step * most)

    def distance(self, steps: int) -> float:
        """Returns how far the noise of so many steps is from true noise, for `skellam.epsilon_of`."""
        return distance_of(float(steps) * self.sharing.sites * self.rounding.numbers)


def round_(
    gradients: Sequence[Tensor], factor: float, rounding: Rounding, randomness: Randomness
) -> tuple[list[Tensor], bool]:
    """Turns a unit's gradient into integers, in place.

    Args:
        gradients: Its tensors, float32, contiguous, on the CPU, any shapes; their memory is the results'.
        factor: What they are multiplied with first, as clipping has it.
        rounding: How they become integers.
        randomness: What the rounding is drawn from.

    Returns:
        Integers, int32 of the same shapes, and whether the gradient counts. If it was not finite, or too long
        after rounding, it does not, and they are zero.
    """
    values = [gradient.view(-1).numpy() for gradient in gradients]
    squared = sum(_rounded_(each, factor * rounding.scale, randomness) for each in values)
    counts = squared <= rounding.most_squared  # what is not a number is not shorter than anything
    if not counts:
        for each in values:
            each.fill(0.0)
    return [gradient.view(RING) for gradient in gradients], counts


def largest_scale(sharing: Sharing, clip: float, numbers: int, sigma: float, units: int) -> float:
    """Returns the finest scale with which a sum and its noise have room in the ring.

    Args:
        sharing: Between whom noise is shared.
        clip: The most that a unit's gradient is long.
        numbers: Of a gradient, over all its tensors.
        sigma: The noise that is asked for, in units of the L2 sensitivity.
        units: How many of a site's units are in a sum at the most.

    Raises:
        ConfigurationError: With none the rounding is fine enough: it would make gradients, and so the noise,
            more than 1.1 times as large, or a share of the noise too small to be drawn.
    """
    from scipy.optimize import brentq  # noqa: PLC0415 - heavy

    def filled(scaled: float) -> float:
        rounding = Rounding(clip, scaled / clip, numbers)
        noise = _DEVIATIONS * sigma * rounding.sensitivity.l2 * sharing.cost
        return sharing.sites * units * (rounding.scaled + 1.0) + noise - _ROOM

    # A millionth below the root, which is more than it is off.
    scaled = brentq(filled, 0.0, _ROOM) * (1.0 - 1e-6) if filled(0.0) < 0.0 else 0.0
    found = JointNoise(sharing, Rounding(clip, scaled / clip, numbers), sigma)
    too_small = sigma > 0.0 and found.share_variance < LEAST_VARIANCE
    if found.rounding.sensitivity.l2 > COARSEST * scaled or too_small:
        told = (
            f"the ring of 2^32 has no room for {sharing.sites} sites of {units} units, {numbers} numbers and "
            f"noise of {sigma:g}: whole numbers would be too coarse; let fewer units be in a step, train "
            "fewer numbers, or take a mechanism of local noise"
        )
        raise refused("privacy.mechanism", told, "out_of_range")
    return scaled / clip


def configured(sigma: float, sharing: Sharing, clip: float, numbers: int, units: int) -> JointNoise:
    """Returns the mechanism of a given sigma; the arguments, and what is raised, are those of `solved`."""
    scale = largest_scale(sharing, clip, numbers, sigma, units)
    return JointNoise(sharing, Rounding(clip, scale, numbers), sigma)


def solved(
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    sharing: Sharing,
    clip: float,
    numbers: int,
    units: int,
) -> JointNoise:
    """Returns the mechanism with which so many steps cost no more than epsilon.

    More noise leaves less room, and a coarser scale needs more noise: both are worked out in turn, beginning
    with too little noise, until they agree.

    Args:
        epsilon: What may be spent, > 0.
        delta: The delta, in (0, 1).
        rate: The largest probability of a unit in a step, over sites.
        steps: How many steps.
        sharing: Between whom noise is shared.
        clip: The most that a unit's gradient is long.
        numbers: Of a gradient, over all its tensors.
        units: How many of a site's units are in a sum at the most.

    Raises:
        ConfigurationError: The ring has no room; see `largest_scale`.
        ValueError: No noise is defined; see `skellam.sigma_for`.
    """
    distance = distance_of(float(steps) * sharing.sites * numbers)
    finest = Sensitivity(_ROOM, _ROOM)
    sigma = sigma_for(epsilon, delta, rate, steps, finest, distance)
    while True:
        rounding = Rounding(clip, largest_scale(sharing, clip, numbers, sigma, units), numbers)
        needed = sigma_for(epsilon, delta, rate, steps, rounding.sensitivity, distance)
        if needed <= sigma:
            return JointNoise(sharing, rounding, sigma)
        sigma = needed


def _rounded_(values: NDArray[np.float32], factor: float, randomness: Randomness) -> float:
    """Overwrites numbers with whole ones, int32, whose expectation is a factor times them.

    Returns:
        The sum of their squares; where that is too large or no number, so may be what was written.
    """
    elements, squared = values.view(np.int32), 0.0
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            block *= factor
            block += randomness.uniform(len(block))
            np.floor(block, out=block)
            squared += float(block @ block)
            np.copyto(elements[start : start + _BLOCK], block, casting="unsafe")
    return squared
