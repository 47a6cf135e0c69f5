"""The contract of a reader."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedstrata.api.corpora import read
from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.core.settings.reader import READERS, Reader, reader_of
from fedstrata.data.writers import write
from fedstrata.testing.contract import Contract

LONGEST_QUOTE = 20
"""Characters of a note that a message may have by chance."""


def check_reader(reader: Reader, path: str | Path) -> list[str]:
    """Checks a reader of one's own on files of its format.

    It must describe itself as a configuration; find its files by their suffixes; give the same documents each
    time, with unique ids and annotations that lie in their texts; and tell what is wrong with a file that is
    cut short or empty, naming the file and quoting nothing of a note.

    Args:
        reader: The reader with its settings.
        path: A file or folder of its format, with at least one document.

    Returns:
        The clauses that hold, in words.

    Raises:
        ContractError: Clauses do not hold; the message has all of them with the reason.
        DataError: The files cannot be read at all.
    """
    place, contract = Path(path), Contract(f"reader {type(reader).__name__}")
    documents = read(place, reader)
    with contract.clause("it describes itself as a configuration"):
        if reader_of(READERS.name_of(type(reader)), reader.model_dump()) != reader:
            raise AssertionError("its settings describe another reader")
    with contract.clause("it gives the same documents each time"):
        if read(place, reader) != documents:
            raise AssertionError("a second reading gives others")
    with contract.clause("nothing of a document is lost in a file of JSON lines"):
        _require_written(documents)
    with contract.clause("it tells what is wrong with a broken file, and quotes no note"):
        _require_told(reader, place, documents)
    return contract.require()


def _require_written(documents: Sequence[Document]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "written")
        write(documents, out, "jsonl")
        again = {_key(document): document for document in read(out, "jsonl")}
    for document in documents:
        same = again.get(_key(document))
        if same is None or (same.text, same.spans, same.relations, same.labels) != (
            document.text,
            document.spans,
            document.relations,
            document.labels,
        ):
            raise AssertionError(f"document {document.id!r} is another afterwards")


def _key(document: Document) -> tuple[str, str]:
    """Returns what a document is called within its site, whatever folders it has been read from."""
    return document.site, document.id.rpartition("/")[2]


def _require_told(reader: Reader, place: Path, documents: Sequence[Document]) -> None:
    """Breaks one file in several ways; a way that leaves a readable file says nothing."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    ends = (reader.annotation_suffix or reader.suffixes[0]).removesuffix(".gz")
    broken = next((path for path in files if path.name.lower().endswith(ends)), None)
    if broken is None:
        raise AssertionError(f"no file ends in {ends}")
    content = broken.read_bytes()
    for changed in (b"", content[: len(content) // 2], b"\xff\xfe" + content, content.replace(b"\n", b"")):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, place.name)
            shutil.copy(place, copy) if place.is_file() else shutil.copytree(place, copy)
            target = copy if place.is_file() else copy / broken.relative_to(place)
            target.write_bytes(changed)
            try:
                read(copy, reader)
            except (DataError, ConfigurationError) as error:
                _require_no_quote(str(error), documents)


def _require_no_quote(message: str, documents: Sequence[Document]) -> None:
    for document in documents:
        for text in document.texts:
            for start in range(0, max(1, len(text) - LONGEST_QUOTE), LONGEST_QUOTE):
                piece = text[start : start + LONGEST_QUOTE]
                if len(piece.strip()) == LONGEST_QUOTE and piece in message:
                    raise AssertionError(f"a message quotes the text of document {document.id!r}")
