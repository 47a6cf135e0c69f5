"""Skellam noise: its probabilities to the last bits, its table exactly, and what is drawn by statistics."""

from __future__ import annotations

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from privacy.conftest import ALARM, LIMIT, SOURCES
from scipy import special, stats

from fedstrata.core.seeding import Seed
from fedstrata.privacy.randomness import Randomness, SecureRandomness, SeededRandomness
from fedstrata.privacy.skellam_noise import LEAST_VARIANCE, SkellamNoise, distance_of

NUMBERS = 4_000_000
VARIANCES = [LEAST_VARIANCE, 3.7e9, 5.3e13]

QUICK = (("seeded", VARIANCES[2]), ("secure", VARIANCES[0]))
"""Each source and both ends of the variances."""
SLOW = [own for own in product(SOURCES, VARIANCES) if own not in QUICK]


def log_bessel(size: int, variance: float) -> mpmath.mpf:
    """Log I_k(v) to 40 digits and more than 20 that are right: Debye's expansion with four terms."""
    root = mpmath.sqrt(mpmath.mpf(size) ** 2 + mpmath.mpf(variance) ** 2)
    p = size / root
    terms = (
        mpmath.mpf(1)
        + (3 - 5 * p**2) / (24 * root)
        + (81 - 462 * p**2 + 385 * p**4) / (1152 * root**2)
        + (30375 - 369603 * p**2 + 765765 * p**4 - 425425 * p**6) / (414720 * root**3)
    )
    grown = root - size * mpmath.asinh(mpmath.mpf(size) / variance)
    return grown - mpmath.log(2 * mpmath.pi * root) / 2 + mpmath.log(terms)


def test_the_reference_is_the_bessel_function() -> None:
    with mpmath.workdps(40):
        for size in (0, 3000, 12000):
            known = mpmath.log(mpmath.besseli(size, LEAST_VARIANCE))
            assert abs(known - log_bessel(size, LEAST_VARIANCE)) < 1e-20


@given(exponent=st.floats(24, 56), deviations=st.floats(0, 13))
def test_probabilities_are_right_to_the_last_bits(exponent: float, deviations: float) -> None:
    noise = SkellamNoise(2.0**exponent)
    size = round(deviations * math.sqrt(noise.variance))
    found = float(noise.log_ratios(np.array([float(size)]))[0])
    with mpmath.workdps(40):
        error = abs(log_bessel(size, noise.variance) - log_bessel(0, noise.variance) - found)
        assert error <= (1 + deviations**2) * 2.0**-52


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_table_draws_blocks_by_their_weights_exactly(variance: float) -> None:
    noise = SkellamNoise(variance)
    column = 2**53 // len(noise._table.own)
    drawn = [0] * len(noise._table.own)
    for index, (own, alias) in enumerate(zip(noise._table.own, noise._table.alias, strict=True)):
        share = own * column
        assert share == int(share)
        drawn[index] += int(share)
        drawn[alias] += column - int(share)
    assert drawn == [*map(int, noise.weights), *[0] * (len(drawn) - len(noise.weights))]


