"""Annotated and predicted documents read from disk and put side by side, for `fedstrata score`."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, DataError, Problem, refuse, refused
from fedstrata.core.settings.data import DataSettings
from fedstrata.core.settings.source import read_source, validate
from fedstrata.data.partial_annotation import mark_looked_for
from fedstrata.data.readers import FORMATS, formats_of, read
from fedstrata.data.readers.files import Format
from fedstrata.data.readers.folders import find_sources, split_within
from fedstrata.data.select import keep_types, rename_relations, select_types, types_of
from fedstrata.data.split import PARTS
from fedstrata.data.writers.layout import name_of
from fedstrata.engine.run_folder import DOCUMENTS
from fedstrata.results.result import open_task

DETECTED: Mapping[str, tuple[str, ...]] = {
    "brat": (".ann",),
    "i2b2": (".con",),
    "jsonl": (".jsonl", ".jsonl.gz"),
}
"""The formats that are known by the names of their files, and how these end."""
NAMED = 5
"""Documents that a message names at most."""


def formats_as(run: Path) -> Mapping[str, Format]:
    """Returns how a run read its documents: which columns held what, and what a document was.

    Raises:
        ConfigurationError: The directory holds no finished run.
    """
    return formats_of(open_task(run, "--as")[0].data)


def read_documents(
    path: Path, form: str | None, option: str, formats: Mapping[str, Format] = FORMATS
) -> list[Document]:
    """Reads one side.

    Args:
        path: A file or folder.
        form: Its format; known by the names of its files if none.
        option: The option that names the format, for messages.
        formats: How each format is read, where other than by default.

    Raises:
        ConfigurationError: There is no such format.
        DataError: The format cannot be told, or the files are not of it, or are texts without annotations.
    """
    if form is None:
        form = format_of(path, option)
    elif form not in formats:
        raise refused(option, f"must be one of {', '.join(formats)}, not {form!r}", "unknown_name")
    ends = formats[form].annotation_suffix
    if ends and not any(source.annotations for source in find_sources(path, formats[form])):
        raise DataError(
            path, "has no annotations", expected=f"*{ends}, which may be empty", code="not_annotated"
        )
    return read(path, form, formats=formats)


def format_of(path: Path, option: str) -> str:
    """Returns the format of a file or folder, known by the names of its files.

    Args:
        path: The file or folder.
        option: What names the format otherwise, for messages.

    Raises:
        DataError: There is none, or the names are those of no format, or of several.
    """
    if path.is_dir():
        names = [found.name for found in path.rglob("*") if not found.name.startswith(".")]
    elif path.is_file():  # the annotations of x.txt are beside it
        beside = path.parent.glob(f"{path.stem}.*") if path.suffix == ".txt" else ()
        names = [path.name, *(found.name for found in beside)]
    else:
        raise DataError(path, "no such file or folder", code="not_found")
    forms = [form for form, ends in DETECTED.items() if any(name.lower().endswith(ends) for name in names)]
    if len(forms) == 1:
        return forms[0]
    looked_for = ", ".join(f"*{ends[0]}" for ends in DETECTED.values())
    message = f"holds files of {' and '.join(forms)}" if forms else f"holds none of {looked_for}"
    code = "ambiguous" if forms else "unknown_name"
    raise DataError(path, message, expected=f"the format to be named with {option}", code=code)


def wanted_types(text: str | None) -> Mapping[str, str] | list[str] | None:
    """Reads mention types as `data.types` has them; brackets around a list may be left out.

    Raises:
        ConfigurationError: They are neither a list nor a mapping.
    """
    if text is None:
        return None
    value = text if text.lstrip().startswith(("[", "{")) else f"[{text}]"
    try:
        source = read_source(None, [f"data.types={value}"])
    except ConfigurationError as error:
        raise _of_types(error.problems) from None
    settings, problems = validate(DataSettings, source, section="data")
    if settings is None:
        raise _of_types(problems)
    return settings.types


def select(
    sides: Sequence[list[Document]], types: Mapping[str, str] | Sequence[str] | None
) -> list[list[Document]]:
    """Keeps mentions of some types on all sides, as `data.types` does.

    Args:
        sides: The annotated documents and those of the systems. A system may name types as the annotations
            do, or by their new names, as the predictions of a run do.
        types: Types to keep, or a mapping to new names; everything if none.

    Returns:
        The sides, in their order.

    Raises:
        ConfigurationError: A type occurs nowhere, or a type that is renamed is also a new name.
    """
    if types is None:
        return list(sides)
    renamed = dict(types) if isinstance(types, Mapping) else {name: name for name in types}
    problems = [
        Problem("", f"{new!r} is a new name and is itself renamed to {renamed[new]!r}", code="conflict")
        for new in sorted(set(renamed.values()))
        if renamed.get(new, new) != new
    ]
    if problems:
        raise _of_types(problems)
    everything = [document for side in sides for document in side]
    found = types_of(everything, "spans")
    try:
        kept = iter(
            select_types(everything, renamed | {new: new for new in renamed.values() if new in found})
        )
    except ConfigurationError as error:
        raise _of_types(error.problems) from None
    return [[next(kept) for _ in side] for side in sides]


def select_as(run: Path, sides: Sequence[list[Document]]) -> tuple[list[list[Document]], list[str] | None]:
    """Keeps on all sides what a run is scored on, under the run's names.

    Args:
        run: The run directory.
        sides: As for `select`. Of the annotated documents is known what somebody looked for where the run's
            `data.annotates` says so of their site.

    Returns:
        The sides; and the mention types that are scored as such, where others are there as modifiers only.

    Raises:
        ConfigurationError: The directory holds no finished run, or one that finds nothing of the kind.
    """
    settings, task = open_task(run, "--as")
    if not {"spans", "relations"} & set(task.gives):
        message = f"must be a run that finds mentions or relations, not one on task {task.name}"
        raise refused("--as", message, "not_supported")
    named = [
        [rename_relations(keep_types(document, settings.data.types), settings.data) for document in side]
        for side in sides
    ]
    annotated, *systems = named
    sides = [mark_looked_for(annotated, settings.data.annotates), *systems]
    kept = [[task.known(document) for document in side] for side in sides]
    return kept, None if task.main_mentions is None else list(task.main_mentions)


def select_part(run: Path, part: str, sides: Sequence[list[Document]]) -> list[list[Document]]:
    """Keeps on all sides the documents that a run has in a part of its split.

    Args:
        run: The run directory.
        part: `train`, `validation` or `test`.
        sides: The annotated documents, under the ids that they had in the run, or without the folder or file
            in these that meant the part, as where the part was given alone; and those of the systems, which
            may have some of the others as well.

    Returns:
        The sides, in their order.

    Raises:
        ConfigurationError: There is no such part or nothing in it, the run does not say, or annotated
            documents are missing.
    """
    if part not in PARTS:
        raise refused("--part", f"must be one of {', '.join(PARTS)}, not {part!r}", "unknown_name")
    file = run / DOCUMENTS
    if not file.is_file():
        message = f"{run} does not say which documents are whose: there is no {DOCUMENTS} in it"
        raise refused("--part", message, "not_found")
    clients = [own for own in json.loads(file.read_text(encoding="utf-8")).values() if own["train"]]
    ids = {id_ for documents in clients for id_ in documents[part]}
    elsewhere = {id_ for documents in clients for name in PARTS if name != part for id_ in documents[name]}
    known = {document.id for document in sides[0]}
    if not ids <= known:  # perhaps the files of the part alone, whose place in the corpus is not in their ids
        run_bare = {_without_part(id_, part): id_ for id_ in ids}
        own_bare = {_without_part(id_, part): id_ for id_ in known}
        if len(run_bare) == len(ids) and len(own_bare) == len(known) and run_bare.keys() <= own_bare.keys():
            ids = {own_bare[name] for name in run_bare}
    missing = sorted(ids - known)
    if missing or not ids:
        lacking = f"GOLD lacks these of the {part} part of {run}: {_listed(missing)}"
        message = lacking if ids else f"{run} has no {part} documents"
        raise refused("--part", message, "missing" if ids else "not_enough_data")
    # A system's documents may have other ids: how far these hold site and split depends on the format.
    places = {_place(document) for document in sides[0] if document.id not in ids}
    others = (known | elsewhere) - ids
    return [
        [document for document in side if document.id not in others and _place(document) not in places]
        if number
        else [document for document in side if document.id in ids]
        for number, side in enumerate(sides)
    ]


def _without_part(id_: str, part: str) -> str:
    """Returns an id without the folders and files in it that mean a part of the split."""
    *folders, name = id_.split("/")
    return "/".join([*(folder for folder in folders if (split_within(folder) or folder) != part), name])


def _of_types(problems: Iterable[Problem]) -> ConfigurationError:
    return ConfigurationError(
        [Problem("--types", problem.message, code=problem.code) for problem in problems]
    )


def paired(gold: Sequence[Document], predicted: Sequence[Document], name: str) -> list[Document]:
    """Returns a system's documents in the order of the annotated ones.

    Documents belong together by their ids or, where these are not the same on both sides, by their site,
    split and name, else by their names alone if each has its own: how far an id holds site and split depends
    on the format, and on whether a part was given alone. Their texts must then be the same.

    Args:
        gold: The annotated documents.
        predicted: Those of a system.
        name: What the system's files are called in messages.

    Raises:
        ConfigurationError: A document is missing on one side, or has another text; all are told at once.
    """
    keys: list[Callable[[Document], str]] = [attrgetter("id"), _place, name_of]
    fitting = (each for each in keys if set(map(each, gold)) == set(map(each, predicted)))
    key = next(fitting, keys[0])
    if len(set(map(key, gold))) < len(gold) or len(set(map(key, predicted))) < len(predicted):
        key = keys[0]
    own = {key(document): document for document in predicted}
    known = {key(document) for document in gold}
    missing = [document.id for document in gold if key(document) not in own]
    unknown = [document.id for document in predicted if key(document) not in known]
    problems = [
        Problem(name, f"{what} {_listed(ids)}", code=code)
        for what, ids, code in (
            ("lacks documents of GOLD:", missing, "missing"),
            ("has documents that GOLD lacks:", unknown, "unknown_name"),
        )
        if ids
    ]
    pairs = [(document, own[key(document)]) for document in gold if key(document) in own]
    differing = [(one.id, _where(one, other)) for one, other in pairs if one.texts != other.texts]
    if differing:
        first, where = differing[0]
        others = f" So have {_listed([id_ for id_, _ in differing[1:]])}." if differing[1:] else ""
        message = (
            f"document {first!r} has another text than in GOLD, {where}, so that offsets do not compare (an "
            f"i2b2 folder may hold the text as tokens: give both sides in that form).{others}"
        )
        problems.append(Problem(name, message, code="conflict"))
    refuse(problems)
    return [other for _, other in pairs]


def _place(document: Document) -> str:
    """Returns a document's site, split and name."""
    return "/".join((document.site, document.metadata.get("split", ""), name_of(document)))


def _where(one: Document, other: Document) -> str:
    """Says where two texts differ, and not in what."""
    first, second = "\0".join(one.texts), "\0".join(other.texts)
    place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    return f"from character {place} on ({len(first)} and {len(second)} characters)"


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - NAMED:,} more" if len(ids) > NAMED else ""
    return ", ".join(map(repr, ids[:NAMED])) + more
