"""Rows of a table and what stands in their cells, whatever file they come from.

A number with the decimal `.0` that stands for a name or a label is read as the whole number: libraries write
the whole numbers of a column as floats where another row of it has no value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstrata.core.documents import without_zeros
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Source
from fedstrata.data.readers.folders import split_named
from fedstrata.data.readers.tables import LONGEST_NAME, unlike_a_name


def value_of(row: Mapping[str, Any], column: str) -> Any:
    """Returns what stands in a column or, by a name with dots, in a field within it; none if nothing does.

    >>> value_of({"context": {"contexts": ["Fever."]}}, "context.contexts")
    ['Fever.']
    """
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def whole(value: Any) -> Any:
    """Returns floats and texts that are whole numbers without decimals, NaN as none, others as they are."""
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return without_zeros(value.strip()) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one source, with the names of the classes its numbers stand for.

    Attributes:
        source: Where they come from.
        name: What the ids of rows begin with.
        columns: The columns there are.
        rows: What each row holds, by column; for CSV with the line it begins on, otherwise None.
        classes: The class names of each column that has any.
        ids: What the source calls each row; none where it gives them no names.
    """

    source: Source
    name: str
    columns: list[str]
    rows: list[tuple[int | None, Mapping[str, Any]]]
    classes: Mapping[str, Sequence[str]]
    ids: Sequence[str] | None = None

    def has(self, column: str) -> bool:
        """Whether some row has this column, or this field of a column."""
        return column in self.columns or any(value_of(row, column) is not None for _, row in self.rows)


@dataclass(frozen=True, slots=True)
class Cells:
    """One row, and how to say what is wrong in it."""

    table: Rows
    number: int
    line: int | None
    values: Mapping[str, Any]

    def wrong(self, column: str, message: str, expected: str, code: str) -> DataError:
        """Returns what is wrong with a cell, as an error that names its place and quotes nothing of it."""
        where = "" if self.line is not None else f"row {self.number}: "
        message = f"{where}the column {column!r} {message}"
        return DataError(self.table.source.path, message, line=self.line, expected=expected, code=code)

    def text(self, column: str) -> str:
        """Returns a cell that holds text, or a list of texts, a line each; an empty one is empty text."""
        value = value_of(self.values, column)
        texts = value if isinstance(value, list) else [value or ""]
        if not all(isinstance(text, str) for text in texts):
            kinds = sorted({type(text).__name__ for text in texts} - {"str"})
            within = "a list with " if isinstance(value, list) else ""
            raise self.wrong(
                column, f"holds {within}{' and '.join(kinds)}", "text, or a list of texts", "wrong_type"
            )
        return "\n".join(texts)

    @property
    def id(self) -> str:
        """What the source calls the row; else its number, after the name of the source."""
        if self.table.ids is None:
            return f"{self.table.name}-{self.number}"
        return self._shown("id", self.table.ids[self.number - 1])

    def name(self, column: str) -> str:
        """Returns a cell that names something, as text."""
        value = whole(value_of(self.values, column))
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise self.wrong(column, "names nothing", "text or a whole number", "missing")
        return self._shown(column, str(value).strip())

    def _shown(self, column: str, name: str) -> str:
        """Refuses what is perhaps the text of a note, which no message may quote."""
        if message := unlike_a_name(name):
            raise self.wrong(column, message, f"at most {LONGEST_NAME}, in one line", "wrong_form")
        return name

    def part(self, column: str) -> str:
        """Returns the part of the split that a cell names."""
        part = split_named(self.name(column))
        if not part:
            raise self.wrong(
                column, "names no part of the split", "train, validation or test", "unknown_name"
            )
        return part

    def names(self, column: str, separator: str | None = None) -> list[str]:
        """Returns the labels in a cell: class numbers by their names, a list, or one, or text divided.

        -1 is no label, as everywhere in data sets of the hub.
        """
        value = value_of(self.values, column)
        if separator is not None and isinstance(value, str):
            value = value.split(separator)
        classes = self.table.classes.get(column)
        found = []
        for item in map(whole, value if isinstance(value, list) else [value]):
            if item in (None, "", -1, "-1"):
                continue
            if classes and isinstance(item, int) and 0 <= item < len(classes):
                found.append(classes[item])
            elif isinstance(item, str | int):
                found.append(str(item).strip() if not isinstance(item, bool) else str(item).lower())
            else:
                raise self.wrong(
                    column,
                    f"holds {type(item).__name__}",
                    "text, whole numbers or lists of them",
                    "wrong_type",
                )
            self._shown(column, found[-1])
        return [name for name in found if name]

    def labels(self, column: str, separator: str | None) -> list[str]:
        """Returns the labels of a row; refuses a 0 or 1 for every class, which would give two labels."""
        value = value_of(self.values, column)
        items = map(whole, value) if isinstance(value, list) else []
        numbers = [item for item in items if isinstance(item, int)]
        twice = next((number for number in numbers if number != -1 and numbers.count(number) > 1), None)
        if twice is not None:
            expected = (
                "the numbers or names of the labels that a row has, and no 0 or 1 for each that it may have"
            )
            raise self.wrong(column, f"holds {twice} twice", expected, "duplicate")
        return self.names(column, separator)
