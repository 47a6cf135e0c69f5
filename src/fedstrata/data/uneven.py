"""Clients that are annotated for some tasks only: which documents say nothing of relations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.data.split import Split


def mark_unannotated(clients: Mapping[str, Split], mentions_only: Collection[str] = ()) -> dict[str, Split]:
    """Marks the documents in which nobody looked for relations (`Document.lacks_relations`).

    Those are all documents of a client that has not one relation, and the training documents of those that
    are to serve for mentions only, whose relations are set aside.

    Args:
        clients: The documents of each client, and of sites that are held out.
        mentions_only: Names of clients.

    Raises:
        ConfigurationError: There is no client of such a name.
    """
    known = [name for name, own in clients.items() if own.train]
    if strangers := [name for name in mentions_only if name not in known]:
        message = f"there is no client {strangers[0]!r}; the clients are {', '.join(known)}"
        raise ConfigurationError([Problem("task.mentions_only", message)])
    marked = {}
    for name, own in clients.items():
        nothing = not any(document.relations for document in own.all)
        marked[name] = Split(
            _lacking(own.train) if nothing or name in mentions_only else own.train,
            _lacking(own.validation) if nothing else own.validation,
            _lacking(own.test) if nothing else own.test,
        )
    return marked


def _lacking(documents: Sequence[Document]) -> tuple[Document, ...]:
    return tuple(replace(document, relations=(), lacks_relations=True) for document in documents)
