"""What every reader shares: where a document comes from, and decoding a file without losing an offset."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.error_codes import code_of_reading
from fedstrata.core.errors import DataError

BYTE_ORDER_MARK = "\ufeff"
ABOUT = (
    *("readme", "read_me", "license", "licence", "copying", "notice", "changelog", "changes", "contributing"),
    *("authors", "citation"),
)
"""How files are called, in formats of a text a file, that say what a folder holds. No other is guessed."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read documents from, and its place in the corpus.

    Attributes:
        path: The file that holds the text.
        annotations: The file beside it that holds the annotations; none for a text that has none, and for the
            formats that keep both in one file.
        further: Files beside it with annotations of other kinds, by how their names end (`.rel`).
        lacks: The endings of such files that others of the corpus have and this text has not.
        site: The site its sub-folder stands for; empty if none does.
        split: `train`, `validation` or `test`; empty if the corpus is not split.
        prefix: What makes the ids of its documents unique in the corpus, for example `site-1/`.
        scheme: The file of the corpus, in its folder or above it, that says what is annotated or of which
            part of a split a document is; none if there is none.
    """

    path: Path
    annotations: Path | None = None
    further: Mapping[str, Path] = field(default_factory=dict, hash=False)
    lacks: frozenset[str] = frozenset()
    site: str = ""
    split: str = ""
    prefix: str = ""
    scheme: Path | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: its reader, and how its files are laid out in a folder.

    Attributes:
        read: Reads one source; a file whose name ends in `.gz` is decompressed. The ids it gives are unique
            within that source; a document without one is called after the file, and its number in it.
        suffixes: How the names of the files that hold text end, in lower case.
        annotation_suffix: How the names of the annotation files end; empty if the text file holds them.
        further_suffixes: How the names of files with annotations of other kinds end, which a text may have or
            not.
        text_folder: The sub-folder that may hold the texts alone; empty if the format knows none.
        annotation_folders: The names the sub-folder of annotations beside `text_folder` may have; files with
            a further suffix lie in one of that name, without the dot.
        table: The name, without its suffix and in lower case, of the one file of a folder that is a source of
            documents, others being tables that are joined with it; empty if every file is.
        passed_over: The names, without their suffix and in lower case, of files of a folder that are no
            documents, unless there are annotations of them.
        one_a_file: Whether each file is one document.
        scheme: The name of a file of a folder that says what is annotated in all below it, or how this is
            split; empty if there is no such file.
        annotates: Returns the types and labels that such a file names; none if it says nothing of them.
        has_labels: Whether each question or row of a source has a label, for the formats some of whose files
            have none; not given where all have.
    """

    read: Callable[[Source], Iterable[Document]]
    suffixes: tuple[str, ...]
    annotation_suffix: str = ""
    further_suffixes: tuple[str, ...] = ()
    text_folder: str = ""
    annotation_folders: tuple[str, ...] = ()
    table: str = ""
    passed_over: tuple[str, ...] = ()
    one_a_file: bool = False
    scheme: str = ""
    annotates: Callable[[Path], frozenset[str] | None] | None = None
    has_labels: Callable[[Source], Iterable[bool]] | None = None

    @property
    def looked_for(self) -> str:
        """The files of this format, in words, for messages."""
        names = ", ".join(f"{self.table.upper() or '*'}{suffix}" for suffix in self.suffixes)
        return f"{names} with *{self.annotation_suffix}" if self.annotation_suffix else names


def stem(path: Path, suffixes: tuple[str, ...]) -> str:
    """Returns a file's name without its suffix, `.gz` included."""
    name = path.name
    for suffix in sorted(suffixes, key=len, reverse=True):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return path.stem


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turns what goes wrong while a file is read or decompressed into a `DataError` that names it."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            path, f"cannot be decompressed: {error}", expected="a whole gzip file", code="damaged"
        ) from None
    except OSError as error:
        raise DataError(
            path,
            f"cannot be read: {error.strerror}",
            code=code_of_reading(error),
        ) from None


def is_compressed(path: Path) -> bool:
    """Whether a file's name says that it is compressed with gzip."""
    return path.name.lower().endswith(".gz")


def read_text(path: Path, *, keep_mark: bool = False) -> str:
    """Decodes a UTF-8 file, compressed if its name ends in `.gz`; line ends stay as they are.

    Args:
        path: The file.
        keep_mark: Keep a byte order mark as the first character.

    Returns:
        Its characters.

    Raises:
        DataError: It cannot be read or decompressed, or is not UTF-8.
    """
    with file_errors(path):
        content = path.read_bytes()
        if is_compressed(path):
            content = gzip.decompress(content)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            path, f"byte {error.start} is not UTF-8", line=line, expected="UTF-8 text", code="not_utf8"
        ) from None
    return text if keep_mark else text.removeprefix(BYTE_ORDER_MARK)


def streamed_lines(path: Path) -> Iterator[str]:
    r"""Yields the lines of a UTF-8 file that may be too large for memory, each with its line end.

    A line ends at `\n` alone, so that a `\r` within a quoted field survives.

    Args:
        path: The file; `.gz` is decompressed on the way.

    Raises:
        DataError: It cannot be read or decompressed, or a line is not UTF-8.
    """
    begin = 0
    with file_errors(path), gzip.open(path) if is_compressed(path) else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                message = f"byte {begin + error.start} is not UTF-8"
                raise DataError(path, message, line=number, expected="UTF-8 text", code="not_utf8") from None
            begin += len(line)
            yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    r"""Yields each line and its number, from 1; a line ends at `\n` or `\r\n` and nowhere else."""
    for number, line in enumerate(text.split("\n"), start=1):
        yield number, line.removesuffix("\r")


def filled_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file that are not blank, each with its number; `.gz` is decompressed."""
    return (item for item in numbered_lines(read_text(path)) if item[1].strip())


def blocks(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Yields the lines between blank lines together, each with its number; `.gz` is decompressed."""
    for filled, lines in groupby(numbered_lines(read_text(path)), key=lambda item: bool(item[1].strip())):
        if filled:
            yield list(lines)
