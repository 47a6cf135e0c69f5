"""Writers of annotated text: one file a format, one function for all of them.

`write(documents, folder, "brat")` makes a folder that `fedstrata.data.readers.read` reads back, sites and
splits included.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError, refused
from fedstrata.core.files import new_folder
from fedstrata.data.patients import COLUMNS
from fedstrata.data.writers import brat, conll, i2b2, jsonl, mimic
from fedstrata.data.writers.layout import Writer, WrittenFile, by_folder, name_of

FORMATS: dict[str, Writer] = {
    "i2b2": i2b2.files,
    "brat": brat.files,
    "conll": conll.files,
    "jsonl": jsonl.files,
    "mimic": mimic.files,
}
"""Every format that can be written: a function from documents to the files they become."""
WITHOUT_PATIENTS = ("i2b2", "brat", "conll")
"""Formats that have no place for whose a document is."""
PATIENTS = "patients.csv"
"""The file beside such a corpus that says so, as `data.patients` reads it."""


def _single_texts(documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        if document.text_pair is not None:
            message = "is a pair of texts, and this format holds single ones"
            raise DataError(
                f"document {document.id!r}", message, expected="the format jsonl", code="not_supported"
            )
        yield document


def _patients(documents: Iterable[Document]) -> Iterator[WrittenFile]:
    """Yields the file of patients, which calls documents as readers of their folders will."""
    file = io.StringIO(newline="")
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    for place, group in by_folder(documents).items():
        table.writerows(
            (place / name_of(each), each.metadata["patient"].strip()) for each in group if each.patient
        )
    yield PurePosixPath(PATIENTS), file.getvalue()


def write(documents: Sequence[Document], folder: Path, format: str, *, patients: bool = False) -> None:
    """Writes a corpus into a new folder; if anything fails, nothing is left behind.

    Args:
        documents: The documents.
        folder: The folder; it is made, and must be empty if it exists.
        format: One of `FORMATS`.
        patients: Whether a format of `WITHOUT_PATIENTS` gets a file beside it that says whose documents these
            are.

    Raises:
        ConfigurationError: There is no such format, or the folder is not empty.
        DataError: The format cannot hold one of the documents.
    """
    if format not in FORMATS:
        message = f"the format {format!r} is none of {', '.join(FORMATS)}"
        raise refused("", message, "unknown_name")
    written = FORMATS[format](documents if format == "jsonl" else _single_texts(documents))
    if patients and format in WITHOUT_PATIENTS:
        written = chain(written, _patients(documents))
    with new_folder(Path(folder)) as unfinished:
        for path, text in written:
            target = unfinished / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.write_bytes(text.encode())
            except UnicodeEncodeError as error:
                message = f"character {error.start} is half a surrogate pair and cannot be written as UTF-8"
                raise DataError(str(path), message, code="not_utf8") from None
