"""Readers of annotated text: one file a format, one function for all of them.

`read(path, "brat")` gives the documents of a file or folder; `folders.py` says how sites and splits are
laid out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.errors import (
    DataError,
    FedstrataError,
    Problem,
    refuse,
    refused,
    require_sound,
)
from fedstrata.core.settings.data import ColumnSettings, CorpusSettings, DatasetSettings, Files, listed
from fedstrata.core.settings.reader import Reader, reader_of
from fedstrata.data.readers import (
    ag_news,
    brat,
    conll,
    conllu,
    coqa,
    datasets,
    glue,
    i2b2,
    jsonl,
    medline,
    mimic,
    mts_dialog,
    mtsamples,
    pubtator,
    relation_table,
    superglue,
    texts,
    xsum,
)
from fedstrata.data.readers.files import Format, Source, numbered_lines, read_text, stem
from fedstrata.data.readers.folders import TOLD, Unannotated, find_sources
from fedstrata.data.select import types_of

FORMATS: dict[str, Format] = {
    "text": texts.FORMAT,
    "i2b2": i2b2.FORMAT,
    "brat": brat.FORMAT,
    "conll": conll.FORMAT,
    "conllu": conllu.FORMAT,
    "jsonl": jsonl.FORMAT,
    "pubtator": pubtator.FORMAT,
    "medline": medline.FORMAT,
    "relation_table": relation_table.FORMAT,
    "mtsamples": mtsamples.FORMAT,
    "mimic": mimic.FORMAT,
    "ag_news": ag_news.FORMAT,
    "glue": glue.FORMAT,
    "superglue": superglue.FORMAT,
    "mts_dialog": mts_dialog.FORMAT,
    "coqa": coqa.FORMAT,
    "xsum": xsum.FORMAT,
}
"""Every format whose documents lie in files; `datasets` may also be an id of the hub."""


def formats_of(settings: CorpusSettings) -> Mapping[str, Format]:
    """Returns every format of `FORMATS` as settings would have it read.

    Args:
        settings: Which notes of MIMIC-III tables to keep, what the text of a treebank's sentence is, what the
            documents of a plain text are, and which columns hold what; or which reader of one's own reads.
    """
    notes = partial(mimic.read, categories=settings.mimic.categories)
    sentences = partial(conllu.read, **dict(settings.conllu))
    parts = partial(texts.read, documents=settings.text.documents)
    tagged = partial(conll.read, settings=settings.conll)
    related = partial(relation_table.read, settings=settings.relation_table)
    plugged = settings.format not in {*FORMATS, "datasets", "synthetic"}
    own = {settings.format: format_of(reader_of(settings.format, settings.reader))} if plugged else {}
    return {
        **FORMATS,
        **own,
        "mimic": replace(mimic.FORMAT, read=notes),
        "conllu": replace(conllu.FORMAT, read=sentences),
        "conll": replace(conll.FORMAT, read=tagged),
        "relation_table": replace(relation_table.FORMAT, read=related),
        "text": replace(texts.FORMAT, read=parts, one_a_file=settings.text.documents == "files"),
    }


def format_of(reader: Reader) -> Format:
    """Returns the format that a reader of one's own reads."""

    def read(source: Source) -> Iterator[Document]:
        try:
            for document in reader.read(source.path, source.annotations):
                if not isinstance(document, Document):
                    raise DataError(
                        source.path,
                        f"its reader gave {type(document).__name__}, no Document",
                        code="wrong_type",
                    )
                yield document
        except FedstrataError:
            raise
        except Exception as error:  # whose text may quote a note
            name = type(reader).__name__
            raise DataError(
                source.path, f"the reader {name} has failed ({type(error).__name__})", code="failed"
            ) from error

    return Format(read, reader.suffixes, annotation_suffix=reader.annotation_suffix)


