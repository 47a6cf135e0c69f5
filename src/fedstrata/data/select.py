"""Which mention types a run keeps, and under what names (`data.types`); which labels (`data.labels`)."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fedstrata.core.config import LabelSettings
from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.data.icd9 import category


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


def rename_types(document: Document, renamed: Mapping[str, str]) -> Document:
    """Returns the document with its mention types renamed; those that the mapping does not name stay."""
    return _select(document, {label: label for label in mention_types([document])} | dict(renamed))


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


def select_labels(
    documents: Sequence[Document], settings: LabelSettings, *, usual: int | None = None
) -> list[Document]:
    """Keeps some of the labels of documents.

    Codes are shortened first, then those named are kept, then the most frequent ones. A label counts once for
    each document of the whole corpus; of labels that are equally frequent the first in the alphabet is kept.

    Args:
        documents: The corpus.
        settings: What to keep.
        usual: What `top: null` means: a number, or None for all; with labels named it keeps all of those.

    Returns:
        The documents in the same order, each with its labels in their order; those that change are new.

    Raises:
        ConfigurationError: A named label never occurs, codes are to be shortened that are none, or no
            document is left.
    """
    if settings.digits == 3:
        documents = [_relabelled(document, _categories(document)) for document in documents]
    counts = Counter(label for document in documents for label in dict.fromkeys(document.labels))
    if settings.keep is not None:
        _require_labels(settings.keep, counts)
        counts = Counter({label: counts[label] for label in settings.keep})
    top = settings.top or (usual if settings.keep is None else None)
    ranked = sorted(counts, key=lambda label: (-counts[label], label))
    chosen = set(ranked[:top] if isinstance(top, int) else ranked)
    selected = [
        _relabelled(document, (label for label in document.labels if label in chosen))
        for document in documents
    ]
    if settings.without_labels == "drop":
        selected = [document for document in selected if document.labels]
        if not selected:
            message = f"'drop' leaves none of the {len(documents)} documents: none has a label that is kept"
            raise ConfigurationError([Problem("data.labels.without_labels", message)])
    return selected


def _relabelled(document: Document, labels: Iterable[str]) -> Document:
    kept = tuple(dict.fromkeys(labels))
    return document if kept == document.labels else replace(document, labels=kept)


def _categories(document: Document) -> list[str]:
    for label in document.labels:
        if not category(label):
            message = f"3 shortens ICD-9-CM codes, and the label {label!r} of document {document.id} is none"
            raise ConfigurationError([Problem("data.labels.digits", message)])
    return [category(label) for label in document.labels]


def _require_labels(wanted: Sequence[str], counts: Mapping[str, int]) -> None:
    """Refuses names that no document has; there may be thousands of labels, so only near ones are listed."""
    problems = []
    for label in dict.fromkeys(wanted):
        if label not in counts:
            near = ", ".join(difflib.get_close_matches(label, counts, n=3) or sorted(counts)[:5])
            hint = f"for example {near}" if counts else "no document has any label"
            message = f"{label!r} is the label of no document; {len(counts)} labels occur: {hint}"
            problems.append(Problem("data.labels.keep", message if counts else f"{label!r}: {hint}"))
    if problems:
        raise ConfigurationError(problems)
