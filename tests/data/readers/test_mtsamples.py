"""MTSamples: one document a transcription, with all its specialties."""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import pytest
from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read

KAGGLE = ["", "description", "medical_specialty", "sample_name", "transcription", "keywords"]


def table(path: Path, columns: list[str], *rows: list[str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def test_the_rows_of_one_transcription_are_one_document(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = table(
        tmp_path / "mtsamples.csv",
        KAGGLE,
        ["0", "d", " Surgery", "n", "SECRET one,\nwith lines ", "k"],
        ["1", "d", " Urology", "n", "two", ""],
        ["2", "d", " Letters", "n", " ", ""],
        ["3", "d", " Radiology", "n", "SECRET one,\nwith lines", "k"],
        ["4", "d", " Surgery", "n", "SECRET one,\nwith lines", "k"],
    )
    with caplog.at_level(logging.WARNING):
        documents = read(path, "mtsamples")
    assert documents == [
        Document(
            "mtsamples-1",
            "SECRET one,\nwith lines",
            labels=("Surgery", "Radiology"),
            metadata={"speciality": "Surgery"},
        ),
        Document("mtsamples-2", "two", labels=("Urology",), metadata={"speciality": "Urology"}),
    ]
    assert ": 1 rows" in caplog.text
    assert "SECRET" not in caplog.text


def test_all_specialties_in_one_field(tmp_path: Path) -> None:
    columns = ["sample_id", "specialties", "transcription"]
    table(tmp_path / "train.csv", columns, ["29", "Letters| Urology|", "text"])
    table(tmp_path / "test.csv", columns, ["30", "Surgery", "another"])
    found = {item.id: (item.labels, item.metadata["split"]) for item in read(tmp_path, "mtsamples")}
    assert found == {"train/29": (("Letters", "Urology"), "train"), "test/30": (("Surgery",), "test")}


@pytest.mark.parametrize(
    ("columns", "row", "line", "code", "values"),
    [
        (["specialties", "text"], ["a", "SECRET"], 1, "missing_column", ["transcription"]),
        (
            ["specialty", "transcription"],
            ["a", "SECRET"],
            1,
            "missing_column",
            ["medical_specialty", "specialties"],
        ),
        (["specialties", "transcription"], ["| ", "SECRET"], 2, "missing", []),
        (
            ["sample_id", "specialties", "transcription"],
            ["1", "a", "SECRET", ""],
            2,
            "wrong_count",
            ["4 fields"],
        ),
    ],
)
def test_tables_that_cannot_be_used(
    tmp_path: Path, columns: list[str], row: list[str], line: int, code: str, values: list[object]
) -> None:
    path = table(tmp_path / "t.csv", columns, row)
    with refused(DataError, code, values=values) as raised:
        read(path, "mtsamples")
    assert (raised.value.path, raised.value.line) == (path, line)
    assert "SECRET" not in str(raised.value)
