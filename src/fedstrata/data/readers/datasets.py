"""Data sets of the Hugging Face hub, those its `datasets` library saved, and any CSV, JSON or parquet table.

- A folder written by `save_to_disk`, one data set or several splits.
- Files (`.csv`, `.tsv`, `.json`, `.jsonl`, `.parquet`), with sub-folders and names as for every other format.
  All fields of a CSV file are text; quotation marks in a `.tsv` file are plain characters.
- An id of the hub (`ag_news`, `owner/name`), which is the only case that uses the network. What was
  downloaded stays in the library's cache (`HF_HOME`). Local files leave nothing in any cache: the library's
  copies of JSON and parquet go to a temporary folder that is gone before this returns.

`data.columns` says which columns hold what. Class numbers become their names where the data set has names;
-1, and an empty or missing label, is no label. No code of a data set runs, and nothing is unpickled.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, DataError, Problem, refuse
from fedstrata.core.settings.data import ColumnSettings, DatasetSettings
from fedstrata.data.readers.files import Format, Source, stem
from fedstrata.data.readers.folders import find_sources, split_named
from fedstrata.data.readers.tables import LONGEST_NAME, TABLES, WITH_TABS, read_rows, unlike_a_name
from fedstrata.data.readers.tags import TAG, invalid_transition, tagged_document

_RECORDS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_SUFFIXES = (*TABLES, *_RECORDS, ".parquet")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_KIND = "(string|number|boolean|object|array|null)"
_REASONS = re.compile(
    r"(Missing a (closing quotation mark in string|name for object member|colon after a name of object member"
    r"|comma or [}\]] after an (object member|array element))"
    r"|Invalid (value|(escape character|encoding) in string)"
    rf"|The document (is empty|root must not be followed by other values)|changed from {_KIND} to {_KIND}"
    r"|was specified twice|smaller than the minimum file footer|magic bytes not found in footer"
    r"|Conversion failed for column)(\.? in row \d+)?"
)
_SAVED = ("dataset_dict.json", "state.json")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one source, with the names of the classes its numbers stand for.

    Attributes:
        source: Where they come from.
        name: What the ids of rows begin with.
        columns: The columns there are.
        rows: What each row holds, by column; for CSV with the line it begins on, otherwise None.
        classes: The class names of each column that has any.
    """

    source: Source
    name: str
    columns: list[str]
    rows: list[tuple[int | None, Mapping[str, Any]]]
    classes: Mapping[str, Sequence[str]]


@contextmanager
def _library(source: str | Path) -> Iterator[Any]:
    """Gives the `datasets` module, silenced: what it prints may quote a note. Its errors become ours."""
    try:
        import datasets  # noqa: PLC0415 - an optional extra, and slow to import
    except ImportError:
        message = "'datasets' needs a library that is not installed: pip install 'fedstrata[datasets]'"
        raise ConfigurationError([Problem("data.format", message)]) from None
    shown, level = datasets.is_progress_bar_enabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield datasets
    except (DataError, ConfigurationError):
        raise
    except Exception as error:
        raise DataError(source, f"cannot be read by the datasets library ({_reason(error)})") from None
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()


def _reason(error: BaseException) -> str:
    """Returns why a file cannot be read, in words of pyarrow that quote nothing of it; else the type."""
    link: BaseException | None = error
    while link is not None:
        if words := _REASONS.search(str(link)):
            return f"{type(link).__name__}: {words[0]}"
        link = link.__cause__ or link.__context__
    return type(error).__name__


def _loaded(source: Source, name: str, dataset: Any) -> _Rows:
    # Of a ClassLabel, or of a list of them.
    inner = {column: getattr(feature, "feature", feature) for column, feature in dataset.features.items()}
    classes = {column: names for column, own in inner.items() if (names := getattr(own, "names", None))}
    return _Rows(source, name, list(dataset.column_names), [(None, row) for row in dataset], classes)


