"""MTS-Dialog: dialogues with the section of a note that each gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read

ROWS = 'ID,section_header,section_text,dialogue\n0,CC,"Cough, fever.","Doctor: Yes?\nPatient: I ""cough""."\n'


def test_dialogues_are_pairs_with_the_text_of_their_section(tmp_path: Path) -> None:
    for name in ("MTS-Dialog-TrainingSet.csv", "MTS-Dialog-TestSet-1-MEDIQA-Chat-2023.csv"):
        (tmp_path / name).write_text("\ufeff" + ROWS)
    (tmp_path / "README.txt").write_text("read me")
    test, train = read(tmp_path, "mts_dialog")
    assert train == Document(
        "MTS-Dialog-TrainingSet/0",
        'Doctor: Yes?\nPatient: I "cough".',
        labels=("CC",),
        metadata={"section": "CC", "split": "train"},
        text_pair="Cough, fever.",
    )
    assert test.metadata["split"] == "test"


def test_dialogues_alone_are_the_input_of_a_prediction(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("dialogue\nDoctor: Yes?\n")
    assert read(tmp_path / "x.csv", "mts_dialog") == [Document("x-1", "Doctor: Yes?")]


@pytest.mark.parametrize(
    ("content", "line", "code", "values"),
    [
        ("ID,section_text\n0,SECRET\n", 1, "missing_column", ["dialogue"]),
        ("ID,section_text,dialogue\n0,SECRET, \n", 2, "missing", ["dialogue"]),
        ('dialogue\n"SECRET\n', 2, "cut_short", []),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, content: str, line: int, code: str, values: list[object]
) -> None:
    (tmp_path / "x.csv").write_text(content)
    with refused(DataError, code, at="x.csv", values=values) as raised:
        read(tmp_path / "x.csv", "mts_dialog")
    assert raised.value.line == line
    assert "SECRET" not in str(raised.value)
