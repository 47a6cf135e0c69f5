"""Documents that a run was trained on: a score on them does not show what its model does with new ones."""

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.data.fingerprints import fingerprint
from fedstrata.engine.run_folder import DOCUMENTS
from fedstrata.record.words import plural
from fedstrata.results.result import Result


class TrainedTexts:
    """The texts that a run was trained on, as its folder knows them.

    A server of sites in processes of their own knows none.

    Args:
        run: The run directory.
        clients: Whose training documents count; those of all clients if none.
    """

    def __init__(self, run: Path, clients: Collection[str] | None = None) -> None:
        file = run / DOCUMENTS
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self._hashes: dict[str, set[str]] = {}
        for client, own in known.items():
            if (clients is None or client in clients) and (found := own.get("trained_on")):
                self._hashes.setdefault(found["key"], set()).update(found["texts"])

    def count(self, documents: Iterable[Document]) -> int:
        """Returns how many of these documents have the words of one that was trained on."""
        return sum(
            any(fingerprint(own, key) in hashes for key, hashes in self._hashes.items())
            for own in documents
            if not own.is_blank
        )


def trained_texts(result: Result) -> TrainedTexts:
    """Returns the texts that a model was trained on: those of all clients, unless clients share nothing."""
    layout, method = result.model.layout, result.method
    alone = not method.pooled and set(method.trainable(layout)) <= set(method.private(layout))
    return TrainedTexts(result.folder, [result.client] if alone and result.client is not None else None)


def caution(trained: int, documents: int) -> str:
    """Returns what a person must know of scores where a run was trained on some of the documents."""
    return (
        f"this run was trained on {trained:,} of these {plural(documents, 'document')}: scores on them do "
        "not show what its model does with new ones; fedstrata score --as RUN --part test takes others alone"
    )
