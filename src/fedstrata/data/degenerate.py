"""Data of which scores say little, or nothing: what is told before a run, and in its report.

No warning holds anything of a text; names are those of clients and classes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedstrata.core.documents import Document, spelling_key
from fedstrata.core.settings.report import SMALL, shown
from fedstrata.core.settings.yaml import as_yaml
from fedstrata.core.surveyed import LABELS, MENTIONS, PAIRS, RELATIONS
from fedstrata.core.task import Task
from fedstrata.data.duplicates import Duplicates, Repeated
from fedstrata.data.overview import Holding, Holdings
from fedstrata.data.partial_annotation import types_missing
from fedstrata.data.split import PARTS

NAMED = 5
"""Clients, or classes, that a warning names at most."""
TRAIN, *SCORED = PARTS
_WORDS = {TRAIN: "training", **{part: part for part in SCORED}}
_WHAT = {MENTIONS: "mention", RELATIONS: "relation", LABELS: "label"}


def degenerate(holdings: Holdings, duplicates: Duplicates, *, served: bool, hide: bool) -> list[str]:
    """Returns what is the matter with documents, a sentence each.

    Args:
        holdings: What clients have.
        duplicates: What of it repeats what.
        served: Whether these are one site's documents, of a run in which others have further ones.
        hide: Whether small counts are hidden.
    """
    return [
        *_lacking(holdings, hide=hide),
        *_one_class(holdings),
        *_never_learnt(holdings, served=served),
        *_repeated(duplicates, served=served, hide=hide),
    ]


def _lacking(holdings: Holdings, *, hide: bool) -> Iterator[str]:
    """Yields what clients have nothing of that others learn."""
    for kind, what in _WHAT.items():
        own = {name: parts[TRAIN] for name, parts in holdings.items() if kind in parts[TRAIN].decided}
        without = [name for name, each in own.items() if not any(each.decided[kind])]
        if without and len(without) < len(own):
            sizes = [f"{name} ({_told(len(own[name].decided[kind]), hide=hide)})" for name in without]
            lacks = f"none of the training documents of {named(sizes)} has a {what} that others learn"
            yield f"{lacks}: it counts as absent there"


def unmentioned(documents: Iterable[Document], task: Task) -> Iterator[str]:
    """Yields which sites have types nowhere that are learnt, and how to say that nobody looked for them.

    Args:
        documents: Those of all sites, or of one.
        task: What is learnt.
    """
    kinds = [kind for kind in ("spans", "relations") if kind in task.finds]
    missing = types_missing(documents, kinds, task.known_types) if task.knows_partial_annotation else {}
    if sites := {site: own for site, own in missing.items() if site and kinds and own[1]}:
        told = [f"{site} ({named(lacking)})" for site, (lacking, _) in sites.items()]
        line = ", ".join(
            f"{as_yaml(site)}: [{', '.join(map(as_yaml, others))}]"
            for site, (_, others) in list(sites.items())[:NAMED]
        )
        yield (
            f"types that are learnt and that a site has nowhere: {named(told)}; they count as absent there. "
            f"Where nobody looked for them, write data.annotates: {{{line}}}"
        )


def alike_names(documents: Iterable[Document], *, hide: bool) -> Iterator[str]:
    """Yields which names differ only by case, blanks, Unicode form or a final `.0`.

    Labels, types and sites stay apart and are named. Patients are taken for one each, and only counted.

    Args:
        documents: Those of all sites, or of one.
        hide: Whether small counts are hidden.
    """
    names: dict[str, dict[str, set[str]]] = {"labels": {}, "types of mentions": {}, "sites": {}}
    patients: dict[tuple[str, str], set[str]] = {}
    for document in documents:
        own = document.labels, [span.label for span in document.spans], [document.site]
        for spellings, each in zip(names.values(), own, strict=True):
            for name in each:
                spellings.setdefault(spelling_key(name), set()).add(name)
        if document.patient:
            spelt = document.metadata["patient"].strip()
            patients.setdefault((document.site, document.patient), set()).add(spelt)
    how = "only by case, blanks, Unicode form or a final .0"
    for what, spellings in names.items():
        if told := [" and ".join(map(repr, sorted(each))) for each in spellings.values() if len(each) > 1]:
            yield f"{what} that differ {how} are told apart: {named(sorted(told))}"
    if several := sum(len(each) > 1 for each in patients.values()):
        yield f"patients whose names differ {how}: {_told(several, hide=hide)}; each counts as one"


def _one_class(holdings: Holdings) -> Iterator[str]:
    """Yields where one answer is always right."""
    for part in PARTS:
        having = {name: parts[part] for name, parts in holdings.items() if parts[part].documents}
        labels = {name: label for name, own in having.items() if (label := _only_label(own))}
        said = "is to be learnt" if part == TRAIN else "scores 1.0"
        if having and len(labels) == len(having) and len(set(labels.values())) == 1:
            (label,) = set(labels.values())
            yield f"every {_WORDS[part]} document has the label {label!r} alone: to say so always {said}"
        elif labels and part == TRAIN:
            each = [f"{name} ({label!r})" for name, label in labels.items()]
            yield f"every training document has one and the same label at {named(each)}"
        related = [name for name, own in having.items() if len(_classes(own, PAIRS)) == 1 and _related(own)]
        if related:
            where = "" if len(related) == len(having) else f" at {named(related)}"
            yield (
                f"every pair of mentions that is asked about in {_WORDS[part]} documents is related{where}: "
                f"to say so always {said}"
            )


def _related(own: Holding) -> bool:
    """Whether there is a relation among what is decided."""
    return any(own.decided.get(RELATIONS, ()))


def _only_label(own: Holding) -> str | None:
    """Returns the label that each of two or more documents has, and no other one; none if there is none."""
    decided = own.decided.get(LABELS, ())
    labels = _classes(own, LABELS)
    return labels[0] if len(labels) == 1 and len(decided) > 1 and all(map(len, decided)) else None


def _classes(own: Holding, kind: str) -> list[str]:
    return sorted(own.classes(kind))


def _never_learnt(holdings: Holdings, *, served: bool) -> Iterator[str]:
    """Yields classes that are scored and that no training document has."""
    for kind, what in _WHAT.items():
        learnt, scored = (
            {name for parts in holdings.values() for part in some for name in parts[part].classes(kind)}
            for some in ((TRAIN,), SCORED)
        )
        if strangers := sorted(scored - learnt):
            types = "labels" if kind == LABELS else f"types of {what}s"
            way = "other sites must have them" if served else "nothing of them can be learnt"
            yield (
                f"{types} that validation or test documents have and no training document"
                f"{' here' if served else ''}: {named(list(map(repr, strangers)))}; {way}"
            )


def _repeated(duplicates: Duplicates, *, served: bool, hide: bool) -> Iterator[str]:
    """Yields which documents are there twice."""
    whose = "" if served else " of some client"
    for part in SCORED:
        own = {name: parts[part] for name, parts in duplicates.learnt.items()}
        if told := _counted(own, hide=hide):
            yield f"{part} documents are training documents{whose}, too: {told}"
    if told := _counted(duplicates.elsewhere, hide=hide):
        yield f"documents of one client are those of another, too: {told}"


def _counted(found: Mapping[str, Repeated], *, hide: bool) -> str:
    """Returns how many documents of each client are repeated, most first; empty where none is."""
    most = sorted(found.items(), key=lambda each: -each[1].equal - each[1].near)
    told = []
    for name, own in most:
        kinds = ((own.equal, "word for word"), (own.near, "nearly so"))
        counts = [f"{_told(count, hide=hide)} {how}" for count, how in kinds if count]
        if counts:
            told.append(f"{' and '.join(counts)} of {_told(own.documents, hide=hide)} at {name}")
    return named(told)


def _told(count: int, *, hide: bool) -> str:
    known = shown(count, hide=hide)
    return f"fewer than {SMALL}" if known is None else f"{known:,}"


def named(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
