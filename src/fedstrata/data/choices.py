"""Documents that are questions: what may be answered, in a document's metadata and labels.

- `choice1`, `choice2` and so on in `metadata` are the answers that a question has of its own.
- `rival1` and so on are further answers, which are compared with these and are never right.
- `labels` of a document with choices are the names of the right ones, or `none` if it is known that none is.
- `superglue` in `metadata` is the task of SuperGLUE that a document is of, `pronoun` the word whose meaning
  it asks for.
"""

import re
from collections.abc import Iterable

from fedstrata.core.documents import Document

TASK = "superglue"
PRONOUN = "pronoun"
NONE_RIGHT = "none"
"""The label of a document none of whose choices is right."""


def choices_of(document: Document) -> dict[str, str]:
    """Returns a document's choices by their names, in the order of their numbers."""
    return _numbered(document, "choice")


def rivals_of(document: Document) -> list[str]:
    """Returns the answers that are compared with a document's choices, in the order of their numbers."""
    return list(_numbered(document, "rival").values())


def named(name: str, texts: Iterable[str]) -> dict[str, str]:
    """Returns texts by numbered names.

    >>> named("choice", ["yes", "no"])
    {'choice1': 'yes', 'choice2': 'no'}
    """
    return {f"{name}{number}": text for number, text in enumerate(texts, start=1)}


def _numbered(document: Document, kind: str) -> dict[str, str]:
    found = [name for name in document.metadata if re.fullmatch(rf"{kind}[1-9]\d*", name)]
    ordered = sorted(found, key=lambda name: int(name.removeprefix(kind)))
    return {name: document.metadata[name] for name in ordered}
