"""Plain texts: a document a file or, by `data.text.documents`, several.

`paragraphs` are set apart by blank lines. With `headings` a document begins at each line `= Title =`, as the
articles of WikiText do; its sections, `= = Section = =`, begin none.

A corpus of texts is laid out like any other (`folders.py`). The input of a prediction is not: there texts may
lie at any depth, and the names of folders mean nothing (`find_texts`).
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Literal

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import ABOUT, Format, Source, read_text, stem

Documents = Literal["files", "paragraphs", "headings"]

_SUFFIXES = (".txt", ".txt.gz")
_HEADING = re.compile(r"^[ \t]*=[ \t]+[^=\s](?:[^\n]*[^=\s])?[ \t]+=[ \t]*\r?$", flags=re.MULTILINE)
_BLANK_LINES = re.compile(r"\n[ \t\r]*\n\s*")


def find_texts(path: Path, suffixes: tuple[str, ...] = _SUFFIXES) -> list[Source]:
    """Finds the texts at a path.

    Args:
        path: A file of any name, or a folder; hidden files and folders are passed over.
        suffixes: How the names of texts in a folder end.

    Returns:
        The texts, sorted by path. In a folder, each one's prefix is the sub-folder it lies in.

    Raises:
        DataError: There is no such path, or no text in it.
    """
    if path.is_file():
        return [Source(path)]
    if not path.is_dir():
        raise DataError(path, "no such file or folder", expected=_patterns(suffixes), code="not_found")
    sources = []
    for file in sorted(path.rglob("*")):
        place = file.relative_to(path)
        hidden = any(part.startswith(".") for part in place.parts)
        if not hidden and file.name.lower().endswith(suffixes) and file.is_file():
            folder = place.parent.as_posix()
            sources.append(Source(file, prefix="" if folder == "." else f"{folder}/"))
    if not sources:
        raise DataError(
            path, "holds no texts", expected=f"{_patterns(suffixes)}, at any depth", code="not_enough_data"
        )
    return sources


def _patterns(suffixes: tuple[str, ...]) -> str:
    return ", ".join(f"*{suffix}" for suffix in suffixes if not suffix.endswith(".gz"))


def read(source: Source, documents: Documents = "files") -> list[Document]:
    """Reads one file.

    Args:
        source: The file; `.gz` is decompressed.
        documents: What a document is.

    Returns:
        Its documents without annotations. The id of a file's only one is the file's name without the suffix.
        Blank documents are left out where they are parts of a file.

    Raises:
        DataError: It cannot be read or is not UTF-8.
    """
    text = read_text(source.path)
    if documents == "files":
        return [Document(stem(source.path, _SUFFIXES), text)]
    if documents == "paragraphs":
        parts = _BLANK_LINES.split(text)
    else:
        cuts = [0, *(match.start() for match in _HEADING.finditer(text)), len(text)]
        parts = [text[start:end] for start, end in pairwise(cuts)]
    return [Document("", part.strip("\r\n")) for part in parts if part.strip()]


FORMAT = Format(read, _SUFFIXES, passed_over=ABOUT, one_a_file=True)
