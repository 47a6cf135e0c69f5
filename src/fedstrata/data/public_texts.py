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
from fedstrata.data.readers.files import filled_lines, read_text
from fedstrata.data.readers.tables import TABLES, WITH_TABS, read_rows
from fedstrata.data.readers.texts import find_texts

SUFFIXES = (".txt", ".md", ".jsonl")
"""How the names of texts end, beside those of tables."""
_LONGEST = 100_000
"""Characters after which a text is divided, at the next empty line."""
_EMPTY_LINE = re.compile(r"\n\s*\n")


def find_public_texts(path: Path) -> list[Path]:
    """Returns the files at a path, sorted: itself, or those in a folder at any depth that hold texts.

    Raises:
        DataError: There is no such path, or no text in it.
    """
    suffixes = (*SUFFIXES, *(f"{suffix}.gz" for suffix in SUFFIXES), *TABLES)
    return [source.path for source in find_texts(path, suffixes)]


def read_public_texts(path: Path) -> Iterator[str]:
    """Yields the texts of a file.

    Raises:
        DataError: It cannot be read, or is not what its name says.
    """
    name = path.name.lower()
    if name.endswith(TABLES):
        separator = "\t" if name.endswith(WITH_TABS) else None
        for _, row in read_rows(path, separator=separator, skip_broken=True):
            yield from row.values()
    elif name.endswith((".jsonl", ".jsonl.gz")):
        for number, line in filled_lines(path):
            try:
                yield from _strings(json.loads(line))
            except ValueError:
                raise DataError(
                    path, "is not JSON", line=number, expected="a JSON value a line", code="not_json"
                ) from None
    else:
        yield from _stretches(read_text(path))


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
