"""Noise that is Gaussian to half a percent of its deviation, and that no two sources have in common."""

import copy
import os
import pickle
import subprocess
import sys
from threading import Thread

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from privacy.conftest import ALARM, LIMIT, SOURCES
from scipy import special, stats

from fedstrata.core.seeding import Seed
from fedstrata.privacy.randomness import Randomness, SecureRandomness, SeededRandomness, quantiles

COORDINATES = 4_000_000
"""At 1e6, half a percent would be missed 9 times in 100 with so few false alarms; here never."""


IN_A_CHILD = """
import os, sys
from fedstrata.privacy.randomness import SecureRandomness
source = SecureRandomness()
source.normal(3)
for use in (source.normal, source.uniform):
    child = os.fork()
    if not child:
        try:
            use(3)
        except RuntimeError as error:
            os._exit(7 if "each process" in str(error) else 8)
        os._exit(9)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
        sys.exit("a child drew what its parent draws")
source.normal(3)
own = os.fork()
if not own:
    SecureRandomness().normal(3)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]))
"""


def drawn(source: Randomness, size: int) -> NDArray[np.float64]:
    """Draws normals as a model does: tensors of odd sizes, one after the other."""
    sizes = [1, 37, 100_003]
    parts = [source.normal(each).numpy() for each in [*sizes, size - sum(sizes)]]
    return np.concatenate(parts)


def wrong_deviation(sample: NDArray[np.float64]) -> bool:
    """Tells whether the sum of squares of what should be standard normals is too small or too large."""
    total = float(sample @ sample)
    return 2 * min(stats.chi2.cdf(total, len(sample)), stats.chi2.sf(total, len(sample))) < ALARM


def correlated(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return abs(float(one @ other)) / len(one) ** 0.5 > LIMIT


def test_noise_is_standard_normal(source: Randomness) -> None:
    sample = drawn(source, COORDINATES)
    assert not wrong_deviation(sample)
    assert wrong_deviation(sample * 1.005)
    assert wrong_deviation(sample * 0.995)
    assert abs(sample.sum()) / len(sample) ** 0.5 < LIMIT
    assert stats.kstest(sample[:500_000], special.ndtr, method="asymp").pvalue > ALARM
    for edge in (3.0, 4.0):
        expected = 2 * stats.norm.sf(edge)
        found = int((np.abs(sample) > edge).sum())
        assert stats.binomtest(found, len(sample), expected).pvalue > ALARM


def test_noise_depends_on_no_other_noise(source: Randomness) -> None:
    other = (
        SOURCES["secure"]() if isinstance(source, SecureRandomness) else SeededRandomness(Seed(0).child("b"))
    )
    sample, second, later = (each.normal(300_000).numpy() for each in (source, other, source))
    assert not correlated(sample, second), "two sources"
    assert not correlated(sample, later), "two steps"
    assert correlated(sample, 0.02 * sample + second), "a fiftieth in common is found"
    for lag in (1, 2, 4, 8192):
        assert not correlated(sample[lag:], sample[:-lag])
        assert not correlated(sample[lag:] ** 2 - 1, (sample[:-lag] ** 2 - 1) / 2)


def test_normals_are_float64_and_as_many_as_asked_for(source: Randomness) -> None:
    for size in (0, 1, 8191, 8192, 8193):
        normals, uniforms = source.normal(size), source.uniform(size)
        assert normals.shape == uniforms.shape == (size,)
        assert normals.dtype == torch.float64
        assert uniforms.dtype == np.float64


def test_uniforms_fill_their_interval(source: Randomness) -> None:
    sample = source.uniform(1_000_000)
    assert sample.min() >= 0.0
    assert sample.max() < 1.0
    assert np.all(sample * 2.0**53 % 1 == 0)
    counts = np.histogram(sample, bins=1000, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > ALARM
    low_bits = (sample * 2.0**53).astype(np.int64) & 255
    assert stats.chisquare(np.bincount(low_bits, minlength=256)).pvalue > ALARM


def test_secure_noise_is_the_mean_of_four_quantiles_of_a_key_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise, worked out in another way from the key that the operating system gave."""
    asked: list[int] = []

    def known(size: int) -> bytes:
        asked.append(size)
        return bytes(range(size))

    with monkeypatch.context() as patched:
        patched.setattr(os, "urandom", known)
        source = SecureRandomness()
    stream = Cipher(algorithms.AES(bytes(range(32))), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 15))
    words = np.frombuffer(stream, dtype=np.int64)
    grid = (2.0 * (words >> 11) + 1) * 2.0**-53
    draws = special.ndtri((1 + grid[:12]) / 2).reshape(4, 3)
    assert asked == [32]
    assert source.normal(3).numpy() == pytest.approx(draws.sum(0) / 2, rel=1e-13)
    assert source.uniform(3) == pytest.approx((words[12:].view(np.uint64) >> 11) * 2.0**-53, abs=0)


def test_quantiles_are_finite_symmetric_and_right_to_the_last_word() -> None:
    edge = np.array([(1 << 63) - 1 - (1 << bit) for bit in range(62)] + [(1 << 63) - 1], dtype=np.int64)
    inner = np.random.default_rng(0).integers(0, 1 << 63, 20_000)
    words = np.concatenate([edge, inner])
    upper = (1 - ((words >> 10) | 1) * 2.0**-53) / 2  # probabilities of the tails, exact
    found = quantiles(words.copy(), np.empty(len(words)))
    assert np.all(np.isfinite(found))
    assert found == pytest.approx(-special.ndtri(upper) / 2**0.5, rel=1e-13)
    assert np.array_equal(quantiles(~words, np.empty(len(words))), -found)
    assert upper.min() == 2.0**-54


@pytest.mark.slow
def test_a_fork_is_refused_and_may_make_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_CHILD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_key_cannot_be_stored_or_sent() -> None:
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            attempt(SecureRandomness())


def test_threads_may_share_a_source() -> None:
    source = SecureRandomness()
    found: list[NDArray[np.float64]] = []
    threads = [Thread(target=lambda: found.append(source.uniform(400_000))) for _ in range(4)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # without the lock, threads would now read each other's words
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    # Of 1.6e6 draws of 53 bits, two are equal once in 7000 runs; four never.
    assert 1_600_000 - len(np.unique(np.concatenate(found))) < 4


def test_seeded_noise_is_a_function_of_the_seed_path() -> None:
    seed = Seed(3).child("train", 2, "site_1")
    whole = SeededRandomness(seed).normal(100)
    again = SeededRandomness(Seed(3, ("train", 2, "site_1")))
    assert torch.equal(torch.cat([again.normal(7), again.normal(93)]), whole)
    assert np.array_equal(SeededRandomness(seed).uniform(9), SeededRandomness(seed).uniform(9))
    for other in (Seed(4).child("train", 2, "site_1"), seed.child("spare")):
        assert not torch.isin(SeededRandomness(other).normal(100), whole).any()
