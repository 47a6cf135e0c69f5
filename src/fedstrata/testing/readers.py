"""The contract of a reader."""

from __future__ import annotations

import gzip
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedstrata.api.corpora import read
from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.core.settings.reader import READERS, Reader, reader_of
from fedstrata.data.readers import FORMATS, format_of
from fedstrata.data.readers.files import Format, is_compressed
from fedstrata.data.readers.folders import find_sources
from fedstrata.data.writers import write
from fedstrata.testing.contract import Contract

LONGEST_QUOTE = 20
"""Characters of a note that a message may have by chance."""
MOST_LINES = 40
"""Lines of a file that are broken, at most."""
_MARK = b"\xef\xbb\xbf"


def check_reader(
    reader: Reader | str,
    path: str | Path,
    documents: Sequence[Document] | None = None,
    **settings: Any,
) -> list[str]:
    """Checks a reader of one's own on files of its format.

    All files are read twice. Copies of one of them and of the files beside it are read in sub-folders, with a
    byte order mark, with line ends of Windows, compressed where the reader takes `.gz`, and broken: emptied,
    cut short, without a line, with a line twice, with two lines in one, not in UTF-8 and without the signs
    between fields.

    Args:
        reader: The reader with its settings, or the name of a format.
        path: A file or folder of its format, with at least one document.
        documents: What the files mean, as `fedstrata.read` gives it; not looked at if none.
        **settings: As for `fedstrata.read`.

    Returns:
        The clauses that hold, in words.

    Raises:
        ContractError: Clauses do not hold; the message has all of them with the reason.
        DataError: The files cannot be read at all.
    """
    name = reader if isinstance(reader, str) else type(reader).__name__
    place, contract = Path(path).expanduser(), Contract(f"reader {name}")
    found = read(place, reader, **settings)
    if isinstance(reader, Reader):
        with contract.clause("it describes itself as a configuration"):
            if reader_of(READERS.name_of(type(reader)), reader.model_dump()) != reader:
                raise AssertionError("its settings describe another reader")
    with contract.clause("it gives the same documents each time"):
        _require_same(read(place, reader, **settings), found)
    if documents is not None:
        with contract.clause("its documents are those that are expected"):
            _require_same(found, documents)
    with contract.clause("nothing of a document is lost in a file of JSON lines"):
        _require_written(found)
    with tempfile.TemporaryDirectory() as folder:
        files = _files(place, _layout(reader, settings))
        _check_copies(contract, _Copies(Path(folder), reader, settings, *files), found)
    return contract.require()


def _check_copies(contract: Contract, copies: _Copies, found: Sequence[Document]) -> None:
    """Looks at the clauses that copies of files are changed for."""
    copies.read(copies.files)
    with contract.clause("sub-folders are sites, in the order of their names"):
        _require_sites(copies)
    with contract.clause("a byte order mark is no part of a text"):
        _require_same(copies.changed(lambda content: _MARK + content.removeprefix(_MARK)), copies.read())
    with contract.clause("line ends of Windows change nothing else"):
        _require_same(copies.changed(_for_windows), copies.read(), plain=True)
    if any(is_compressed(Path(f"x{suffix}")) for suffix in copies.layout.suffixes):
        with contract.clause("a compressed file gives what it holds, and tells that it is damaged"):
            _require_compressed(copies)
    with contract.clause("it tells which file is broken, and neither messages nor the log quote a note"):
        _require_told(copies, found)


def _layout(reader: Reader | str, settings: Mapping[str, Any]) -> Format:
    if isinstance(reader, str):
        return FORMATS.get(reader) or format_of(reader_of(reader, settings.get("reader", {})))
    return format_of(reader)


def _files(place: Path, layout: Format) -> tuple[Format, dict[str, bytes], list[str]]:
    """Returns the first source's files and those beside it by name, and the names of its own; none packed."""
    sources = find_sources(place, layout)
    first = next((each for each in sources if not is_compressed(each.path)), sources[0])
    own = [first.path, *filter(None, [first.annotations]), *first.further.values()]
    others = {path for each in sources for path in (each.path, each.annotations, *each.further.values())}
    beside = [] if place.is_file() else [path for path in first.path.parent.iterdir() if path.is_file()]
    kept = {*own, *(path for path in beside if path not in others)}
    files = {path.name: path.read_bytes() for path in sorted(kept)}
    if is_compressed(first.path):
        plain = first.path.name.removesuffix(".gz")
        files[plain] = gzip.decompress(files.pop(first.path.name))
        return layout, files, [plain, *(path.name for path in own[1:])]
    return layout, files, [path.name for path in own]


