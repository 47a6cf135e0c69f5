"""Keys that two sites agree on, and what is derived from them."""

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedstrata.privacy.secure_sum.messages import canonical
from fedstrata.privacy.secure_sum.refusals import ForgedKeys

KEY_BYTES = 32
"""Of every key here: of X25519, and of AES-256."""


def agree(own: X25519PrivateKey, public: bytes, site: str) -> bytes:
    """Returns the secret that two keys have in common (X25519, RFC 7748), (32,) bytes.

    Args:
        own: One's private half.
        public: The other's public half, (32,) bytes.
        site: Whose key is named if it is none.

    Raises:
        ForgedKeys: The public half is of low order, so that anybody would know the secret.
    """
    try:
        secret: bytes = own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ForgedKeys(
            f"a key of site {site!r} is none that hides anything; it is not summed with", code="weak_key"
        ) from None
    return secret


def derive(secret: bytes, context: bytes, *purpose: str) -> bytes:
    """Returns a key for one purpose (HKDF with SHA-256, RFC 5869), (32,) bytes.

    Args:
        secret: What it is derived from.
        context: What it is bound to.
        purpose: What it is for, and whose it is.
    """
    key: bytes = HKDF(hashes.SHA256(), KEY_BYTES, salt=context, info=canonical(list(purpose))).derive(secret)
    return key


def public_half(key: X25519PrivateKey) -> bytes:
    """Returns the public half of a key, (32,) bytes."""
    data: bytes = key.public_key().public_bytes_raw()
    return data
