"""What every writer shares: where a document goes, and the names it may have there.

A document lies in `DIR/SITE/SPLIT/`, as far as it has a site and a split; the readers give both back.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import PurePosixPath
from typing import TypeAlias

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.folders import SPLITS, split_named, split_within
from fedstrata.data.readers.labels import label_to_file

WrittenFile = tuple[PurePosixPath, str]
"""A file to write: its path below the target folder, and its text."""
Writer: TypeAlias = Callable[[Iterable[Document]], Iterator[WrittenFile]]
"""The `files` of a format: yields path and text of each file that documents become, or raises DataError."""


def _split_of(document: Document) -> str:
    return document.metadata.get("split", "")


def _checked(name: str, what: str) -> str:
    if {"/", "\\"} & set(name) or name.startswith(".") or not name.isprintable() or len(name.encode()) > 200:
        expected = "at most 200 bytes, no stroke, no leading dot, no line break"
        raise DataError(what, "cannot name a file or folder", expected=expected, code="wrong_form")
    return name


def name_of(document: Document) -> str:
    """Returns a document's id without the site and split in it, which its folder gives back.

    Raises:
        DataError: The id holds nothing, or a line break or other character that cannot be printed.
    """
    *folders, name = document.id.split("/")
    if not name.strip() or not document.id.isprintable():
        raise DataError(
            f"document {document.id!r}",
            "its id cannot be written",
            expected="printable characters",
            code="wrong_form",
        )
    sites, split = set(document.site.split("/")), _split_of(document)
    kept = [part for part in folders if part not in sites and (split_within(part) or part) != split]
    return "/".join([*kept, name])


def file_name_of(document: Document) -> str:
    """Returns the name, without a suffix, of a document that has a file of its own.

    Raises:
        DataError: Its id cannot name a file.
    """
    return _checked(name_of(document), f"document {document.id!r}")


def _folder_of(document: Document) -> PurePosixPath:
    sites, split = [part for part in document.site.split("/") if part], _split_of(document)
    for part in sites:
        if split_named(part):
            raise DataError(
                f"site {part!r}", "would be read as a split", expected="another name", code="reserved"
            )
    if split and split not in SPLITS.values():
        raise DataError(
            f"split {split!r}", "is none", expected="train, validation or test", code="unknown_name"
        )
    return PurePosixPath(*(_checked(part, f"site {part!r}") for part in sites), split)


def by_folder(documents: Iterable[Document]) -> dict[PurePosixPath, list[Document]]:
    """Groups a corpus by the folder of each document's site and split, in the order the documents come.

    Raises:
        DataError: A site or split cannot name a folder, two documents would have one name there, or only some
            documents have a site or a split, so that the folder could not be read back.
    """
    groups: dict[PurePosixPath, list[Document]] = {}
    names: set[PurePosixPath] = set()
    for document in documents:
        folder = _folder_of(document)
        name = folder / name_of(document)
        if name in names:
            raise DataError(
                f"document {document.id!r}", f"is the second one called {str(name)!r}", code="duplicate"
            )
        names.add(name)
        groups.setdefault(folder, []).append(document)
    corpus = [document for group in groups.values() for document in group]
    sites = {document.site for document in corpus}
    # Beside each other, names of sites could be taken for splits.
    for part in sorted({part for site in sites for part in site.split("/")}) if len(sites) > 1 else []:
        if split_within(part):
            raise DataError(
                f"site {part!r}", "could be read as a split", expected="another name", code="reserved"
            )
    for what, value_of in (("site", attrgetter("site")), ("split", _split_of)):
        values = [value_of(document) for document in corpus]
        if any(values) and not all(values):
            document = corpus[values.index("")]
            raise DataError(
                f"document {document.id!r}", f"has no {what}, and others have one", code="missing"
            )
    return groups


class FileLabels:
    """Labels in a format that allows no white space in them; refuses two that would become one."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def __call__(self, label: str) -> str:
        """Returns the label as the file spells it."""
        written = label_to_file(label)
        if not written:
            raise DataError(
                f"label {label!r}", "cannot be written", expected="a label that is not blank", code="missing"
            )
        first = self._labels.setdefault(written, label)
        if first != label:
            raise DataError(
                f"label {label!r}", f"would be written as {written!r}, as is {first!r}", code="duplicate"
            )
        return written
