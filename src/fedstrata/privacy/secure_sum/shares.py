"""Secrets in shares: any t of n sites can put a secret together, and t - 1 learn nothing of it.

Source: Shamir 1979, How to Share a Secret, in GF(2^128); Bonawitz et al. 2017, section 4 and figure 4, round
1. A secret of 32 bytes is shared as two halves, each with a polynomial of its own. On its way through the
server a share is encrypted to its receiver.
"""

import os
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedstrata.privacy.secure_sum.field import ELEMENT_BYTES, value_at, value_at_zero
from fedstrata.privacy.secure_sum.keys import agree, derive
from fedstrata.privacy.secure_sum.messages import SumName, canonical
from fedstrata.privacy.secure_sum.refusals import ForgedShares

SECRET_BYTES = 32
"""Of a secret, and of a share of it."""
_HALVES = slice(ELEMENT_BYTES), slice(ELEMENT_BYTES, SECRET_BYTES)
_NONCE_BYTES = 12


def threshold(sites: int) -> int:
    """Returns how many shares give a secret: floor(2n/3) + 1.

    With more than two thirds, two sets of survivors cannot both be signed by as many sites while fewer than a
    third of them lie (Bonawitz et al. 2017, section 6.2).

    Args:
        sites: n.
    """
    return 2 * sites // 3 + 1


def split(secret: bytes, sites: int, needed: int) -> list[bytes]:
    """Returns a share for each site, (n, 32) bytes, in the order of the roster.

    Args:
        secret: (32,) bytes.
        sites: n.
        needed: t, how many shares give the secret.
    """
    higher = needed - 1
    polynomials = [
        [*(int.from_bytes(os.urandom(ELEMENT_BYTES)) for _ in range(higher)), int.from_bytes(secret[half])]
        for half in _HALVES
    ]
    return [
        b"".join(value_at(polynomial, place).to_bytes(ELEMENT_BYTES) for polynomial in polynomials)
        for place in range(1, sites + 1)
    ]


def combine(shares: Mapping[int, bytes], needed: int) -> bytes:
    """Returns the secret that shares belong to; whether it is the right one, only a commitment tells.

    Args:
        shares: The share of each site, (32,) bytes, by its place in the roster, from 0; the first t count.
        needed: t.

    Raises:
        ValueError: There are fewer than t.
    """
    if len(shares) < needed:
        raise ValueError(f"{len(shares)} shares, where {needed} give a secret")
    first = sorted(shares.items())[:needed]
    points = tuple(place + 1 for place, _ in first)
    found = (value_at_zero(points, [int.from_bytes(share[half]) for _, share in first]) for half in _HALVES)
    return b"".join(each.to_bytes(ELEMENT_BYTES) for each in found)


def seal(
    own: X25519PrivateKey, public: bytes, name: SumName, sender: str, receiver: str, text: bytes
) -> bytes:
    """Encrypts what one site sends another through the server (AES-256-GCM).

    Args:
        own: The sender's private key.
        public: The receiver's public key, (32,) bytes.
        name: The sum it belongs to.
        sender: Who sends it.
        receiver: Whom it is for.
        text: What it is.

    Returns:
        Nonce, text, and tag: 28 bytes more than the text.

    Raises:
        ForgedKeys: The public key is none.
    """
    cipher, about = _cipher(own, public, name, sender, receiver)
    nonce = os.urandom(_NONCE_BYTES)
    sealed: bytes = nonce + cipher.encrypt(nonce, text, about)
    return sealed


def unseal(
    own: X25519PrivateKey, public: bytes, name: SumName, sender: str, receiver: str, sealed: bytes
) -> bytes:
    """Decrypts what `seal` encrypted; `own` is the receiver's key here, and `public` the sender's.

    Raises:
        ForgedShares: It is not what this sender encrypted for this receiver and this sum.
        ForgedKeys: The public key is none.
    """
    cipher, about = _cipher(own, public, name, sender, receiver)
    try:
        text: bytes = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about)
    except InvalidTag:
        raise ForgedShares(
            f"the share that is said to be from site {sender!r} was not encrypted by it for {receiver!r} and "
            "this sum: it was changed on its way, or is another's; nothing was released"
        ) from None
    return text


def _cipher(
    own: X25519PrivateKey, public: bytes, name: SumName, sender: str, receiver: str
) -> tuple[AESGCM, bytes]:
    """Returns the cipher of one direction between two sites, and what is authenticated beside the text."""
    about = canonical([name.model_dump(), sender, receiver])
    return AESGCM(derive(agree(own, public, sender), about, "share")), about
