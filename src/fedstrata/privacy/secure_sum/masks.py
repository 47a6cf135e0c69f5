"""Masks that vanish in a sum: pairwise ones, which cancel, and each site's own, which is taken off again.

Source: Bonawitz et al. 2017, section 4: y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)
in the integers modulo 2^32. PRG is the key stream of AES-256 in counter mode; a seed is used for one sum
only, so the counter may begin at 0.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedstrata.privacy.secure_sum.keys import agree, derive

_BLOCK = 1 << 15
"""Ring elements that are masked at a time: 128 KiB, which a core's own cache holds beside their masks."""


class Mask(NamedTuple):
    """One mask.

    Attributes:
        seed: (32,) bytes.
        added: Whether it is added, or else subtracted.
    """

    seed: bytes
    added: bool


def pairwise(own: X25519PrivateKey, site: str, public: bytes, other: str, context: bytes) -> Mask:
    """Returns the mask that a site has in common with another, which adds what the site subtracts.

    Args:
        own: The site's private mask key.
        site: Whose mask it is.
        public: The other's public mask key, (32,) bytes.
        other: The other site.
        context: The hash of the sum's subject and roster (`transcript.context_of`).

    Raises:
        ForgedKeys: The public key is none.
    """
    pair = sorted((site, other))
    return Mask(derive(agree(own, public, other), context, "pairwise mask", *pair), added=site == pair[0])


def self_mask(seed: bytes, site: str, context: bytes) -> Mask:
    """Returns the mask that is a site's alone; arguments as for `pairwise`."""
    return Mask(derive(seed, context, "self mask", site), added=True)


class MaskStream:
    """Adds masks to tensors, one after the other, in place; both sides have to take them in the same order.

    A tensor is masked block by block, each block by all masks while it is in the cache. Beside the tensors
    there are two blocks of memory, whatever their size.

    Args:
        masks: All that are added or subtracted.
    """

    def __init__(self, masks: Iterable[Mask]) -> None:
        zero = bytes(16)
        self._streams = [
            (Cipher(algorithms.AES(seed), modes.CTR(zero)).encryptor(), np.add if added else np.subtract)
            for seed, added in masks
        ]
        self._zeros = memoryview(bytes(4 * _BLOCK))
        # Older releases of cryptography want room for one more block of 16 bytes.
        self._words = np.empty(_BLOCK + 4, dtype="<u4")
        self._bytes = self._words.data.cast("B")

    def add_to(self, elements: NDArray[np.uint32]) -> None:
        """Adds the next of every stream to a tensor's elements, modulo 2^32.

        Args:
            elements: (count,) uint32; overwritten.
        """
        for start in range(0, len(elements), _BLOCK):
            block = elements[start : start + _BLOCK]
            zeros, words = self._zeros[: 4 * len(block)], self._words[: len(block)]
            for stream, operation in self._streams:
                stream.update_into(zeros, self._bytes)
                operation(block, words, out=block)
