"""A site's identity: an Ed25519 key (RFC 8032), made at the site, whose private half stays there."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedstrata.core.errors import refused
from fedstrata.core.files import secret_bytes, write_new_secret

PUBLIC_BYTES = 32
"""Of a public half."""
KIND = "ed25519:"
"""Stands before its digits, which YAML would else read as a number where they are one."""
_FINGERPRINT_CHARACTERS = 20
"""5 bits each: who wants another key with a given fingerprint has to try 2^100."""


class Identity:
    """The key that a site signs with.

    Args:
        key: The private half.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def create(cls, path: Path) -> Identity:
        """Makes a new identity and keeps it in a file of mode 600 (PKCS #8, PEM).

        Raises:
            ConfigurationError: The file exists.
        """
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_new_secret(path, pem)
        return cls(key)

    @classmethod
    def read(cls, path: Path) -> Identity:
        """Reads an identity.

        Raises:
            ConfigurationError: The file cannot be read or holds none, or others may read it.
        """
        try:
            key = serialization.load_pem_private_key(secret_bytes(path), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise refused("", f"{path} holds no identity: an Ed25519 key in PEM", "no_identity")
        return cls(key)

    @property
    def public(self) -> bytes:
        """The public half, (32,) bytes."""
        data: bytes = self._key.public_key().public_bytes_raw()
        return data

    def sign(self, data: bytes) -> bytes:
        """Returns the signature of some bytes, (64,) bytes."""
        signature: bytes = self._key.sign(data)
        return signature


def is_signed(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether a signature of these bytes was made by the identity with this public half."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_text(public: bytes) -> str:
    """Returns a public half as files and people write it."""
    return KIND + public.hex()


def fingerprint(public: bytes) -> str:
    """Returns what people compare by another channel: the beginning of a hash, five groups of four.

    Args:
        public: The public half.

    Example:
        >>> fingerprint(bytes(32))
        'MZUH-VLPY-MK6X-O3EP-YGFY'
    """
    text = base64.b32encode(hashlib.sha256(public).digest()).decode()[:_FINGERPRINT_CHARACTERS]
    return "-".join(text[start : start + 4] for start in range(0, len(text), 4))
