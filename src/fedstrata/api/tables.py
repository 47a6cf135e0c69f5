"""Frames: what documents, scores and comparisons are in pandas, which is loaded with the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedstrata.core.documents import Document, Span
from fedstrata.core.task import Task

if TYPE_CHECKING:
    import pandas as pd

_MENTION = ("start", "end", "label", "text")


def annotations_frame(documents: Sequence[Document], task: Task) -> pd.DataFrame:
    """Returns the annotations of documents: a row a mention or relation, or a row a document.

    Args:
        documents: The documents.
        task: What they were annotated for.
    """
    import pandas as pd

    if "relations" in task.gives:
        relations = [row for document in documents for row in _relations(document)]
        mentions = (
            [row for document in documents for row in _mentions(document)] if "spans" in task.gives else []
        )
        tail = [f"tail_{name}" for name in _MENTION]
        columns = ["document", "relation", *_MENTION, *tail]
        return pd.DataFrame([*mentions, *relations], columns=columns)
    if "spans" in task.gives:
        rows = [row for document in documents for row in _mentions(document)]
        return pd.DataFrame(rows, columns=["document", *_MENTION])
    whole = [name for name in ("labels", "text_pair") if name in task.gives]
    rows = [_whole(document, task) for document in documents]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["document", *whole])


def _mention(document: Document, span: Span, prefix: str = "") -> dict[str, Any]:
    text = document.text[span.start : span.end]
    values = (span.start, span.end, span.label, text)
    return {f"{prefix}{name}": value for name, value in zip(_MENTION, values, strict=True)}


def _mentions(document: Document) -> list[dict[str, Any]]:
    return [{"document": document.id, **_mention(document, span)} for span in document.spans]


def _relations(document: Document) -> list[dict[str, Any]]:
    return [
        {
            "document": document.id,
            "relation": relation.label,
            **_mention(document, document.spans[relation.head]),
            **_mention(document, document.spans[relation.tail], "tail_"),
        }
        for relation in document.relations
    ]


def _whole(document: Document, task: Task) -> dict[str, Any]:
    row: dict[str, Any] = {"document": document.id}
    if "labels" in task.gives:
        row["labels"] = list(document.labels)
    if "text_pair" in task.gives:
        row["text_pair"] = document.text_pair
    return row | {name: _number(value) for name, value in document.metadata.items()}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def scores_frame(scores: Mapping[str, float]) -> pd.DataFrame:
    """Returns scores as a frame: a row a score."""
    import pandas as pd

    return pd.DataFrame({"score": dict(scores)})
