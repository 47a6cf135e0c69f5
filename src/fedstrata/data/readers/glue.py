"""GLUE, as it is published: tables with tabs, or JSON with the same fields, a pair of texts a row.

    RTE/train.tsv               index sentence1 sentence2 label
    MRPC/dev.tsv                Quality #1_ID #2_ID #1_String #2_String, with blanks for _
    QQP/train.tsv               id qid1 qid2 question1 question2 is_duplicate
    MNLI/dev_matched.tsv        index promptID pairID genre ... sentence1 sentence2 ... gold_label
    QQP/dev.json.gz             {"0": {"text_a": ..., "text_b": ..., "label": "0"}, ...}

Columns are told by their names, in any case (`_TEXTS`, `_LABELS`). The fields of a table are what stands
between tabs: quotation marks are plain characters, many of them never closed. QQP has questions with a line
break, which nothing marks, and so rows with too few fields; these are left out and counted in the log, as
everybody does. Labels are as they are written: names in RTE and MNLI, 0 and 1 in QQP and MRPC. A row whose
label is empty, `-` or -1 has none, and is left out where other rows have one.

The published test sets have no labels: `data.unannotated` says what becomes of such a file where others have
labels.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, stem
from fedstrata.data.readers.tables import read_records, read_rows

logger = logging.getLogger(__name__)

_TEXTS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("#1 string", "#2 string"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("text_a", "text_b"),
    ("sentence",),
)
"""The columns of the texts, in the order in which they are looked for; the last is SST-2's single text."""

_LABELS = ("gold_label", "label", "is_duplicate", "quality")
_IDS = ("index", "id", "idx")
_NO_LABEL = ("", "-", "-1")
_TABLES = (".tsv", ".tsv.gz")
_SUFFIXES = (*_TABLES, ".json", ".json.gz")

_Row = tuple[int | None, str, Mapping[str, str]]
"""The line of a row if it has one, its name if it has one, and its fields by column in lower case."""


def _rows(path: Path) -> Iterator[_Row]:
    if path.name.lower().endswith(_TABLES):
        for line, row in read_rows(path, fold_case=True, separator="\t", skip_broken=True):
            yield line, "", row
    else:
        for name, record in read_records(path):
            yield None, name, record


def _texts_of(path: Path, number: int, row: _Row) -> tuple[str, ...]:
    """Returns the columns of the texts."""
    line, _, fields = row
    for columns in _TEXTS:
        if all(column in fields for column in columns):
            return columns
    expected = "; or ".join(" and ".join(columns) for columns in _TEXTS)
    what = "has no columns of texts" if line is not None else f"record {number} has no fields of texts"
    raise DataError(path, what, line=None if line is None else 1, expected=expected, code="missing_column")


def _label(fields: Mapping[str, str]) -> str:
    """Returns the label; empty if there is none."""
    label = next((fields[column].strip() for column in _LABELS if column in fields), "")
    return "" if label in _NO_LABEL else label


def read(source: Source) -> list[Document]:
    """Reads one file.

    Returns:
        A document for each row, with its own id, or the file's name and the number of the row.

    Raises:
        DataError: It cannot be read, or has no columns that texts could be in.
    """
    name = stem(source.path, _SUFFIXES)
    documents = []
    for number, row in enumerate(_rows(source.path), start=1):
        _, own_name, fields = row
        texts = [fields[column] for column in _texts_of(source.path, number, row)]
        own = own_name or next((fields[key] for key in _IDS if fields.get(key, "").strip()), "")
        labels = tuple(filter(None, [_label(fields)]))
        metadata = {"genre": genre} if (genre := fields.get("genre")) else {}
        second = texts[1] if len(texts) > 1 else None
        own = own.strip() or f"{name}-{number}"
        documents.append(Document(own, texts[0], labels=labels, metadata=metadata, text_pair=second))
    labelled = [document for document in documents if document.labels]
    if labelled and len(labelled) < len(documents):
        logger.warning("%s: %d rows without a label left out", source.path, len(documents) - len(labelled))
    return labelled or documents


FORMAT = Format(
    read,
    suffixes=_SUFFIXES,
    passed_over=("diagnostic", "diagnostic-full", "dev_ids"),
    has_labels=lambda source: (bool(_label(fields)) for _, _, fields in _rows(source.path)),
)