def _file(source: Source, columns: ColumnSettings) -> _Rows:
    """Reads one table of any of the file types."""
    path, name = source.path, stem(source.path, _SUFFIXES)
    written = path.name.lower()
    if written.endswith(TABLES):
        rows = list(read_rows(path, names=columns.names, tabs=written.endswith(WITH_TABS)))
        return _Rows(source, name, list(rows[0][1]) if rows else [], [*rows], {})
    if not written.endswith(_SUFFIXES):
        raise DataError(path, "is no table", expected=", ".join(f"*{suffix}" for suffix in _SUFFIXES))
    with _library(path) as datasets, tempfile.TemporaryDirectory() as cache:
        made = datasets.Dataset
        read_table = made.from_json if written.endswith(_RECORDS) else made.from_parquet
        return _loaded(source, name, read_table(str(path), cache_dir=cache, keep_in_memory=True))


def _saved(path: Path, settings: DatasetSettings) -> list[_Rows]:
    """Reads a folder that `save_to_disk` wrote."""
    with _library(path) as datasets:
        found = datasets.load_from_disk(str(path), keep_in_memory=True)
        if isinstance(found, datasets.Dataset):
            return [_loaded(Source(path), path.name, found)]
        return _by_split(path, found, settings)


def _from_hub(name: str, settings: DatasetSettings) -> list[_Rows]:
    """Downloads a data set, or takes it from the library's cache."""
    with _library(name) as datasets:
        try:
            found = datasets.load_dataset(name, name=settings.config, revision=settings.revision)
        except Exception as error:
            message = (
                f"{name!r} is no file or folder here, and cannot be loaded as an id of the Hugging Face hub "
                f"({type(error).__name__}); check the name, data.dataset.config and the network"
            )
            raise ConfigurationError([Problem("data.path", message)]) from None
        return _by_split(Path(name), found, settings)


def _by_split(path: Path, found: Mapping[str, Any], settings: DatasetSettings) -> list[_Rows]:
    """Places each split of a data set; what is no split of ours must be named in the settings."""
    wanted = list(found) if settings.splits is None else settings.splits
    absent = [name for name in wanted if name not in found]
    names = dict(wanted) if isinstance(wanted, dict) else {name: split_named(name) for name in wanted}
    unknown = [name for name, split in names.items() if not split]
    if absent or unknown:
        what = f"has no split {', '.join(absent)}"
        if unknown:
            names_ours = "is none of train, validation and test; list the splits to read, or map them"
            what = f"{', '.join(unknown)} {names_ours}"
        message = f"{path}: {what} (its splits: {', '.join(found)})"
        raise ConfigurationError([Problem("data.dataset.splits", message)])
    return [
        _loaded(Source(path, split=split, prefix=f"{name}/"), name, found[name])
        for name, split in names.items()
    ]


def _all_rows(path: str, settings: DatasetSettings, columns: ColumnSettings) -> Iterator[_Rows]:
    place = Path(path)
    if any((place / name).is_file() for name in _SAVED):
        yield from _saved(place, settings)
    elif place.exists():
        if settings != DatasetSettings():
            message = f"has no meaning for {path}: files and folders of files are split by their names"
            raise ConfigurationError([Problem("data.dataset", message)])
        layout = Format(lambda source: [], suffixes=_SUFFIXES)
        for source in find_sources(place, layout):
            yield _file(source, columns)
    elif _HUB_ID.fullmatch(path) and not path.lower().endswith(_SUFFIXES):
        yield from _from_hub(path, settings)
    else:
        raise DataError(place, "no such file or folder", expected="one, or an id of the Hugging Face hub")


