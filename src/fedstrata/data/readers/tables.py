"""Tables of comma-separated values, and records in one JSON value.

Tables are read a row at a time: memory holds one row, however long the file. Fields may be quoted, and a
quoted field may hold line breaks. Every row has as many fields as the header.

Records are a list of objects, or an object of objects whose names are their ids:
{"0": {"text_a": "Who is it?", "text_b": "Who was it?", "label": "1"}, "1": ...}
"""

import csv
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import read_text, streamed_lines

logger = logging.getLogger(__name__)

LONGEST_FIELD = 1 << 24
"""Characters in a field: far more than any note has, so that a quotation mark that is never closed does not
read the rest of the file into memory."""

WITH_TABS = (".tsv", ".tsv.gz")
TABLES = (".csv", ".csv.gz", *WITH_TABS)
"""How the names of tables end, and of those among them whose fields are set apart by tabs."""
LONGEST_NAME = 200
"""Characters in a label, an id or the name of a site: they are shown and recorded, and texts must not be."""

Row = tuple[int, dict[str, str]]
"""The line on which a row begins, and its fields by column."""
_RECORDS = "an object of objects, or a list of them"


def unlike_a_name(name: str) -> str:
    """Says why a field is perhaps the text of a note, which no message may quote; empty if it is a name."""
    if len(name) <= LONGEST_NAME and "\n" not in name:
        return ""
    lines = len(name.splitlines())
    return f"holds a name of {len(name)} characters" + (f" in {lines} lines" if lines > 1 else "")


def read_rows(
    path: Path,
    *,
    required: Sequence[str] = (),
    fold_case: bool = False,
    names: Sequence[str] | None = None,
    separator: str | None = None,
    skip_broken: bool = False,
) -> Iterator[Row]:
    """Yields the rows of a table.

    Args:
        path: The file, UTF-8; `.gz` is decompressed on the way.
        required: Columns that must be there.
        fold_case: Give the names of columns in lower case, whatever the header has.
        names: The columns of a file without a header.
        separator: What sets fields apart in place of commas; quotation marks are plain characters then.
        skip_broken: Leave rows out that have another number of fields, and log how many, in place of refusing
            them.

    Raises:
        DataError: It cannot be read, a column is missing or there twice, or a row, or every row, has another
            number of fields.
    """
    csv.field_size_limit(LONGEST_FIELD)
    lines = streamed_lines(path)
    if separator is not None:
        reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE, strict=True)
    else:
        reader = csv.reader(lines, strict=True)
    columns = _columns(path, names, required) if names is not None else None
    broken = sound = 0
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise _malformed(path, line, str(error)) from None
        if fields is None:
            break
        if not fields:  # a blank line
            continue
        if columns is None:
            header = [name.strip().lower() if fold_case else name.strip() for name in fields]
            columns = _columns(path, header, required)
        elif len(fields) != len(columns) and skip_broken:
            broken += 1
        elif len(fields) != len(columns):
            expected = f"{len(columns)}, one for each column{_hint(columns)}"
            raise DataError(
                path, f"a row of {len(fields)} fields", line=line, expected=expected, code="wrong_count"
            )
        else:
            sound += 1
            yield line, dict(zip(columns, fields, strict=True))
    if columns is None:
        raise DataError(path, "holds nothing", expected="a header that names the columns", code="missing")
    if broken:
        _tell_broken(path, broken, sound, columns)


def _tell_broken(path: Path, broken: int, sound: int, columns: Sequence[str]) -> None:
    """Logs how many rows were left out; that all were is an error of the header."""
    if not sound:
        message = f"none of its {broken} rows has as many fields as there are columns, {len(columns)}"
        raise DataError(path, message, line=1, expected="a header that names each column", code="wrong_count")
    logger.warning("%s: %d rows with another number of fields left out", path, broken)


def _hint(columns: Sequence[str]) -> str:
    apart = len(columns) == 1 and ";" in columns[0]
    return "; fields are set apart by commas, and the header has semicolons" if apart else ""


def _columns(path: Path, names: Sequence[str], required: Sequence[str]) -> list[str]:
    missing = [name for name in required if name not in names]
    if missing:
        expected = f"a header with {', '.join(required)}{_hint(names)}"
        raise DataError(
            path, f"has no column {', '.join(missing)}", line=1, expected=expected, code="missing_column"
        )
    twice = [number for number, name in enumerate(names, start=1) if name and names.count(name) > 1]
    if twice:
        # Not by their names: the first row of a file without a header is text.
        message = f"columns {twice[0]} and {twice[1]} have one name"
        raise DataError(
            path, message, line=1, expected="a header that names each column once", code="duplicate"
        )
    return list(names)


def _malformed(path: Path, line: int, reason: str) -> DataError:
    """Says what is wrong with a row; csv's own messages quote nothing of it."""
    if "field larger" in reason:
        message = f"a field of more than {LONGEST_FIELD} characters"
        return DataError(path, message, line=line, expected="every quotation mark closed", code="too_long")
    if "unexpected end" in reason:
        message = "a quoted field that begins in this row is not closed before the file ends"
        return DataError(path, message, line=line, code="cut_short")
    return DataError(path, f"malformed row: {reason}", line=line, expected='quotes in a field doubled: ""')


def read_records(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the records of a file of JSON.

    Args:
        path: The file, UTF-8; `.gz` is decompressed.

    Yields:
        The name of each record, empty in a list; and its fields: texts, whole numbers as text, and no others.

    Raises:
        DataError: It cannot be read, or is not of that form.
    """
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        # Without its message, which says no more; and without the text, which may be a note.
        raise DataError(path, "is no JSON", line=error.lineno, expected=_RECORDS, code="not_json") from None
    if isinstance(value, list):
        named: list[tuple[str, Any]] = [("", record) for record in value]
    elif isinstance(value, dict):
        named = list(value.items())
    else:
        raise DataError(path, f"holds {type(value).__name__}", expected=_RECORDS, code="wrong_type")
    for number, (name, record) in enumerate(named, start=1):
        if not isinstance(record, dict):
            raise DataError(
                path, f"record {number} is {type(record).__name__}", expected=_RECORDS, code="wrong_type"
            )
        known = ((key, field) for key, field in record.items() if not isinstance(field, bool))
        yield name, {key.strip().lower(): str(field) for key, field in known if isinstance(field, str | int)}


def named_records(path: Path) -> dict[str, Mapping[str, Any]] | None:
    """Returns the objects of a file of one object of objects, by their names; none if it has another form.

    Args:
        path: The file, UTF-8; `.gz` is decompressed.

    Raises:
        DataError: It cannot be read, or two of the objects have one name.
    """
    if not (text := read_text(path)).lstrip().startswith("{"):
        return None
    repeated = False

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        repeated |= len(dict(pairs)) < len(pairs)
        return dict(pairs)

    try:
        named = json.loads(text, object_pairs_hook=distinct)
    except json.JSONDecodeError:
        return None  # perhaps lines of JSON
    if not named or not all(isinstance(record, dict) for record in named.values()):
        return None
    if repeated:
        raise DataError(
            path, "an object has one name twice", expected="another name for each", code="duplicate"
        )
    return dict(named)
