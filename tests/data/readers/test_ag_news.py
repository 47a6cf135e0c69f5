"""AG News: classes by name, titles and descriptions as one text, escapes as line breaks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read

ROWS = (
    '"3","Fears for T N ","Unions say ""no""."\n'
    '"1","Comma, in it","\\\\""Quoted, by\\\\""a second\\line of a text."\n'
    '"4","Ends","in a break.\\"\n'
)


def test_rows_are_titles_and_descriptions_with_the_names_of_their_classes(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(ROWS)
    (tmp_path / "test.csv.gz").write_bytes(gzip.compress(ROWS.splitlines()[0].encode()))
    (tmp_path / "classes.txt").write_text("Earth\r\nGames\nMoney\n\nTech\n")
    (tmp_path / "readme.txt").write_text("SECRET")
    test, *train = read(tmp_path, "ag_news")
    assert test.metadata == {"split": "test"}
    assert train == [
        Document(
            "train/train-1", 'Fears for T N Unions say "no".', labels=("Money",), metadata={"split": "train"}
        ),
        Document(
            "train/train-2",
            'Comma, in it \n\n"Quoted, by\n\n"a second\nline of a text.',
            labels=("Earth",),
            metadata={"split": "train"},
        ),
        Document("train/train-3", "Ends in a break.", labels=("Tech",), metadata={"split": "train"}),
    ]


def test_without_a_file_of_names_the_classes_are_ag_news_s_own(tmp_path: Path) -> None:
    (tmp_path / "news.csv").write_text("Class Index,Title,Description\n" + ROWS)
    assert [item.labels for item in read(tmp_path / "news.csv", "ag_news")] == [
        ("Business",), ("World",), ("Sci/Tech",),
    ]  # fmt: skip


def test_json_counts_classes_from_zero(tmp_path: Path) -> None:
    records = {"0": {"ori": "One\\two", "label": "3"}, "x": {"text": "Three", "label": 0}}
    (tmp_path / "dev.json").write_text(json.dumps(records))
    assert read(tmp_path / "dev.json", "ag_news") == [
        Document("0", "One\ntwo", labels=("Sci/Tech",)),
        Document("x", "Three", labels=("World",)),
    ]


@pytest.mark.parametrize(
    ("name", "content", "line", "code", "values"),
    [
        (
            "a.csv",
            '"1","a","b"\n"5","SECRET","b"\n',
            2,
            "out_of_range",
            ["1 to 4"],
        ),
        ("a.csv", '"0","SECRET","b"\n', 1, "out_of_range", []),
        ("a.csv", '"SECRET","a","b"\n', 1, "out_of_range", []),
        ("a.csv", '"1","SECRET"\n', 1, "wrong_count", ["2 fields"]),
        ("a.json", '{"0": {"ori": "SECRET", "label": "4"}}', None, "out_of_range", ["record 1"]),
        ("a.json", '[{"ori": "SECRET"}]', None, "missing_column", ["record 1"]),
        ("classes.txt", "World\nWorld\n", None, "duplicate", []),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, name: str, content: str, line: int | None, code: str, values: list[object]
) -> None:
    (tmp_path / "a.csv").write_text(ROWS)
    (tmp_path / name).write_text(content)
    with refused(DataError, code, values=values) as raised:
        read(tmp_path / (name if name != "classes.txt" else "a.csv"), "ag_news")
    assert (raised.value.path, raised.value.line) == (tmp_path / name, line)
    assert "SECRET" not in str(raised.value)
