"""Which annotations a run keeps, and under what names.

Mentions by `data.types`, relations by `data.relations` and `data.modifiers`, labels by `data.labels`.
"""

import difflib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fedstrata.core.documents import MODIFIERS_OF, Document, Relation
from fedstrata.core.errors import Problem, did_you_mean, refuse, refused
from fedstrata.core.settings.data import CorpusSettings, LabelSettings
from fedstrata.data.icd9 import category

logger = logging.getLogger(__name__)

BY_MODIFIER = "<modifier>"
"""As the name of a relation: the type of its modifier, which says what a relation called MODIFY means."""

Names = Mapping[str, str] | Sequence[str]
"""Names to keep; or what each of those that are kept becomes."""


def related_types(documents: Iterable[Document], *, by_relation: bool = False) -> dict[str, list[str]]:
    """Returns the types of modifiers that each type of main mention has in these documents, both sorted.

    Args:
        documents: The documents.
        by_relation: Whether a modifier goes by the type of its relation; else by that of its mention.
    """
    found: dict[str, set[str]] = {}
    for document in documents:
        for relation in document.relations:
            modifier = relation.label if by_relation else document.spans[relation.tail].label
            found.setdefault(document.spans[relation.head].label, set()).add(modifier)
    return {main: sorted(types) for main, types in sorted(found.items())}


def occurring(documents: Iterable[Document], kind: str) -> list[tuple[str, str]]:
    """Returns the type of each of the documents' `spans`, or `relations`, with the id of its document."""
    return [(own.label, document.id) for document in documents for own in getattr(document, kind)]


def types_of(documents: Iterable[Document], kind: str) -> tuple[str, ...]:
    """Returns the types of the documents' `spans`, or `relations`, sorted."""
    return tuple(sorted({label for label, _ in occurring(documents, kind)}))


def unknown_types(
    documents: Iterable[Document], kind: str, types: Sequence[str], part: str = ""
) -> list[Problem]:
    """Returns a problem for each type of these documents that no training document has.

    Args:
        documents: The documents.
        kind: What has types: `spans` or `relations`.
        types: The types of the training documents.
        part: The part of the split they are of; empty where that is not known.
    """
    setting, what = {"spans": ("data.types", "mention"), "relations": ("data.relations", "relation")}[kind]
    problems = []
    for label, id_ in others(occurring(documents, kind), types):
        where = f"{part} document {id_!r}".strip()
        message = (
            f"{what} type {label!r} ({where}) occurs in no training document, whose types are: "
            f"{', '.join(types)}; name the types to keep, or map this one to one of them"
        )
        problems.append(Problem(setting, message, code="unknown_name"))
    return problems


def unnamed(setting: str, found: Iterable[tuple[str, str]], named: Sequence[str]) -> list[Problem]:
    """Returns a problem for each type or label of documents that a list of all of them lacks.

    Args:
        setting: The list's path.
        found: Each type or label that occurs, with the id of a document that has it.
        named: The list.
    """
    message = "does not name {!r}, which document {!r} has; name all that are learnt, or leave it out of data"
    return [Problem(setting, message.format(*other), code="missing") for other in others(found, named)]


def named_in_vain(setting: str, names: Iterable[str], occurring: Collection[str]) -> list[Problem]:
    """Returns a problem for each type or label of a list of those to be learnt that no document has.

    Args:
        setting: The list's path.
        names: The list.
        occurring: The types or labels that documents have.
    """
    message = "{!r} occurs in no document{}"
    return [
        Problem(setting, message.format(name, did_you_mean(name, occurring, before="; ")), code="not_found")
        for name in names
        if name not in occurring
    ]


