"""Data sets of the Hugging Face hub, those its `datasets` library saved, and any CSV, JSON or parquet table.

- A folder written by `save_to_disk`, one data set or several splits.
- Files (`.csv`, `.tsv`, `.json`, `.jsonl`, `.parquet`), with sub-folders and names as for every other format.
  All fields of a CSV file are text; quotation marks in a `.tsv` file are plain characters. A `.json` file may
  be an object of objects, whose names are their ids.
- An id of the hub (`ag_news`, `owner/name`), which is the only case that uses the network. What was
  downloaded stays in the library's cache (`HF_HOME`). Local files leave nothing in any cache: the library's
  copies of JSON and parquet go to a temporary folder that is gone before this returns.

`data.columns` says which columns hold what; a name with dots is that of a field within a column. Class
numbers become their names where the data set has names; -1, and an empty or missing label, is no label. No
code of a data set runs, and nothing is unpickled.
"""

import logging
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, DataError, Problem, printable, refuse, refused
from fedstrata.core.settings.data import ColumnSettings, DatasetSettings
from fedstrata.data.readers.cells import Cells, Rows, value_of, whole
from fedstrata.data.readers.files import Format, Source, stem
from fedstrata.data.readers.folders import find_sources, split_named
from fedstrata.data.readers.tables import TABLES, WITH_TABS, named_records, read_rows
from fedstrata.data.readers.tags import TAG, invalid_transition, tagged_document

logger = logging.getLogger(__name__)

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
    r"|Conversion failed for column|straddling object straddles two block boundaries"
    r"|Couldn't cast array of type \w+ to \w+|because column names don't match"
    r"|Unsupported cast from \w+ to \w+|BuilderConfig|not a gzipped file"
    r")(\.? in row \d+)?",
    flags=re.IGNORECASE,
)
_SAFE = (OSError, UnicodeDecodeError, EOFError, ImportError, MemoryError)
"""Errors whose words are of files, bytes and libraries, and never of what a file says."""
_SAVED = ("dataset_dict.json", "state.json")


@contextmanager
def _library(source: str | Path) -> Iterator[Any]:
    """Gives the `datasets` module, silenced: what it prints may quote a note. Its errors become ours."""
    try:
        import datasets  # noqa: PLC0415 - an optional extra, and slow to import
    except ImportError:
        message = "'datasets' needs a library that is not installed: pip install 'fedstrata[datasets]'"
        raise refused("data.format", message, "not_installed") from None
    shown, level = datasets.is_progress_bar_enabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield datasets
    except (DataError, ConfigurationError):
        raise
    except Exception as error:
        raise DataError(
            source, f"cannot be read by the datasets library ({_reason(error)})", code="unreadable"
        ) from None
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()


def _chain(error: BaseException) -> list[BaseException]:
    """Returns an error, what caused it, what caused that, and so on."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _reason(error: BaseException) -> str:
    """Returns why a file cannot be read, in words of pyarrow that quote nothing; else the last cause."""
    links = _chain(error)
    for link in links:
        if words := _REASONS.search(str(link)):
            return f"{type(link).__name__}: {words[0]}"
    last = links[-1]
    name = type(last).__name__
    return f"{name}: {printable(str(last), 300)}" if isinstance(last, _SAFE) and str(last) else name


def _reason_of_hub(error: BaseException) -> str:
    """Returns why a data set cannot be had; once it was there and read, its contents are not quoted."""
    links = _chain(error)
    if any(type(link).__name__.startswith("DatasetGeneration") for link in links):
        return _reason(error)
    told = dict.fromkeys(
        f"{type(link).__name__}: {printable(' '.join(str(link).split()), 300)}"
        for link in (links[0], links[-1])
    )
    return "; because of ".join(told)


def _loaded(source: Source, name: str, dataset: Any) -> Rows:
    # Of a ClassLabel, or of a list of them.
    inner = {column: getattr(feature, "feature", feature) for column, feature in dataset.features.items()}
    classes = {column: names for column, own in inner.items() if (names := getattr(own, "names", None))}
    return Rows(source, name, list(dataset.column_names), [(None, row) for row in dataset], classes)


def _file(source: Source, columns: ColumnSettings) -> Rows:
    """Reads one table of any of the file types."""
    path, name = source.path, stem(source.path, _SUFFIXES)
    written = path.name.lower()
    if written.endswith(TABLES):
        rows = list(
            read_rows(path, names=columns.names, separator="\t" if written.endswith(WITH_TABS) else None)
        )
        return Rows(source, name, list(rows[0][1]) if rows else [], [*rows], {})
    if not written.endswith(_SUFFIXES):
        raise DataError(
            path, "is no table", expected=", ".join(f"*{suffix}" for suffix in _SUFFIXES), code="wrong_format"
        )
    if written.endswith((".json", ".json.gz")) and (named := named_records(path)) is not None:
        given = dict.fromkeys(column for row in named.values() for column in row)
        return Rows(source, name, list(given), [(None, row) for row in named.values()], {}, list(named))
    with _library(path) as datasets, tempfile.TemporaryDirectory() as cache:
        made = datasets.Dataset
        read_table = made.from_json if written.endswith(_RECORDS) else made.from_parquet
        return _loaded(source, name, read_table(str(path), cache_dir=cache, keep_in_memory=True))


def _saved(path: Path, settings: DatasetSettings) -> list[Rows]:
    """Reads a folder that `save_to_disk` wrote."""
    with _library(path) as datasets:
        found = datasets.load_from_disk(str(path), keep_in_memory=True)
        if isinstance(found, datasets.Dataset):
            return [_loaded(Source(path), path.name, found)]
        return _by_split(path, found, settings)


def _from_hub(name: str, settings: DatasetSettings) -> list[Rows]:
    """Downloads a data set, or takes it from the library's cache."""
    with _library(name) as datasets:
        try:
            found = datasets.load_dataset(name, name=settings.config, revision=settings.revision)
        except Exception as error:
            message = (
                f"{name!r} is no file or folder here, and cannot be loaded as an id of the Hugging Face hub "
                f"({_reason_of_hub(error)}); check the name, data.dataset.config and the network"
            )
            raise refused("data.path", message, "not_found") from None
        return _by_split(Path(name), found, settings)


