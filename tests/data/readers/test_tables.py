"""Rows of CSV files: quoting, line numbers, and what is refused."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.errors import DataError
from fedstrata.data.readers import tables
from fedstrata.data.readers.tables import read_rows


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_rows_with_the_lines_they_begin_on(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfid,Text \r\n1,"a ""b"",\r\nc\nd"\r\n\r\n2,\r\n'
    assert list(read_rows(written(tmp_path / "t.csv", content))) == [
        (2, {"id": "1", "Text": 'a "b",\r\nc\nd'}),
        (6, {"id": "2", "Text": ""}),
    ]


def test_names_of_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", b"A,b\n1,2\n")
    assert list(read_rows(path, required=["a"], fold_case=True)) == [(2, {"a": "1", "b": "2"})]
    assert list(read_rows(path, names=["x", "y"])) == [(1, {"x": "A", "y": "b"}), (2, {"x": "1", "y": "2"})]


def test_tabs_and_quotation_marks_that_mean_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "t.tsv", b'a\tb\n" one\ttwo "\n')
    assert list(read_rows(path, separator="\t")) == [(2, {"a": '" one', "b": 'two "'})]


def test_a_table_with_semicolons_is_told_from_one_with_a_broken_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;c\n1;2,3\n")
    with refused(DataError, "wrong_count", at="t.csv", values=["line 2", "2 fields", "semicolons"]):
        list(read_rows(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("content", "line", "code", "values"),
    [
        (b"", None, "missing", []),
        (b"a,b\n", 1, "missing_column", ["column c", "a, c"]),
        (b"a,c,SECRET,b,SECRET\n", 1, "duplicate", ["columns 3", "5"]),
        (b"a;c\n1;2\n", 1, "missing_column", ["a, c", "semicolons"]),
        (b"a,c\n1,2\n1\n", 3, "wrong_count", ["1 fields", "expected 2"]),
        (b'a,c\n"1\n",2\nSECRET,2,3\n', 4, "wrong_count", ["3 fields"]),
        (b'a,c\n"SECRET"x,2\n', 2, "malformed_data", []),
        (b'a,c\n1,2\n1,"SECRET\nSECRET', 3, "cut_short", []),
        (b'a,c\n1,"' + b"SECRET\n" * 300, 2, "too_long", [1000]),
        (b"a,c\n1,\rSECRET\n", 2, "malformed_data", []),
        (b"a,c\n1,SECRET\xff\n", 2, "not_utf8", ["byte 12"]),
    ],
)
def test_what_is_refused_is_named_without_the_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    line: int | None,
    code: str,
    values: list[object],
) -> None:
    monkeypatch.setattr(tables, "LONGEST_FIELD", 1000)
    path = written(tmp_path / "t.csv", content)
    with refused(DataError, code, values=values) as raised:
        list(read_rows(path, required=["a", "c"]))
    assert (raised.value.path, raised.value.line) == (path, line)
    assert "SECRET" not in str(raised.value)


CELLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(rows=st.lists(st.tuples(CELLS, CELLS), max_size=6), ends=st.sampled_from(["\n", "\r\n"]))
def test_any_table_comes_back(rows: list[tuple[str, str]], ends: str) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator=ends, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    with tempfile.TemporaryDirectory() as place:
        path = written(Path(place) / "t.csv.gz", gzip.compress(text.getvalue().encode()))
        assert [(row["a"], row["b"]) for _, row in read_rows(path)] == rows