def _check_columns(table: _Rows, columns: ColumnSettings) -> None:
    texts = [columns.text] if isinstance(columns.text, str) else columns.text
    wanted = {f"text.{number}" if len(texts) > 1 else "text": name for number, name in enumerate(texts)}
    if columns.tokens is not None:
        wanted = {"tokens": columns.tokens, "tags": str(columns.tags)}
    wanted |= {
        key: name
        for key in ("text_pair", "labels", "id", "site", "patient", "split")
        if (name := getattr(columns, key)) is not None
    }
    missing = {key: name for key, name in wanted.items() if name not in table.columns}
    found = "it has " + ", ".join(table.columns[:20]) + (", ..." if len(table.columns) > 20 else "")
    if len(missing) == len(wanted):
        # Perhaps a file without a header, whose first row is text that must not be quoted.
        found = f"none of its {len(table.columns)} columns is one of data.columns"
        if table.source.path.name.lower().endswith(TABLES):
            found += "; if its first row is no header, name the columns in data.columns.names"
    where = table.source.path
    named = ((key, f"{where} has no column {name!r}; {found}") for key, name in missing.items())
    refuse([Problem(f"data.columns.{key}", message) for key, message in named])


@dataclass(frozen=True, slots=True)
class _Cells:
    """One row, and how to say what is wrong in it."""

    table: _Rows
    number: int
    line: int | None
    values: Mapping[str, Any]

    def wrong(self, column: str, message: str, expected: str) -> DataError:
        where = "" if self.line is not None else f"row {self.number}: "
        message = f"{where}the column {column!r} {message}"
        return DataError(self.table.source.path, message, line=self.line, expected=expected)

    def text(self, column: str) -> str:
        """Returns a cell that holds text; an empty one is empty text."""
        value = self.values[column]
        if value is not None and not isinstance(value, str):
            raise self.wrong(column, f"holds {type(value).__name__}", "text")
        return value or ""

    def name(self, column: str) -> str:
        """Returns a cell that names something, as text."""
        value = self.values[column]
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise self.wrong(column, "names nothing", "text or a whole number")
        return self._shown(column, str(value).strip())

    def _shown(self, column: str, name: str) -> str:
        """Refuses what is perhaps the text of a note, which no message may quote."""
        if message := unlike_a_name(name):
            raise self.wrong(column, message, f"at most {LONGEST_NAME}, in one line")
        return name

    def part(self, column: str) -> str:
        """Returns the part of the split that a cell names."""
        part = split_named(self.name(column))
        if not part:
            raise self.wrong(column, "names no part of the split", "train, validation or test")
        return part

    def names(self, column: str, separator: str | None = None) -> list[str]:
        """Returns the labels in a cell: class numbers by their names, a list, or one, or text divided."""
        value = self.values[column]
        if separator is not None and isinstance(value, str):
            value = value.split(separator)
        classes = self.table.classes.get(column)
        found = []
        for item in value if isinstance(value, list) else [value]:
            if item is None or item == "" or (classes and item == -1):
                continue
            if classes and isinstance(item, int) and 0 <= item < len(classes):
                found.append(classes[item])
            elif isinstance(item, str | int):
                found.append(str(item).strip() if not isinstance(item, bool) else str(item).lower())
            else:
                raise self.wrong(
                    column, f"holds {type(item).__name__}", "text, whole numbers or lists of them"
                )
            self._shown(column, found[-1])
        return [name for name in found if name]

    def labels(self, column: str, separator: str | None) -> list[str]:
        """Returns the labels of a row; refuses a 0 or 1 for every class, which would give two labels."""
        value = self.values[column]
        numbers = [item for item in value if isinstance(item, int)] if isinstance(value, list) else []
        twice = next((number for number in numbers if number != -1 and numbers.count(number) > 1), None)
        if twice is not None:
            expected = (
                "the numbers or names of the labels that a row has, and no 0 or 1 for each that it may have"
            )
            raise self.wrong(column, f"holds {twice} twice", expected)
        return self.names(column, separator)