def _placed(document: Document, source: Source, numbered: str = "") -> Document:
    """Gives a document its site, its split and a unique id, made of its own or else of its number."""
    own_id = document.id or numbered
    for name, own, given in (
        ("site", document.site, source.site),
        ("split", document.metadata.get("split", ""), source.split),
    ):
        if own and given and own != given:
            message = f"document {own_id} names the {name} {own!r}"
            raise DataError(source.path, message, expected=repr(given), code="conflict")
    split = {"split": source.split} if source.split else {}
    return replace(
        document,
        id=own_id if document.site else f"{source.prefix}{own_id}",
        site=document.site or source.site,
        metadata={**document.metadata, **split},
    )


def documents_of(source: Source, format: Format) -> Iterator[Document]:
    """Yields the documents of one source, with their site, their split and their id in the corpus.

    Raises:
        DataError: The file does not follow the format.
    """
    name = stem(source.path, format.suffixes)
    # The whole source first: of one that does not follow the format there are no documents.
    documents = list(format.read(source))
    if not documents:
        raise DataError(source.path, "holds no documents", expected="at least one", code="not_enough_data")
    for number, document in enumerate(documents, start=1):
        yield _placed(document, source, f"{name}-{number}")


def read(
    path: Path,
    format: str,
    *,
    unannotated: Unannotated = "refuse",
    formats: Mapping[str, Format] = FORMATS,
    dataset: DatasetSettings = DatasetSettings(),  # noqa: B008 - frozen, so one for all calls will do
    columns: ColumnSettings = ColumnSettings(),  # noqa: B008
    part: str = "",
    annotated: bool = False,
) -> list[Document]:
    """Reads the documents of a file or folder.

    Args:
        path: A folder, or one file of it; for `datasets` also an id of the hub.
        format: One of `formats`, or `datasets`.
        unannotated: In formats with annotations in files of their own, whether to `skip` or to `keep` texts
            that have none where others have some; in `glue` and `superglue`, files without labels. By default
            such a text is refused: its annotations could be lost.
        formats: How each format is read, where other than by default (`formats_of`).
        dataset: Which part of a data set (`datasets`).
        columns: What its columns hold (`datasets`).
        part: `train`, `validation` or `test` where all of them are of that part (`data.files`), as if they
            lay in a folder of that name.
        annotated: Whether texts none of which has annotations are refused in formats with annotations in
            files of their own, unless `unannotated` keeps them; else they are the input of a prediction.

    Returns:
        The documents, sorted by path. Each one's `site` is its sub-folder, its `metadata["split"]` is
        `train`, `validation` or `test` if the folder is split, and its id begins with the sub-folders it
        lies in.

    Raises:
        ConfigurationError: There is no such format, or the settings do not fit the data.
        DataError: The path does not exist, holds nothing of the format, or a file does not follow it.
    """
    if format not in formats and format != "datasets":
        allowed = ", ".join([*formats, "datasets"])
        raise refused("data.format", f"{format!r} is none of {allowed}", "unknown_name")
    if format == "datasets":
        rows = datasets.read(str(path), dataset, columns)
        found: Iterator[tuple[Source, Document]] = (
            (source, _placed(document, _of_part(source, part))) for source, document in rows
        )
    else:
        annotated = annotated and unannotated != "keep"
        found = _from_files(Path(path), formats[format], unannotated, part, annotated)
    documents: list[Document] = []
    schemes: list[Path | None] = []
    paths: dict[str, Path] = {}
    for source, placed in found:
        if placed.id in paths:
            message = f"a second document with the id {placed.id!r}"
            raise DataError(
                source.path, message, expected=f"another id than in {paths[placed.id]}", code="duplicate"
            )
        paths[placed.id] = source.path
        documents.append(placed)
        schemes.append(source.scheme)
    if not documents:
        raise DataError(path, "holds no documents", expected="at least one", code="not_enough_data")
    read_scheme = formats[format].annotates if format in formats else None
    return documents if read_scheme is None else _by_scheme(documents, schemes, read_scheme)


