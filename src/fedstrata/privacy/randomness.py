"""Where differential privacy takes its randomness from: one that nobody can predict, one that is repeatable.

Noise protects only as long as whoever sees a release cannot work it out. `SecureRandomness` is for that.
`SeededRandomness` is for experiments, where two runs have to draw the same numbers.
"""

import os
import threading
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.privacy import PrivacySettings

_WORDS = 1 << 13
"""Words of 64 bits drawn at a time: with their normals 128 KiB, which a core's own cache holds."""

_DRAWS = 4
"""Independent normals in each normal that is given out."""


class Randomness(Protocol):
    """What a mechanism draws its noise and its units from."""

    def normal(self, size: int) -> Tensor:
        """Returns independent standard normals, (size,), float64, on the CPU."""

    def uniform(self, size: int) -> NDArray[np.float64]:
        """Returns independent uniforms in [0, 1), (size,), multiples of 2^-53."""


class SecureRandomness:
    """The key stream of AES-256 in counter mode, under a key that nobody else has.

    A normal in float64 can take few of the values near it, and which it can take may give away from the low
    bits of a release what it was added to (Mironov, "On Significance of the Least Significant Bits for
    Differential Privacy", 2012). So what is given out is the sum of four independent normals, divided by 2,
    each the inverse CDF of 53 bits of the stream: an attacker has to search through combinations of them
    (Holohan and Braghin, "Secure Random Sampling in Differential Privacy", 2021, section 5.1 with n = 2; also
    what Opacus does in its secure mode). That makes the attack expensive and is no proof. No normal is
    further from 0 than 16.6; of a true Gaussian a share of 1e-61 is.

    The key lives as long as the object, which cannot be pickled. It belongs to the process that made it: two
    processes with one key would draw the same noise, and the difference of their releases would have none.
    Threads may share it.

    Args:
        key: 32 bytes that are used for nothing else; from the operating system if none.

    Raises:
        RuntimeError: It is used in another process than the one that made it, as after a fork.
    """

    def __init__(self, key: bytes | None = None) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - for noise alone

        # A key is used once, so its counter may begin at 0.
        self._stream = Cipher(algorithms.AES(key or os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._zeros = memoryview(bytes(8 * _WORDS))
        # Older releases of cryptography want room for one more block of 16 bytes.
        self._words = np.empty(_WORDS + 2, dtype=np.int64)
        self._bytes = self._words.data.cast("B")

    def normal(self, size: int) -> Tensor:
        """Returns independent standard normals, (size,), float64."""
        self._require_own_process()
        sums = np.empty(size)
        with self._lock:
            buffer = np.empty(min(size, _WORDS))
            for start in range(0, size, _WORDS):
                piece = sums[start : start + _WORDS]
                piece.fill(0.0)
                for _ in range(_DRAWS):
                    piece += quantiles(self._draw(len(piece)), buffer[: len(piece)])
                # Each draw lacks the factor sqrt(2) of its quantile.
                piece *= (2.0 / _DRAWS) ** 0.5
        return torch.from_numpy(sums)

    def uniform(self, size: int) -> NDArray[np.float64]:
        """Returns independent uniforms in [0, 1), (size,)."""
        self._require_own_process()
        drawn = np.empty(size)
        with self._lock:
            for start in range(0, size, _WORDS):
                piece = drawn[start : start + _WORDS]
                np.copyto(piece, self._draw(len(piece)).view(np.uint64) >> 11)
        drawn *= 2.0**-53
        return drawn

    def _draw(self, count: int) -> NDArray[np.int64]:
        """Returns the next words of the stream, (count,) with count <= `_WORDS`, until the next call."""
        self._stream.update_into(self._zeros[: 8 * count], self._bytes)
        return self._words[:count]

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this source of noise belongs to process {self._process} and is used in {os.getpid()}: both"
                " would draw the same noise, which then protects nothing; make one in each process"
            )


class SeededRandomness:
    """An experiment and no protection: whoever knows the seed of the run can take the noise off again.

    What is drawn is a function of the seed's whole path and of what was drawn before, so a turn that is run
    again, after an interruption or in another engine, adds the same noise. It is NumPy's generator: in
    float64 nearly twice as fast as torch's, and, unlike with torch's, normals do not depend on how many are
    asked for at a time.

    Args:
        seed: The seed of this turn and purpose.
    """

    def __init__(self, seed: Seed) -> None:
        self._generator = seed.numpy()

    def normal(self, size: int) -> Tensor:
        """Returns independent standard normals, (size,), float64."""
        return torch.from_numpy(self._generator.standard_normal(size))

    def uniform(self, size: int) -> NDArray[np.float64]:
        """Returns independent uniforms in [0, 1), (size,)."""
        return self._generator.random(size)


def randomness_of(settings: PrivacySettings, seed: Seed) -> Randomness:
    """Returns what a mechanism draws from, as `privacy.noise` says.

    Args:
        settings: The mechanism's.
        seed: Of this turn and purpose; without effect on what is secure.
    """
    return SecureRandomness() if settings.noise == "secure" else SeededRandomness(seed)


def quantiles(words: NDArray[np.int64], out: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the inverse CDF of the normal distribution with variance 1/2 at random words; overwrites them.

    The upper 54 bits of a word, with the last of them set, are an odd multiple x of 2^-53 in (-1, 1), and the
    quantile of (1 + x) / 2 is erfinv(x): 53 bits, strictly inside, and every x is exact in float64, so that
    the tails are symmetric and as fine as the middle. Nothing here branches on a single word.

    Args:
        words: Uniform in 64 bits, (count,).
        out: Where the quantiles go, (count,).

    Returns:
        `out`; times sqrt(2) its numbers are standard normal.
    """
    words >>= 10
    words |= 1
    np.copyto(out, words)
    out *= 2.0**-53
    shared = torch.from_numpy(out)
    torch.erfinv(shared, out=shared)
    return out
