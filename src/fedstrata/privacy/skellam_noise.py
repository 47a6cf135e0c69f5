"""Skellam noise of large variance from uniform numbers, as close to the true distribution as is stated.

P(k) = e^-v I_k(v) for variance v is drawn by rejection, with no Poisson variables on the way. The sizes are
cut into blocks of one width, a power of two. A block is drawn from an exact table (Walker's alias method, in
integers), a place within it and a sign from bits, and the outcome is accepted with P(k) over the height of
its block, which is at least P at its inner edge. More than 95 of 100 are accepted.

**The probabilities.** From the expansion of Bessel functions of large order (Debye; NIST Digital Library of
Mathematical Functions, 10.41.3), with u = k^2 / v:

    log(P(k) / P(0)) = -u/2 + (u^2/24 - u/4) / v + (-u^3/80 + u^2/8 - 13u/48) / v^2 + ...

What is left out is of the size of u^4 / v^3 / 180, below 1e-15 for the sizes that are drawn, up to 13
deviations, and variances from 2^24, which are all that is accepted.

**How close.** Rounding changes the logarithm of an acceptance by at most (2 + 3u) 2^-52, and comparing it
with a uniform number of 53 bits changes it by less than 2^-52 more; the table is exact. The expectation of
(3 + 3u)^2 is 54, and beyond 13 deviations lies less than 2^-124, so the chi-squared divergence of what is
drawn from true noise, the expectation of the squared relative error, is below 2^-98. For N numbers the
Kullback-Leibler divergence is at most N times that, whatever later steps make of earlier ones, and by
Pinsker's inequality the total variation distance is at most sqrt(N 2^-98 / 2): `distance_of`.

What is drawn are integers, so that nothing like the low bits of a floating-point sum gives a signal away.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedstrata.privacy.randomness import Randomness

LEAST_VARIANCE = 2.0**24
"""Of what is drawn; below, the expansion is not close enough."""

_LARGEST_VARIANCE = 2.0**90
"""Up to this, 13 deviations are whole numbers that float64 holds."""
_CHI_SQUARED = 2.0**-98
_DEVIATIONS = 13.0
_COLUMNS = 512
"""Of the table: the blocks of 13 deviations, each at least 1/32 of a deviation wide, are fewer."""

_RESOLUTION = 53
"""Bits of a uniform number."""
_PIECE = 1 << 13
"""Numbers drawn at a time; all that they need stays in a core's own cache."""


class _Table(NamedTuple):
    """Which block a uniform number means: its own column's, or the alias of the column.

    Attributes:
        own: The share of a column that is its own block's, (columns,).
        alias: The block of the rest, (columns,).
    """

    own: NDArray[np.float64]
    alias: NDArray[np.int64]


class SkellamNoise:
    """Skellam noise of one variance.

    Args:
        variance: At least 2^24; twice the mean of each of the Poisson variables whose difference it is.

    Raises:
        ValueError: The variance is smaller, or so large that float64 does not hold every integer of its size.
    """

    def __init__(self, variance: float) -> None:
        if not LEAST_VARIANCE <= variance <= _LARGEST_VARIANCE:
            raise ValueError(f"noise is drawn for variances from 2^24 to 2^90, not {variance}")
        deviation = math.sqrt(variance)
        self.variance = variance
        self.width = 2.0 ** math.floor(math.log2(deviation / 16.0))
        blocks = math.ceil(_DEVIATIONS * deviation / self.width)
        edges = self.width * np.arange(blocks, dtype=np.float64)
        heights: NDArray[np.float64] = np.exp(self.log_ratios(edges))
        self.weights = _weights(heights)
        # Weights are heights, up to rounding, times one number: the least such that none is too low.
        self._log_levels = np.log(self.weights / min(self.weights / heights))
        self._table = _table(self.weights)

    def log_ratios(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns log(P(k) / P(0)) for sizes k, (count,) of whole numbers >= 0."""
        inverse = 1.0 / self.variance
        first = -0.5 - 0.25 * inverse - 13.0 / 48.0 * inverse**2
        second = inverse / 24.0 + inverse**2 / 8.0
        third = -(inverse**2) / 80.0
        scaled = sizes * sizes
        scaled *= inverse
        logarithms = scaled * third
        logarithms += second
        logarithms *= scaled
        logarithms += first
        logarithms *= scaled
        return logarithms

    def draw(self, size: int, randomness: Randomness) -> NDArray[np.int64]:
        """Returns independent noise, (size,)."""
        drawn, filled = np.empty(size, dtype=np.int64), 0
        while filled < size:
            missing = min(size - filled, _PIECE)
            accepted = self._candidates(missing + missing // 16 + 16, randomness)[:missing]
            drawn[filled : filled + len(accepted)] = accepted
            filled += len(accepted)
        return drawn

    def add_to(self, elements: NDArray[np.int32], randomness: Randomness) -> None:
        """Adds independent noise to ring elements, modulo 2^32.

        Args:
            elements: (count,); overwritten.
            randomness: What it is drawn from.
        """
        for start in range(0, len(elements), _PIECE):
            piece = elements[start : start + _PIECE].view(np.uint32)
            piece += self.draw(len(piece), randomness).astype(np.uint32)

    def _candidates(self, count: int, randomness: Randomness) -> NDArray[np.int64]:
        """Returns those of so many proposals that were accepted."""
        columns = randomness.uniform(count)
        columns *= _COLUMNS
        blocks = columns.astype(np.int64)
        columns -= blocks  # exact, and uniform again
        blocks = np.where(columns < self._table.own[blocks], blocks, self._table.alias[blocks])
        places = randomness.uniform(count)
        places *= 2.0 * self.width
        # The upper half of the places, whole numbers of which there are twice the width, are negative.
        np.floor(places, out=places)
        negative = places >= self.width
        places -= self.width * negative
        places += self.width * blocks
        # Zero would be met from both sides: negative ones are one further out.
        places += negative
        logarithms = self.log_ratios(places)
        logarithms -= self._log_levels[blocks]
        accepted = randomness.uniform(count) < np.exp(logarithms, out=logarithms)
        np.negative(places, out=places, where=negative)
        return places[accepted].astype(np.int64)


def distance_of(numbers: float) -> float:
    """Returns a bound on the total variation distance between what is drawn and true noise.

    Args:
        numbers: How many are drawn in all, by all sites and in all steps.
    """
    return math.sqrt(numbers * _CHI_SQUARED / 2.0)


def _weights(heights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns whole numbers that sum to 2^53, almost as heights do, none of them 0, (blocks,)."""
    whole = 2**_RESOLUTION
    shares = heights * ((whole - 4 * len(heights)) / heights.sum())
    weights: NDArray[np.int64] = np.ceil(shares).astype(np.int64)
    weights[0] += whole - int(weights.sum())
    return weights


def _table(weights: NDArray[np.int64]) -> _Table:
    """Returns the alias table of weights, exact to the last bit (Walker 1977; Vose 1991)."""
    column = 2**_RESOLUTION // _COLUMNS
    left = [*map(int, weights), *[0] * (_COLUMNS - len(weights))]
    own, alias = np.ones(_COLUMNS), np.arange(_COLUMNS)
    short = [block for block, weight in enumerate(left) if weight < column]
    rich = [block for block, weight in enumerate(left) if weight >= column]
    while short:
        block, giver = short.pop(), rich[-1]
        own[block], alias[block] = left[block] / column, giver
        left[giver] -= column - left[block]
        if left[giver] < column:
            short.append(rich.pop())
    return _Table(own, alias)
