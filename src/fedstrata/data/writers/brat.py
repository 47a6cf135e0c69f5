"""BRAT stand-off: a `.txt` and an `.ann` file a document, which give back its spans and relations.

A mention over a line break or a tab is written in pieces around it, as brat itself writes it; the reader
joins pieces with white space between them. Labels are spelled as `fedstrata.data.readers.labels` says; a
relation is `LABEL Arg1:tail Arg2:head`.
"""

import re
from collections.abc import Iterable, Iterator

from fedstrata.core.documents import Document
from fedstrata.data.readers.files import BYTE_ORDER_MARK
from fedstrata.data.writers.layout import FileLabels, WrittenFile, by_folder, file_name_of

_IN_A_COLUMN, _BREAKS = re.compile(r"[^\t\n\r]+"), re.compile(r"[\t\n\r]")


def lines_of(document: Document, labels: FileLabels) -> Iterator[str]:
    """Yields the lines of a document's `.ann` file."""
    for number, span in enumerate(document.spans, start=1):
        pieces = [
            found.span()
            for start, end in span.fragments or ((span.start, span.end),)
            for found in _IN_A_COLUMN.finditer(document.text, start, end)
        ] or [(span.start, span.end)]
        offsets = ";".join(f"{start} {end}" for start, end in pieces)
        quote = " ".join(document.text[start:end] for start, end in pieces)
        yield f"T{number}\t{labels(span.label)} {offsets}\t{_BREAKS.sub(' ', quote)}\n"
    for number, relation in enumerate(document.relations, start=1):
        yield f"R{number}\t{labels(relation.label)} Arg1:T{relation.tail + 1} Arg2:T{relation.head + 1}\n"


def text_of(document: Document) -> str:
    """Returns what a document's `.txt` file holds.

    A text that itself begins with a byte order mark gets a second one, since readers take the first off.
    """
    return BYTE_ORDER_MARK + document.text if document.text.startswith(BYTE_ORDER_MARK) else document.text


def files(documents: Iterable[Document]) -> Iterator[WrittenFile]:
    """Yields the files of a corpus; see `layout.Writer`.

    Labels of documents and metadata other than the split have no place in the format.

    Raises:
        DataError: An id cannot name a file, or two labels would be written alike.
    """
    labels = FileLabels()
    for folder, group in by_folder(documents).items():
        for document in group:
            name = file_name_of(document)
            yield folder / f"{name}.txt", text_of(document)
            yield folder / f"{name}.ann", "".join(lines_of(document, labels))