@dataclass(frozen=True)
class _Copies:
    """Copies of some files, which are changed and read.

    Attributes:
        folder: Where they lie.
        reader: The reader, or the name of its format.
        settings: How it is read.
        layout: The format.
        files: What each file holds, by name.
        own: Those of them that are of one source: the text and its annotations.
    """

    folder: Path
    reader: Reader | str
    settings: Mapping[str, Any]
    layout: Format
    files: Mapping[str, bytes]
    own: Sequence[str]

    def read(self, changes: Mapping[str, bytes | None] | None = None) -> list[Document]:
        """Reads the files with changes, which are undone; a file changed to nothing is not there."""
        changes = changes or {}
        try:
            self._write(changes)
            return read(self.folder, self.reader, **self.settings)
        finally:
            self._write({name: self.files.get(name) for name in changes})

    def _write(self, files: Mapping[str, bytes | None]) -> None:
        for name, content in files.items():
            if content is None:
                (self.folder / name).unlink(missing_ok=True)
            else:
                (self.folder / name).write_bytes(content)

    def in_folders(self, *names: str) -> list[Document]:
        """Reads copies of the files in several sub-folders."""
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                inside = replace(self, folder=Path(folder, name))
                inside.folder.mkdir()
                inside._write(self.files)
            return read(folder, self.reader, **self.settings)

    def changed(self, change: Callable[[bytes], bytes]) -> list[Document]:
        """Reads the files of the source after a change of each."""
        return self.read({name: change(self.files[name]) for name in self.own})


def _for_windows(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _require_same(found: Sequence[Document], expected: Sequence[Document], *, plain: bool = False) -> None:
    """Compares documents; `plain` compares words, which may stand elsewhere for line ends in the text."""
    if len(found) != len(expected):
        raise AssertionError(f"there are {len(found)} documents, and not {len(expected)}")
    for one, other in zip(found, expected, strict=True):
        if (_plain(one) != _plain(other)) if plain else (one != other):
            raise AssertionError(f"document {one.id!r} is not {other.id!r} or not the same")


def _plain(document: Document) -> Document:
    """Returns a document with plain line ends, its spans moved accordingly."""

    def moved(offset: int) -> int:
        return offset - document.text.count("\r\n", 0, offset)

    spans = tuple(
        replace(
            span,
            start=moved(span.start),
            end=moved(span.end),
            fragments=tuple((moved(start), moved(end)) for start, end in span.fragments),
        )
        for span in document.spans
    )
    texts = [text.replace("\r\n", "\n") for text in document.texts]
    pair = texts[1] if len(texts) > 1 else None
    return replace(document, text=texts[0], text_pair=pair, spans=spans)


def _require_written(documents: Sequence[Document]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "written")
        write(documents, out, "jsonl")
        again = {_key(document): document for document in read(out, "jsonl")}
    for document in documents:
        same = again.get(_key(document))
        if same is None or replace(same, id=document.id) != document:
            raise AssertionError(f"document {document.id!r} is another afterwards")


def _key(document: Document) -> tuple[str, str]:
    """Returns what a document is called within its site, whatever folders it has been read from."""
    return document.site, document.id.rpartition("/")[2]


def _require_sites(copies: _Copies) -> None:
    alone = copies.read()
    if any(document.site for document in alone):
        return  # which it says itself
    expected = [
        replace(document, id=f"{site}/{document.id}", site=site)
        for site in ("north", "south")
        for document in alone
    ]
    _require_same(copies.in_folders("south", "north"), expected)


def _require_compressed(copies: _Copies) -> None:
    name = copies.own[0]
    content = gzip.compress(copies.files[name], mtime=0)
    _require_same(copies.read({name: None, f"{name}.gz": content}), copies.read())
    for damaged in (content[:-9], copies.files[name]):
        try:
            copies.read({name: None, f"{name}.gz": damaged})
        except DataError as error:
            if error.path.name != f"{name}.gz":
                raise AssertionError(f"it names {error.path.name} in place of the damaged file") from None
        else:
            raise AssertionError("it reads a damaged file")


def _require_told(copies: _Copies, documents: Sequence[Document]) -> None:
    """Breaks the files one by one; a way that leaves a readable file says nothing."""
    texts = [text for document in documents for text in document.texts]
    for name in copies.own:
        for changed in _broken(copies.files[name]):
            with _heard() as said:
                try:
                    copies.read({name: changed})
                except (DataError, ConfigurationError) as error:
                    said.append(str(error))
                    if isinstance(error, DataError) and error.path.name not in copies.files:
                        _require_folder(error, copies)
            for message in said:
                _require_no_quote(message, texts)


def _require_folder(error: DataError, copies: _Copies) -> None:
    """Holds that an error which names no file is of a folder without documents."""
    if error.code not in ("not_enough_data", "not_found"):
        raise AssertionError(f"it names {error.path.name} in place of the broken file")


def _broken(content: bytes) -> Iterator[bytes]:
    lines = content.splitlines(keepends=True)
    middle = len(content) // 2
    yield b""
    yield content[:middle]
    yield content[:middle] + b"\xff" + content[middle:]
    yield b"\xff\xfe" + content
    for sign in (b"\n", b"\t", b",", b"|", b'"', b":", b"=", b" "):
        if sign in content:
            yield content.replace(sign, b"")
    for number in range(min(len(lines), MOST_LINES)):
        before, line, after = lines[:number], lines[number], lines[number + 1 :]
        for changed in (b"", line + line, line[: len(line) // 2] + b"\n", line.rstrip() + b" "):
            yield b"".join([*before, changed, *after])


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Gives what is logged meanwhile."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger().removeHandler(handler)


def _require_no_quote(message: str, texts: Sequence[str]) -> None:
    message = re.sub(r"\s+", " ", message)
    pieces = {message[start : start + LONGEST_QUOTE] for start in range(len(message) - LONGEST_QUOTE + 1)}
    for text in texts:
        plain = re.sub(r"\s+", " ", text)
        if any(piece in plain for piece in pieces):
            raise AssertionError("a message or the log quotes the text of a document")
