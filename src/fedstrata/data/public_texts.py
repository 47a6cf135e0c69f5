"""Public texts to which a vocabulary is cut: plain text, CSV, TSV and JSON lines, alone or in a folder.

What a file is follows from its name; `.gz` is decompressed. Of a table each cell is a text, of JSON each
string. Texts are long stretches, since a token may hold line breaks.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import filled_lines, is_compressed, read_text
from fedstrata.data.readers.tables import read_rows

TABLES = {".csv": None, ".tsv": "\t"}
SUFFIXES = (".txt", ".md", ".jsonl", *TABLES)
_LONGEST = 100_000
"""Characters after which a text is divided, at the next empty line."""
_EMPTY_LINE = re.compile(r"\n\s*\n")


def find_public_texts(path: Path) -> list[Path]:
    """Returns the files at a path, sorted: itself, or those in a folder at any depth that hold texts.

    Raises:
        DataError: There is no such path, or no text in it.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(path, "no such file or folder", expected=f"a text, or a folder of {_patterns()}")
    found = [file for file in sorted(path.rglob("*")) if _suffix(file) in SUFFIXES and file.is_file()]
    if not found:
        raise DataError(path, "holds no texts", expected=f"{_patterns()}, at any depth")
    return found


def read_public_texts(path: Path) -> Iterator[str]:
    """Yields the texts of a file.

    Raises:
        DataError: It cannot be read, or is not what its name says.
    """
    suffix = _suffix(path)
    if suffix in TABLES:
        for _, row in read_rows(path, separator=TABLES[suffix], skip_broken=True):
            yield from row.values()
    elif suffix == ".jsonl":
        for number, line in filled_lines(path):
            try:
                yield from _strings(json.loads(line))
            except ValueError:
                raise DataError(path, "is not JSON", line=number, expected="a JSON value a line") from None
    else:
        yield from _stretches(read_text(path))


def _suffix(path: Path) -> str:
    name = Path(path.stem) if is_compressed(path) else path
    return name.suffix.lower()


def _patterns() -> str:
    return ", ".join(f"*{suffix}" for suffix in SUFFIXES)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _stretches(text: str) -> Iterator[str]:
    """Divides a long text at empty lines, which stay at the end of a stretch."""
    begin = 0
    while len(text) - begin > _LONGEST and (found := _EMPTY_LINE.search(text, begin + _LONGEST)):
        yield text[begin : found.end()]
        begin = found.end()
    yield text[begin:]