def _tagged(cells: Sequence[_Cells], columns: ColumnSettings) -> list[list[tuple[str, str]]]:
    """Returns the tokens of every row with their tags, checked as a whole."""
    tokens_column, tags_column = str(columns.tokens), str(columns.tags)
    sentences = []
    for row in cells:
        tokens, tags = row.values[tokens_column], row.names(tags_column)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise row.wrong(tokens_column, "holds no list of tokens", "a list of texts")
        if len(tags) != len(tokens):
            expected = f"{len(tokens)}, one a token"
            raise row.wrong(tags_column, f"holds {len(tags)} tags", expected)
        if not all(TAG.fullmatch(tag) for tag in tags):
            raise row.wrong(
                tags_column, "holds something that is no tag", "O, or B-, I-, E- or S- and a type"
            )
        # A token without characters has no place in the text, and its tag would mark nothing.
        sentences.append([(token, tag) for token, tag in zip(tokens, tags, strict=True) if token])
    broken = invalid_transition([[tag for _, tag in sentence] for sentence in sentences])
    if broken is not None:
        number, _, expected = broken
        raise cells[number].wrong(tags_column, "holds a tag that cannot follow the one before", expected)
    return sentences


def _documents(table: _Rows, columns: ColumnSettings) -> Iterator[Document]:
    rows = enumerate(table.rows, start=1)
    cells = [_Cells(table, number, line, values) for number, (line, values) in rows]
    sentences = _tagged(cells, columns) if columns.tokens is not None else None
    texts = [columns.text] if isinstance(columns.text, str) else columns.text
    for position, row in enumerate(cells):
        name = row.name(columns.id) if columns.id is not None else f"{table.name}-{row.number}"
        labels = row.labels(columns.labels, columns.separator) if columns.labels is not None else []
        site = row.name(columns.site) if columns.site is not None else ""
        if sentences is not None:
            tagged = tagged_document(name, [sentences[position]])
            text, spans = tagged.text, tagged.spans
        else:
            text, spans = "\n".join(row.text(column) for column in texts), ()
        metadata = {} if columns.patient is None else {"patient": row.name(columns.patient)}
        if columns.split is not None:
            metadata["split"] = row.part(columns.split)
        second = row.text(columns.text_pair) if columns.text_pair is not None else None
        kept = tuple(dict.fromkeys(labels))
        yield Document(name, text, spans, labels=kept, site=site, metadata=metadata, text_pair=second)


def read(path: str, settings: DatasetSettings, columns: ColumnSettings) -> Iterator[tuple[Source, Document]]:
    """Reads a data set.

    Args:
        path: A folder, a file or an id of the hub.
        settings: Which configuration, revision and splits.
        columns: What its columns hold.

    Yields:
        Each document with the source it comes from.

    Raises:
        ConfigurationError: The library is missing, or a column or split is not there.
        DataError: There is no such path, or a row does not hold what its column should.
    """
    for table in _all_rows(path, settings, columns):
        if table.rows:
            _check_columns(table, columns)
        for document in _documents(table, columns):
            yield table.source, document


def _listed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row with lists for tuples, and for arrays, which a frame holds that was read from parquet."""
    own = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}


def is_table(table: Any) -> bool:
    """Whether something in memory is a `datasets.Dataset` or a pandas frame; neither library is imported."""
    return hasattr(table, "column_names") or (hasattr(table, "columns") and hasattr(table, "itertuples"))


def read_table(table: Any, columns: ColumnSettings, *, name: str, site: str, split: str) -> list[Document]:
    """Returns the documents of a table in memory.

    Args:
        table: A `datasets.Dataset` or a pandas frame, of which missing values are none.
        columns: What its columns hold.
        name: What messages call it.
        site: The site of its documents, where no column names one.
        split: Their part of the split, where no column names one.

    Raises:
        ConfigurationError: A column is not there.
        DataError: A row does not hold what its column should.
    """
    source = Source(Path(name), site=site, split=split)
    if hasattr(table, "column_names"):
        rows = _loaded(source, name, table)
    else:
        names = list(map(str, table.columns))
        if twice := [column for column in names if names.count(column) > 1]:
            message = f"{name} has two columns {twice[0]!r}, of which one would be read"
            raise ConfigurationError([Problem("data.columns", message)])
        plain = table.astype(object).where(table.notna(), None).set_axis(names, axis=1).to_dict("records")
        rows = _Rows(source, name, names, [(None, _listed(row)) for row in plain], {})
    _check_columns(rows, columns)
    return list(_documents(rows, columns))
