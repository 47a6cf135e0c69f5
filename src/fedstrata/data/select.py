"""Which mention types a run keeps, and under what names (`data.types`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError, Problem


def mention_types(documents: Sequence[Document]) -> tuple[str, ...]:
    """Returns the labels of all spans of these documents, sorted."""
    return tuple(sorted({span.label for document in documents for span in document.spans}))


def select_types(
    documents: Sequence[Document], types: Mapping[str, str] | Sequence[str] | None
) -> list[Document]:
    """Keeps the spans of some types, and the relations between them.

    Spans that become equal because two types are given one name are merged. A relation is dropped when one of
    its ends is, or when merging makes both ends the same span.

    Args:
        documents: The corpus.
        types: Types to keep; or a mapping from the corpus's types to the task's, which keeps those it names;
            or None, which keeps everything.

    Returns:
        The documents in the same order; those that change are new.

    Raises:
        ConfigurationError: If a type never occurs in the corpus, or none is named.
    """
    if types is None:
        return list(documents)
    renamed = dict(types) if isinstance(types, Mapping) else {name: name for name in types}
    found = mention_types(documents)
    problems = [
        Problem(
            "data.types",
            f"{name!r} occurs nowhere in the data, whose types are: {', '.join(found) or '(none)'}",
        )
        for name in renamed
        if name not in found
    ]
    if not renamed:
        problems = [
            Problem("data.types", f"names no type; null keeps all of: {', '.join(found) or '(none)'}")
        ]
    if problems:
        raise ConfigurationError(problems)
    return [_select(document, renamed) for document in documents]


def _select(document: Document, renamed: Mapping[str, str]) -> Document:
    kept = [
        (index, replace(span, label=renamed[span.label]))
        for index, span in enumerate(document.spans)
        if span.label in renamed
    ]
    spans = sorted({span for _, span in kept}, key=_span_order)
    position = {span: index for index, span in enumerate(spans)}
    moved = {index: position[span] for index, span in kept}
    relations = (
        Relation(moved[relation.head], moved[relation.tail], relation.label)
        for relation in document.relations
        if relation.head in moved and relation.tail in moved
    )
    distinct = dict.fromkeys(relation for relation in relations if relation.head != relation.tail)
    return replace(document, spans=tuple(spans), relations=tuple(distinct))


def _span_order(span: Span) -> tuple[int, int, str, tuple[tuple[int, int], ...]]:
    return span.start, span.end, span.label, span.fragments
