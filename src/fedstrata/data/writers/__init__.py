"""Writers of annotated text: one file a format, one function for all of them.

`write(documents, folder, "brat")` makes a folder that `fedstrata.data.readers.read` reads back, sites and
splits included.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, DataError, Problem
from fedstrata.core.files import new_folder
from fedstrata.data.writers import brat, conll, i2b2, jsonl, mimic
from fedstrata.data.writers.layout import Writer

FORMATS: dict[str, Writer] = {
    "i2b2": i2b2.files,
    "brat": brat.files,
    "conll": conll.files,
    "jsonl": jsonl.files,
    "mimic": mimic.files,
}
"""Every format that can be written: a function from documents to the files they become."""


def _single_texts(documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        if document.text_pair is not None:
            message = "is a pair of texts, and this format holds single ones"
            raise DataError(f"document {document.id!r}", message, expected="the format jsonl")
        yield document


def write(documents: Iterable[Document], folder: Path, format: str) -> None:
    """Writes a corpus into a new folder; if anything fails, nothing is left behind.

    Args:
        documents: The documents.
        folder: The folder; it is made, and must be empty if it exists.
        format: One of `FORMATS`.

    Raises:
        ConfigurationError: There is no such format, or the folder is not empty.
        DataError: The format cannot hold one of the documents.
    """
    if format not in FORMATS:
        message = f"the format {format!r} is none of {', '.join(FORMATS)}"
        raise ConfigurationError([Problem("", message)])
    with new_folder(Path(folder)) as unfinished:
        for path, text in FORMATS[format](documents if format == "jsonl" else _single_texts(documents)):
            target = unfinished / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.write_bytes(text.encode())
            except UnicodeEncodeError as error:
                message = f"character {error.start} is half a surrogate pair and cannot be written as UTF-8"
                raise DataError(str(path), message) from None
