"""Keyed hashes of documents' words, by which a run knows a text again that it was trained on."""

import secrets
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.data.duplicates import folded

_BYTES = 10
"""Of a hash: among millions of documents two different ones are alike in less than one of a million runs."""


def fingerprint(document: Document, key: str) -> str:
    """Returns the keyed hash of a document's words, whatever their case, punctuation and blanks.

    Args:
        document: The document, which has words.
        key: The key, in hexadecimal.
    """
    words = "\n".join(map(folded, document.texts)).encode()
    return blake2b(words, digest_size=_BYTES, key=bytes.fromhex(key)).hexdigest()


def new_key() -> str:
    """Returns a key of a run's own: hashes of one run say nothing of another's."""
    return secrets.token_hex(16)


def fingerprints(documents: Sequence[Document], key: str) -> dict[str, Any]:
    """Returns the hashes of documents with their key, as JSON; documents without words have none."""
    hashes = (fingerprint(own, key) for own in documents if not own.is_blank)
    return {"key": key, "texts": sorted(set(hashes))}