@pytest.mark.parametrize("variance", VARIANCES)
def test_accepted_shares_of_blocks_are_the_probabilities(variance: float) -> None:
    """Weight times acceptance is P up to one factor for all sizes, and no acceptance is above 1."""
    noise = SkellamNoise(variance)
    edges = np.arange(len(noise.weights)) * noise.width
    for inside in (0.0, 1.0, noise.width // 3, noise.width):
        logs = noise.log_ratios(edges + inside)
        acceptance = np.exp(logs - noise._log_levels)
        assert acceptance.max() <= 1 + 1e-12
        factors = noise.weights * acceptance / np.exp(logs)
        assert factors == pytest.approx(np.full(len(factors), factors[0]), rel=1e-11)
    assert edges[-1] + noise.width >= 13 * math.sqrt(variance)


class Listed:
    """Draws what it is given."""

    def __init__(self, *uniforms: NDArray[np.float64]) -> None:
        self._uniforms = list(uniforms)

    def uniform(self, size: int) -> NDArray[np.float64]:
        drawn = self._uniforms.pop(0)
        assert len(drawn) == size
        return drawn.copy()


def test_every_number_of_a_block_is_met_once() -> None:
    """All places of the first block, with both signs: no number twice, none left out, zero once."""
    noise = SkellamNoise(LEAST_VARIANCE)
    count = int(2 * noise.width)
    places = np.arange(count) / count
    numbers = noise._candidates(count, Listed(np.zeros(count), places, np.zeros(count)))
    assert sorted(numbers) == list(range(-int(noise.width), int(noise.width)))


@pytest.mark.parametrize(
    ("source", "variance"), [*QUICK, *(pytest.param(*own, marks=pytest.mark.slow) for own in SLOW)]
)
def test_noise_has_the_distribution(source: str, variance: float) -> None:
    sample = SkellamNoise(variance).draw(NUMBERS, SOURCES[source]())
    scaled = sample / math.sqrt(variance)
    squares = float(scaled @ scaled)
    # The variance of a square is 2 + 1 / v.
    assert abs(squares - NUMBERS) < LIMIT * math.sqrt(2 * NUMBERS)
    assert abs(1.005**2 * squares - NUMBERS) > LIMIT * math.sqrt(2 * NUMBERS), "half a percent is found"
    assert abs(scaled.sum()) < LIMIT * math.sqrt(NUMBERS)
    # Symmetric, and its fourth cumulant of 1 / v is 6e-8 at most: sums up to k are a normal's up to k + 1/2.
    edges = np.round(np.linspace(-4.5, 4.5, 2001) * math.sqrt(variance))
    cells = np.searchsorted(edges, sample)
    expected = np.diff(special.ndtr((edges + 0.5) / math.sqrt(variance)), prepend=0.0, append=1.0)
    counts = np.bincount(cells, minlength=len(expected))
    assert stats.chisquare(counts, expected * NUMBERS).pvalue > ALARM
    low_bits = np.bincount(sample & 255, minlength=256)
    assert stats.chisquare(low_bits).pvalue > ALARM


def test_noise_depends_on_no_other_noise(source: Randomness) -> None:
    noise = SkellamNoise(1e10)
    one, later = (noise.draw(300_000, source) / 1e5 for _ in range(2))
    for first, second in ((one, later), (one[1:], one[:-1]), (one[8192:], one[:-8192])):
        assert abs(float(first @ second)) < LIMIT * math.sqrt(len(first))


def test_noise_is_added_modulo_the_ring() -> None:
    noise, seed = SkellamNoise(2.0**40), Seed(5)
    start = np.full(20_000, 2**31 - 1, dtype=np.int32)
    elements = start.copy()
    noise.add_to(elements, SeededRandomness(seed))
    source = SeededRandomness(seed)
    added = np.concatenate([noise.draw(size, source) for size in (8192, 8192, 20_000 - 2 * 8192)])
    assert np.array_equal((elements.astype(np.int64) - start - added) % 2**32, np.zeros(20_000))
    assert (elements < 0).mean() == pytest.approx(0.5, abs=0.03)


def test_as_many_as_are_asked_for() -> None:
    noise = SkellamNoise(LEAST_VARIANCE)
    for size in (0, 1, 8191, 8192, 8193):
        drawn = noise.draw(size, SecureRandomness())
        assert (drawn.shape, drawn.dtype) == ((size,), np.int64)


def test_what_is_lost_grows_with_the_root_of_the_numbers() -> None:
    assert distance_of(0) == 0.0
    assert distance_of(4e12) == pytest.approx(2 * distance_of(1e12))
    assert distance_of(4e12) < 3e-9


@pytest.mark.parametrize("variance", [0.0, -1.0, LEAST_VARIANCE - 1, math.nan, math.inf, 1e31])
def test_other_variances_are_refused(variance: float) -> None:
    with pytest.raises(ValueError, match="variances"):
        SkellamNoise(variance)