def _by_split(path: Path, found: Mapping[str, Any], settings: DatasetSettings) -> list[Rows]:
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
        raise refused("data.dataset.splits", message, "unknown_name" if unknown else "not_found")
    return [
        _loaded(Source(path, split=split, prefix=f"{name}/"), name, found[name])
        for name, split in names.items()
    ]


def _all_rows(path: str, settings: DatasetSettings, columns: ColumnSettings) -> Iterator[Rows]:
    place = Path(path)
    if any((place / name).is_file() for name in _SAVED):
        yield from _saved(place, settings)
    elif place.exists():
        if settings != DatasetSettings():
            message = f"has no meaning for {path}: files and folders of files are split by their names"
            raise refused("data.dataset", message, "no_effect")
        layout = Format(lambda source: [], suffixes=_SUFFIXES)
        for source in find_sources(place, layout):
            yield _file(source, columns)
    elif _HUB_ID.fullmatch(path) and not path.lower().endswith(_SUFFIXES):
        yield from _from_hub(path, settings)
    else:
        raise DataError(
            place,
            "no such file or folder",
            expected="one, or an id of the Hugging Face hub",
            code="not_found",
        )


def _check_columns(table: Rows, columns: ColumnSettings) -> None:
    texts = [columns.text] if isinstance(columns.text, str) else columns.text
    wanted = {f"text.{number}" if len(texts) > 1 else "text": name for number, name in enumerate(texts)}
    if columns.tokens is not None:
        wanted = {"tokens": columns.tokens, "tags": str(columns.tags)}
    wanted |= {
        key: name
        for key in ("text_pair", "labels", "id", "site", "patient", "split")
        if (name := getattr(columns, key)) is not None
    }
    missing = {key: name for key, name in wanted.items() if not table.has(name)}
    found = "it has " + ", ".join(table.columns[:20]) + (", ..." if len(table.columns) > 20 else "")
    if len(missing) == len(wanted):
        # Perhaps a file without a header, whose first row is text that must not be quoted.
        found = f"none of its {len(table.columns)} columns is one of data.columns"
        if table.source.path.name.lower().endswith(TABLES):
            found += "; if its first row is no header, name the columns in data.columns.names"
    where = table.source.path
    named = ((key, f"{where} has no column {name!r}; {found}") for key, name in missing.items())
    refuse([Problem(f"data.columns.{key}", message, code="missing_column") for key, message in named])


def _tagged(cells: Sequence[Cells], columns: ColumnSettings) -> list[list[tuple[str, str]]]:
    """Returns the tokens of every row with their tags, checked as a whole."""
    tokens_column, tags_column = str(columns.tokens), str(columns.tags)
    sentences = []
    for row in cells:
        tokens, tags = value_of(row.values, tokens_column), row.names(tags_column)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise row.wrong(tokens_column, "holds no list of tokens", "a list of texts", "wrong_type")
        if len(tags) != len(tokens):
            expected = f"{len(tokens)}, one a token"
            raise row.wrong(tags_column, f"holds {len(tags)} tags", expected, "wrong_count")
        if not all(TAG.fullmatch(tag) for tag in tags):
            raise row.wrong(
                tags_column,
                "holds something that is no tag",
                "O, or B-, I-, E- or S- and a type",
                "wrong_form",
            )
        # A token without characters has no place in the text, and its tag would mark nothing.
        sentences.append([(token, tag) for token, tag in zip(tokens, tags, strict=True) if token])
    broken = invalid_transition([[tag for _, tag in sentence] for sentence in sentences])
    if broken is not None:
        number, _, expected = broken
        raise cells[number].wrong(
            tags_column, "holds a tag that cannot follow the one before", expected, "conflict"
        )
    return sentences


def _warn_of_minus_one(cells: Sequence[Cells], column: str) -> None:
    """Logs how many rows -1 leaves without a label where others have one: it may be meant as a class."""
    without = sum(whole(value_of(row.values, column)) in (-1, "-1") for row in cells)
    if 0 < without < len(cells):
        logger.warning(
            "column %r: -1 is read as no label, in %d of %d rows; if it is a class, give it a name",
            column,
            without,
            len(cells),
        )


def _documents(table: Rows, columns: ColumnSettings) -> Iterator[Document]:
    rows = enumerate(table.rows, start=1)
    cells = [Cells(table, number, line, values) for number, (line, values) in rows]
    sentences = _tagged(cells, columns) if columns.tokens is not None else None
    texts = [columns.text] if isinstance(columns.text, str) else columns.text
    if columns.labels is not None:
        _warn_of_minus_one(cells, columns.labels)
    for position, row in enumerate(cells):
        name = row.name(columns.id) if columns.id is not None else row.id
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
            raise refused("data.columns", message, "duplicate")
        plain = table.astype(object).where(table.notna(), None).set_axis(names, axis=1).to_dict("records")
        rows = Rows(source, name, names, [(None, _listed(row)) for row in plain], {})
    _check_columns(rows, columns)
    return list(_documents(rows, columns))
