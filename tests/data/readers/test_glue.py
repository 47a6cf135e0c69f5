"""GLUE's tables and JSON: which columns, which rows, and what becomes of files without labels."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read

RTE = "index\tsentence1\tsentence2\tlabel\n"


def rte(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RTE + "".join(row + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        (
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n",
            "1\t70\t71\tA man.\tA boy.\r",
            Document("dev-1", "A man.", labels=("1",), text_pair="A boy."),
        ),
        (
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n",
            "3\t1\t2\tWho?\t\t0",
            Document("3", "Who?", labels=("0",), text_pair=""),
        ),
        (
            "index\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n",
            "4\tfiction\t( ROOT )\tA man.\tA boy.\tcontradiction\tneutral",
            Document("4", "A man.", labels=("neutral",), metadata={"genre": "fiction"}, text_pair="A boy."),
        ),
        ("sentence\tlabel\n", "a film\t1", Document("dev-1", "a film", labels=("1",))),
    ],
    ids=["mrpc", "qqp", "mnli", "sst2"],
)
def test_the_columns_of_each_data_set(tmp_path: Path, header: str, row: str, expected: Document) -> None:
    (tmp_path / "dev.tsv").write_bytes(f"{header}{row}\n".encode())
    assert read(tmp_path / "dev.tsv", "glue") == [expected]


FIELD = st.text(
    st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1, max_size=12
)


@given(rows=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=5))
@example(rows=[('"Never closed.', 'He said "yes".'), ("It's '' odd\u2028here.", '""')])
def test_any_text_without_a_tab_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    lines = [f"{number}\t{one}\t{two}\tentailment" for number, (one, two) in enumerate(rows)]
    path = rte(tmp_path_factory.mktemp("glue") / "train.tsv", *lines)
    assert [item.texts for item in read(path, "glue")] == rows


def test_rows_with_another_number_of_fields_are_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = rte(tmp_path / "train.tsv", "0\ta\tb\tx", "1\tSECRET with", "a break\tb\tx", "2\tc\td\ty")
    with caplog.at_level(logging.WARNING):
        assert [item.id for item in read(path, "glue")] == ["0", "2"]
    assert ": 2 rows" in caplog.text
    assert "SECRET" not in caplog.text


def test_rows_without_a_gold_label_are_left_out_where_others_have_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = rte(tmp_path / "train.tsv", "0\ta\tb\tx", "1\tc\td\t-", "2\te\tf\t-1", "3\tg\th\t")
    with caplog.at_level(logging.WARNING):
        assert [item.id for item in read(path, "glue")] == ["0"]
    assert ": 3 rows" in caplog.text
    alone = read(rte(tmp_path / "other.tsv", "1\tc\td\t-1"), "glue")
    assert alone == [Document("1", "c", text_pair="d")]


def test_matched_and_mismatched_parts_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    for name in ("train", "dev_matched", "dev_mismatched"):
        rte(tmp_path / f"{name}.tsv", "0\ta\tb\tx")
    (tmp_path / "diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
    (tmp_path / "README.txt").write_text("read me")
    found = {item.id: item.metadata["split"] for item in read(tmp_path, "glue")}
    assert found == {"train/0": "train", "dev_matched/0": "validation", "dev_mismatched/0": "validation"}


def test_a_test_set_without_labels_is_what_the_settings_say(tmp_path: Path) -> None:
    rte(tmp_path / "train.tsv", "0\ta\tb\tx")
    test = tmp_path / "test.tsv"
    test.write_text("index\tsentence1\tsentence2\n0\tSECRET\tb\n")
    with refused(DataError, "not_annotated", at="test.tsv", values=["data.unannotated: skip"]) as raised:
        read(tmp_path, "glue")
    assert raised.value.path == test
    assert [item.id for item in read(tmp_path, "glue", unannotated="skip")] == ["train/0"]
    assert [item.labels for item in read(tmp_path, "glue", unannotated="keep")] == [(), ("x",)]
    assert read(test, "glue") == [Document("0", "SECRET", text_pair="b")]  # the input of a prediction
