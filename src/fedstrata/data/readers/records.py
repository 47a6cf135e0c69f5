"""Records in one JSON value: a list of objects, or an object of objects whose names are their ids.

{"0": {"text_a": "Who is it?", "text_b": "Who was it?", "label": "1"}, "1": ...}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import read_text

_EXPECTED = "an object of objects, or a list of them"


def read_records(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the records of a file.

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
        raise DataError(path, "is no JSON", line=error.lineno, expected=_EXPECTED) from None
    if isinstance(value, list):
        named: list[tuple[str, Any]] = [("", record) for record in value]
    elif isinstance(value, dict):
        named = list(value.items())
    else:
        raise DataError(path, f"holds {type(value).__name__}", expected=_EXPECTED)
    for number, (name, record) in enumerate(named, start=1):
        if not isinstance(record, dict):
            raise DataError(path, f"record {number} is {type(record).__name__}", expected=_EXPECTED)
        known = ((key, field) for key, field in record.items() if not isinstance(field, bool))
        yield name, {key.strip().lower(): str(field) for key, field in known if isinstance(field, str | int)}