def _by_scheme(
    documents: Iterable[Document],
    schemes: Sequence[Path | None],
    annotates: Callable[[Path], frozenset[str] | None],
) -> list[Document]:
    """Marks what somebody looked for in documents: what their schemes name, and what is annotated beside it.

    Args:
        documents: The documents.
        schemes: What says so of each of them; none of those of which nothing does.
        annotates: Returns what a scheme names; none if it says nothing.
    """
    together: dict[Path | None, list[Document]] = {}
    for document, scheme in zip(documents, schemes, strict=True):
        together.setdefault(scheme, []).append(document)
    named: dict[Path | None, frozenset[str] | None] = {None: None}
    for scheme, own in together.items():
        if scheme is not None and (names := annotates(scheme)) is not None:
            named[scheme] = names.union(types_of(own, "spans"), types_of(own, "relations"))
    return [
        document if (names := named.get(scheme)) is None else replace(document, annotates=names)
        for document, scheme in zip(documents, schemes, strict=True)
    ]


def read_parts(files: Files, format: str, *, setting: str, **options: Any) -> list[Document]:
    """Reads the files and folders of each part of a corpus (`data.files`).

    Args:
        files: What is to be read of each part.
        format: As for `read`.
        setting: What names them, for messages.
        **options: As for `read`.

    Returns:
        The documents, part by part. Their ids begin with the part, as those of files in a folder of its name
        do; one that names its own site keeps its id.

    Raises:
        ConfigurationError: With everything that is wrong with any of them.
    """
    documents: dict[str, Document] = {}
    problems: list[Problem] = []
    for part, place in listed(files):
        try:
            if not (path := Path(place).expanduser()).exists():
                raise DataError(path, "no such file or folder", code="not_found")
            for document in read(path, format, part=part, **options):
                if documents.setdefault(document.id, document) is not document:
                    message = f"a second document with the id {document.id!r}"
                    raise DataError(
                        path, message, expected="another id in each of data.files", code="duplicate"
                    )
        except DataError as error:
            problems += [Problem(f"{setting}.{part}", str(each), code=each.code) for each in error.each]
    refuse(problems)
    return list(documents.values())


def read_prompts(path: Path) -> list[Document]:
    """Reads prompts: every line of a text that is not blank, or the `text` of JSON lines.

    Raises:
        DataError: The file is neither, or cannot be read.
    """
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return read(path, "jsonl")
    if path.suffix != ".txt":
        raise DataError(
            path,
            "is no file of prompts",
            expected="*.txt, a prompt in each line, or *.jsonl",
            code="wrong_format",
        )
    lines = numbered_lines(read_text(path))
    return [Document(f"{path.stem}-{number}", line.strip()) for number, line in lines if line.strip()]


def _of_part(source: Source, part: str) -> Source:
    """Returns a source as one of a part of the split, given that none or the same is told by its name."""
    if part and source.split not in ("", part):
        raise DataError(
            source.path, f"names the split {source.split!r}", expected=repr(part), code="conflict"
        )
    return replace(source, split=part, prefix=f"{part}/{source.prefix}") if part else source


def _from_files(
    path: Path, layout: Format, unannotated: Unannotated, part: str, annotated: bool
) -> Iterator[tuple[Source, Document]]:
    errors: list[DataError] = []
    sources = find_sources(path, layout, unannotated=unannotated)
    if annotated and layout.annotation_suffix and not any(each.annotations for each in sources):
        count = f"holds {len(sources)} texts and no *{layout.annotation_suffix} for any of them"
        beside = f"{stem(sources[0].path, layout.suffixes)}{layout.annotation_suffix} and so on"
        otherwise = "data.format: text, or data.unannotated: keep, if nobody has annotated them"
        raise DataError(
            path,
            count,
            expected=f"{beside} beside them, which may be empty; or {otherwise}",
            code="not_annotated",
        )
    for found in sources:
        try:
            source = _of_part(found, part)
            for document in documents_of(source, layout):
                yield source, document
        except DataError as error:
            errors += error.each
            if len(errors) >= TOLD:
                break
    require_sound(errors)
