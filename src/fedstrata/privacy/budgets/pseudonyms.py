"""Names of patients that say nothing to whoever has not the key: HMAC-SHA256 (RFC 2104), cut to 128 bits.

The key is a file of its own, and is not derived from the site's identity: an identity that is lost or has
become known is replaced, and what was spent must still be found under the same names then. Nor are there
identities where nothing is summed under masks.
"""

from __future__ import annotations

import hmac
import re
import secrets
from pathlib import Path

from fedstrata.core.errors import refused
from fedstrata.core.files import secret_bytes, write_new_secret

PSEUDONYM_BYTES = 16
"""Of a pseudonym: two of a million units have the same one with a chance of 2^-89."""
_KIND = "pseudonyms:"
_KEY = re.compile(rb"pseudonyms:([0-9a-f]{64})\n")
_CHECK = b"the check value of this key"


def key_of(budget: Path) -> Path:
    """Returns where the key of a budget lies: beside it, by the same name."""
    return budget.with_suffix(".key")


class PseudonymKey:
    """The key of a site's pseudonyms.

    Args:
        key: (32,) bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def create(cls, path: Path) -> PseudonymKey:
        """Makes a new key and keeps it in a file of mode 600.

        Raises:
            ConfigurationError: The file exists.
        """
        key = secrets.token_bytes(32)
        write_new_secret(path, f"{_KIND}{key.hex()}\n".encode())
        return cls(key)

    @classmethod
    def read(cls, path: Path) -> PseudonymKey:
        """Reads a key.

        Raises:
            ConfigurationError: There is none, it is something else, or others may read it.
        """
        if not path.exists():
            message = f"there is no key {path}; make it with: fedstrata keys new {path} --pseudonyms"
            raise refused("", message, "not_found")
        if (found := _KEY.fullmatch(secret_bytes(path))) is None:
            message = f"{path} holds no key of pseudonyms; make one with: fedstrata keys new --pseudonyms"
            raise refused("", message, "wrong_form")
        return cls(bytes.fromhex(found[1].decode()))

    @property
    def check(self) -> str:
        """What tells this key from another one, and nothing else of it."""
        return self._digest(_CHECK).hex()

    def of(self, unit: str, *names: str) -> bytes:
        """Returns the pseudonym of a unit.

        Args:
            unit: What it is: `patient` or `document`.
            names: Its name, after that of its site where names are a site's own.

        Returns:
            (16,) bytes.
        """
        encoded = [part.encode() for part in (unit, *names)]
        return self._digest(b"".join(len(part).to_bytes(8, "big") + part for part in encoded))

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")[:PSEUDONYM_BYTES]
