r"""AG News (Zhang, Zhao and LeCun, 2015): a class, a title and a description a row.

    train.csv, test.csv    "3","Fears for T N pension after talks","Unions representing workers at ..."
    classes.txt            the names of the classes beside them, a line each, the first that of class 1

The text is title, blank, description, as the literature has it. A backslash stands for a line break of the
original. Without a `classes.txt` the four classes are AG News's own. Neither file has a header; the one that
Kaggle's copy has is passed over.

JSON of the same data, with the whole text in one field, is read too; its classes count from 0:

    {"0": {"ori": "Thousands Remain Without Power ...", "label": "3"}, ...}
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, filled_lines
from fedstrata.data.readers.tables import read_records, read_rows

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
"""The classes of AG News, from number 1."""

_COLUMNS = ["class", "title", "description"]
_KAGGLE = "class index"
_TEXTS = ("ori", "text")
_TABLES = (".csv", ".csv.gz")
_SUFFIXES = (*_TABLES, ".json", ".json.gz")


def _class(names: Sequence[str], number: str, first: int, path: Path, where: int, line: int | None) -> str:
    """Returns the name of a class, whose numbers count from `first`."""
    given = number.strip()
    if given.isascii() and given.isdecimal() and first <= int(given) < first + len(names):
        return names[int(given) - first]
    expected = f"{first} to {first + len(names) - 1}, those of {', '.join(names)}"
    at = "" if line is not None else f"record {where}: "
    raise DataError(
        path, f"{at}the class is not one of the numbers", line=line, expected=expected, code="out_of_range"
    )


def _rows(path: Path, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields the name of each row, empty if it has none, with its text and its class."""
    if path.name.lower().endswith(_TABLES):
        for number, (line, row) in enumerate(read_rows(path, names=_COLUMNS), start=1):
            if number == 1 and row["class"].strip().lower() == _KAGGLE:
                continue
            text = " ".join(part.strip() for part in (row["title"], row["description"]))
            yield "", text, _class(names, row["class"], 1, path, number, line)
        return
    for number, (name, fields) in enumerate(read_records(path), start=1):
        texts = [fields[key] for key in _TEXTS if key in fields]
        if not texts or "label" not in fields:
            expected = f"{' or '.join(_TEXTS)}, and label"
            raise DataError(
                path, f"record {number} lacks a text or a label", expected=expected, code="missing_column"
            )
        yield name, texts[0], _class(names, fields["label"], 0, path, number, None)


def read(source: Source) -> list[Document]:
    """Reads one file.

    Returns:
        A document for each row, with its own id if it has one; its label is the name of its class.

    Raises:
        DataError: It cannot be read, or a class has no name.
    """
    names: Sequence[str] = CLASSES
    listed = source.path.parent / "classes.txt"
    if listed.is_file():
        names = [line.strip() for _, line in filled_lines(listed)]
        if not names or len(set(names)) < len(names):
            raise DataError(
                listed, "names no classes, or one twice", expected="a name on each line", code="duplicate"
            )
    return [
        Document(own, text.replace("\\", "\n").strip(), labels=(label,))
        for own, text, label in _rows(source.path, names)
    ]


FORMAT = Format(read, suffixes=_SUFFIXES)