def others(found: Iterable[tuple[str, str]], names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns what is found beside these names, sorted, each with the first document that has it."""
    first: dict[str, str] = {}
    known = set(names)
    for label, document in found:
        if label not in known:
            first.setdefault(label, document)
    return sorted(first.items())


def looked_for_as(
    names: frozenset[str] | None, renamed: Mapping[str, str], *, already: bool = False
) -> frozenset[str] | None:
    """Returns what was looked for in a document when its types or labels have other names.

    What one name then stands for was looked for where all that it stands for was.

    Args:
        names: What was looked for (`Document.annotates`); everything if none.
        renamed: What each name becomes; others stay.
        already: Whether they may have the new names.
    """
    if names is None:
        return None
    missed = {new for old, new in renamed.items() if old not in names and not (already and new in names)}
    return names.difference(renamed) | frozenset(renamed.values()) - missed


def keep_looked_for(document: Document) -> Document:
    """Returns a document without annotations that are of nothing that was looked for in it."""
    if document.annotates is None:
        return document
    kept = _select(document, {label: label for label in document.annotates})
    return replace(
        kept,
        relations=tuple(kept.of_looked_for(kept.relations)),
        labels=tuple(label for label in kept.labels if label in document.annotates),
    )


def select_types(
    documents: Sequence[Document], types: Names | None, *, absent: Collection[str] = ()
) -> list[Document]:
    """Keeps the spans of some types, and the relations between them.

    Spans that become equal because two types are given one name are merged. A relation is dropped when one of
    its ends is, or when merging makes both ends the same span.

    Args:
        documents: The corpus.
        types: Types to keep; or a mapping from the corpus's types to the task's, which keeps those it names;
            or None, which keeps everything.
        absent: Types of the task that need not occur.

    Returns:
        The documents in the same order; those that change are new.

    Raises:
        ConfigurationError: If a type never occurs in the corpus that must, or none is named.
    """
    if types is None:
        return list(documents)
    renamed = _renaming(types)
    refuse(_unfit("data.types", renamed, "type", types_of(documents, "spans"), absent))
    named = [_with_names(_select(document, renamed), renamed) for document in documents]
    selected = [keep_looked_for(document) for document in named]
    left_out = {
        span.label
        for before, after in zip(named, selected, strict=True)
        for span in before.spans
        if not all(after.looked_for([span.label]))
    }
    if left_out:
        names = ", ".join(map(repr, sorted(left_out)))
        why = "where somebody looked for some only of the types that data.types gives that name"
        logger.warning("mentions of %s are left out of documents %s", names, why)
    return selected


def _renaming(names: Names) -> dict[str, str]:
    return dict(names) if isinstance(names, Mapping) else {name: name for name in names}


def _unfit(
    setting: str, named: Mapping[str, str], what: str, found: Sequence[str], absent: Collection[str]
) -> list[Problem]:
    """Returns a problem for each name that does not occur, unless it need not, and one if none is named.

    What each name becomes is in `named`, and in `absent` what those become that need not occur.
    """
    there = ", ".join(found) or "(none)"
    if not named:
        return [Problem(setting, f"names no {what}; null keeps all of: {there}", code="missing")]
    message = f"occurs nowhere in the data, whose {what}s are: {there}"
    wrong = (name for name, new in named.items() if name not in found and new not in absent)
    return [Problem(setting, f"{name!r} {message}", code="not_found") for name in wrong]


def rename_types(document: Document, renamed: Mapping[str, str]) -> Document:
    """Returns the document with its mention types renamed; those that the mapping does not name stay."""
    every = {label: label for label in types_of([document], "spans")} | dict(renamed)
    return keep_looked_for(_with_names(_select(document, every), renamed))


def _with_names(document: Document, renamed: Mapping[str, str], *, already: bool = False) -> Document:
    if document.annotates is None:
        return document
    return replace(document, annotates=looked_for_as(document.annotates, renamed, already=already))


def _select(document: Document, renamed: Mapping[str, str]) -> Document:
    kept = [
        (index, replace(span, label=renamed[span.label]))
        for index, span in enumerate(document.spans)
        if span.label in renamed
    ]
    spans = sorted({span for _, span in kept})
    position = {span: index for index, span in enumerate(spans)}
    moved = {index: position[span] for index, span in kept}
    relations = (
        Relation(moved[relation.head], moved[relation.tail], relation.label)
        for relation in document.relations
        if relation.head in moved and relation.tail in moved
    )
    distinct = dict.fromkeys(relation for relation in relations if relation.head != relation.tail)
    return replace(document, spans=tuple(spans), relations=tuple(distinct))


def keep_types(document: Document, types: Names | None) -> Document:
    """Returns a document, of the corpus or not, with its spans of some types as `select_types` keeps them.

    Types may have the corpus's names or the task's, and any may be absent.
    """
    if types is None:
        return document
    renamed = _renaming(types)
    kept = _select(document, {new: new for new in renamed.values()} | renamed)
    return keep_looked_for(_with_names(kept, renamed, already=True))


def select_relations(
    documents: Sequence[Document], settings: CorpusSettings, *, absent: Collection[str] = ()
) -> list[Document]:
    """Keeps the relations of some types, and between mentions of some types.

    Args:
        documents: The corpus, with the mention types that are kept.
        settings: `relations`, types to keep or a mapping from the corpus's types to the task's, in which
            `BY_MODIFIER` stands for the type of each relation's modifier; and `modifiers`.
        absent: Types of the task that need not occur.

    Returns:
        The documents in the same order; relations that become equal are merged.

    Raises:
        ConfigurationError: A type never occurs in the corpus, none is named, or no relation is left.
    """
    if settings.relations is None and settings.modifiers is None:
        return list(documents)
    problems = []
    found, types = types_of(documents, "relations"), types_of(documents, "spans")
    if settings.relations is not None:
        renamed = _renaming(settings.relations)
        problems += _unfit("data.relations", renamed, "relation", found, absent)
        problems += [
            Problem(
                "data.relations",
                f"{name!r} is no name; {BY_MODIFIER} would be the type of the modifier",
                code="reserved",
            )
            for name in renamed.values()
            if name.startswith("<") and name != BY_MODIFIER
        ]
    if isinstance(settings.modifiers, Mapping):
        between = (name for main, own in settings.modifiers.items() for name in (main, *own))
        problems += _unfit("data.modifiers", {name: name for name in between}, "type", types, absent)
    refuse(problems)
    kept = _renaming(found if settings.relations is None else settings.relations)
    selected = [_related(document, kept, settings.modifiers) for document in documents]
    if found and not types_of(selected, "relations"):
        count = sum(len(document.relations) for document in documents)
        message = f"leaves none of the {count} relations, which are between other types of mentions"
        raise refused("data.modifiers", message, "not_enough_data")
    return selected


def rename_relations(document: Document, settings: CorpusSettings) -> Document:
    """Returns the document with its relations renamed; those of types that a mapping does not name stay.

    Relations between types of mentions that the settings leave out are left out.
    """
    renamed = {label: label for label in types_of([document], "relations")}
    if isinstance(settings.relations, Mapping):
        renamed |= settings.relations
    return _related(document, renamed, settings.modifiers)


def _related(
    document: Document,
    renamed: Mapping[str, str],
    modifiers: Mapping[str, Sequence[str]] | Literal["clinical"] | None,
) -> Document:
    allowed = MODIFIERS_OF if modifiers == "clinical" else modifiers
    relations = []
    for relation in document.relations:
        head, tail = document.spans[relation.head].label, document.spans[relation.tail].label
        if relation.label in renamed and (allowed is None or tail in allowed.get(head, ())):
            name = renamed[relation.label]
            relations.append(replace(relation, label=tail if name == BY_MODIFIER else name))
    distinct = tuple(dict.fromkeys(relations))
    related = document if distinct == document.relations else replace(document, relations=distinct)
    names = {name: new for name, new in renamed.items() if new != BY_MODIFIER}  # goes by mentions
    return keep_looked_for(_with_names(related, names))


def select_labels(
    documents: Sequence[Document],
    settings: LabelSettings,
    *,
    usual: int | None = None,
    absent: Collection[str] = (),
) -> list[Document]:
    """Keeps some of the labels of documents.

    Codes are shortened first, then those named are kept, then the most frequent ones. A label counts once for
    each document of the whole corpus; of labels that are equally frequent the first in the alphabet is kept.

    Args:
        documents: The corpus.
        settings: What to keep.
        usual: What `top: null` means: a number, or None for all; with labels named it keeps all of those.
        absent: Labels that need not occur.

    Returns:
        The documents in the same order, each with its labels in their order; those that change are new.

    Raises:
        ConfigurationError: A named label never occurs, codes are to be shortened that are none, or no
            document is left.
    """
    if settings.digits == 3:
        codes = {label for document in documents for label in document.labels}
        categories = {code: category(code) for code in codes}
        shortened = (_relabelled(document, _categories(document)) for document in documents)
        documents = [keep_looked_for(_with_names(document, categories)) for document in shortened]
    counts = Counter(label for document in documents for label in dict.fromkeys(document.labels))
    if settings.keep is not None:
        _require_labels([label for label in settings.keep if label not in absent], counts)
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
            raise refused("data.labels.without_labels", message, "not_enough_data")
    return selected


def _relabelled(document: Document, labels: Iterable[str]) -> Document:
    kept = tuple(dict.fromkeys(labels))
    return document if kept == document.labels else replace(document, labels=kept)


def _categories(document: Document) -> list[str]:
    for label in document.labels:
        if not category(label):
            message = f"3 shortens ICD-9-CM codes, and the label {label!r} of document {document.id} is none"
            raise refused("data.labels.digits", message, "wrong_form")
    return [category(label) for label in document.labels]


def _require_labels(wanted: Sequence[str], counts: Mapping[str, int]) -> None:
    """Refuses names that no document has; there may be thousands of labels, so only near ones are listed."""
    problems = []
    for label in dict.fromkeys(wanted):
        if label not in counts:
            near = ", ".join(difflib.get_close_matches(label, counts, n=3) or sorted(counts)[:5])
            hint = f"for example {near}" if counts else "no document has any label"
            message = f"{label!r} is the label of no document; {len(counts)} labels occur: {hint}"
            if counts:
                problems.append(Problem("data.labels.keep", message, code="not_found"))
            else:
                problems.append(Problem("data.labels.keep", f"{label!r}: {hint}", code="not_enough_data"))
    refuse(problems)
