"""Plain texts: every `.txt` file below a folder, whatever lies beside it; what a prediction is made for.

Unlike a corpus (`folders.py`), texts may lie at any depth, and the names of folders mean nothing.
"""

from __future__ import annotations

from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, read_text, stem

_SUFFIXES = (".txt",)


def find_texts(path: Path) -> list[Source]:
    """Finds the texts at a path.

    Args:
        path: A file of any name, or a folder; hidden files and folders are passed over.

    Returns:
        The texts, sorted by path. In a folder, each one's prefix is the sub-folder it lies in.

    Raises:
        DataError: There is no such path, or no text in it.
    """
    if path.is_file():
        return [Source(path)]
    if not path.is_dir():
        raise DataError(path, "no such file or folder", expected="*.txt")
    sources = []
    for file in sorted(path.rglob("*")):
        place = file.relative_to(path)
        hidden = any(part.startswith(".") for part in place.parts)
        if not hidden and file.suffix.lower() in _SUFFIXES and file.is_file():
            folder = place.parent.as_posix()
            sources.append(Source(file, prefix="" if folder == "." else f"{folder}/"))
    if not sources:
        raise DataError(path, "holds no texts", expected="*.txt, at any depth")
    return sources


def read(source: Source) -> list[Document]:
    """Reads one text.

    Args:
        source: The file.

    Returns:
        One document without annotations, its id the file's name without the suffix.

    Raises:
        DataError: It cannot be read or is not UTF-8.
    """
    return [Document(stem(source.path, _SUFFIXES), read_text(source.path))]


FORMAT = Format(read, _SUFFIXES)
