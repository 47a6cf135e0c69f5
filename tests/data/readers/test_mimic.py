"""MIMIC-III tables: which notes are kept, how they join their codes, and how much memory that takes."""

from __future__ import annotations

import csv
import gzip
import io
import logging
import re
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import refused

import fedstrata as fs
from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write

NOTES = [
    "ROW_ID", "SUBJECT_ID", "HADM_ID", "CHARTDATE", "CHARTTIME", "STORETIME", "CATEGORY", "DESCRIPTION",
    "CGID", "ISERROR", "TEXT",
]  # fmt: skip
CODES = ["ROW_ID", "SUBJECT_ID", "HADM_ID", "SEQ_NUM", "ICD9_CODE"]


ALL = {"mimic": {"categories": None}}


def table(path: Path, columns: list[str], rows: list[list[object]]) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def note(row: int, admission: object, text: str, **cells: object) -> list[object]:
    usual = {"ROW_ID": row, "SUBJECT_ID": 7, "HADM_ID": admission, "CHARTDATE": "2101-01-09"}
    usual |= {"CATEGORY": "Discharge summary", "DESCRIPTION": "Report", "TEXT": text}
    return [{**usual, **cells}.get(column, "") for column in NOTES]


def codes(*rows: tuple[object, object, str], patient: int = 7) -> list[list[object]]:
    return [[number, patient, *row] for number, row in enumerate(rows, start=1)]


def folder(path: Path, notes: list[list[object]], diagnoses: list[list[object]]) -> Path:
    table(path / "NOTEEVENTS.csv", NOTES, notes)
    table(path / "DIAGNOSES_ICD.csv", CODES, diagnoses)
    return path


def test_an_admission_is_a_document_with_its_codes_in_order(tmp_path: Path) -> None:
    notes = [note(1, 20, "first"), note(2, 21, "second, of the same patient")]
    diagnoses = codes((20, 2, "4019"), (20, 1, "V4581"), (20, 3, "E8889"), (20, 4, "486"), (21, 1, "99591"))
    found = read(folder(tmp_path, notes, diagnoses), "mimic")
    assert [(each.id, each.text, each.labels, each.patient) for each in found] == [
        ("20", "first", ("V45.81", "401.9", "E888.9", "486"), "7"),
        ("21", "second, of the same patient", ("995.91",), "7"),
    ]


def test_notes_of_one_admission_are_put_together_in_the_order_of_time(tmp_path: Path) -> None:
    notes = [
        note(5, 20, "addendum", DESCRIPTION="Addendum"),
        note(9, 20, "later", CHARTDATE="2101-01-10"),
        note(6, 20, "report"),
        note(4, 20, "addendum of later", CHARTDATE="2101-01-10", DESCRIPTION="Addendum"),
        note(3, 20, "that evening", CHARTTIME="2101-01-09 20:00:00"),
    ]
    (document,) = read(folder(tmp_path, notes, codes((20, 1, "486"))), "mimic")
    expected = ["report", "addendum", "that evening", "later", "addendum of later"]
    assert document.text == "\n\n".join(expected)


def test_what_is_left_out_is_counted_and_not_quoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notes = [
        note(1, 20, "kept"),
        note(2, 20, "SECRET", CATEGORY="Nursing"),
        note(3, 20, "SECRET", ISERROR="1"),
        note(4, "", "SECRET"),
        note(5, 99, "SECRET"),
        note(6, 98, "SECRET"),
    ]
    diagnoses = codes((20, 1, "486"), (99, "", ""))
    with caplog.at_level(logging.WARNING):
        (document,) = read(folder(tmp_path, notes, diagnoses), "mimic")
    assert document.text == "kept"
    said = "\n".join(caplog.messages)
    counts = [re.findall(r"\b\d+\b", message.partition(".csv: ")[2]) for message in caplog.messages]
    assert counts == [["1"], ["1", "2", "1"]]
    assert "SECRET" not in said


def test_categories(tmp_path: Path) -> None:
    notes = [note(1, 20, "a"), note(2, 20, "b", CATEGORY="Physician "), note(3, 20, "c", CATEGORY="ECG")]
    path = folder(tmp_path, notes, codes((20, 1, "486")))
    for wanted, text in ((["physician", "ecg"], "b\n\nc"), (None, "a\n\nb\n\nc")):
        (document,) = fs.read(path, "mimic", mimic={"categories": wanted})
        assert document.text == text
    with refused(
        DataError, "not_enough_data", at="NOTEEVENTS.csv", values=["Radiology", "data.mimic.categories"]
    ):
        fs.read(path, "mimic", mimic={"categories": ["Radiology"]})
    table(tmp_path / "NOTEEVENTS.csv", ["SUBJECT_ID", "HADM_ID", "TEXT"], [[7, 20, "a"], [7, 20, "b"]])
    assert [document.text for document in fs.read(tmp_path, "mimic", **ALL)] == ["a\n\nb"]


def test_names_in_small_letters_compressed_tables_and_numbers_as_pandas_writes_them(tmp_path: Path) -> None:
    table(tmp_path / "noteevents.csv.gz", [name.lower() for name in NOTES], [note(1, "20.0", "a")])
    table(tmp_path / "Diagnoses_icd.CSV.gz", [name.lower() for name in CODES], codes((20, 1, "038.9")))
    (document,) = read(tmp_path, "mimic")
    assert (document.id, document.labels) == ("20", ("038.9",))


def test_notes_and_patients_are_checked_against_admissions(tmp_path: Path) -> None:
    folder(tmp_path, [note(1, 20, "x")], codes((20, 1, "486")))
    for row in ([7, 21], [8, 20]):
        table(tmp_path / "ADMISSIONS.csv", ["SUBJECT_ID", "HADM_ID"], [row])
        values = ["SUBJECT_ID", "HADM_ID", "ADMISSIONS"]
        with refused(DataError, "not_found", at="NOTEEVENTS.csv", values=values):
            read(tmp_path, "mimic")
    table(tmp_path / "ADMISSIONS.csv", ["SUBJECT_ID", "HADM_ID"], [[7, 20]])
    table(tmp_path / "PATIENTS.csv", ["SUBJECT_ID"], [[7]])
    assert len(read(tmp_path, "mimic")) == 1
    table(tmp_path / "PATIENTS.csv", ["SUBJECT_ID"], [[8]])
    with refused(DataError, "not_found", at="ADMISSIONS.csv", values=["SUBJECT_ID", "PATIENTS"]):
        read(tmp_path, "mimic")


def test_tables_that_are_missing_or_there_twice(tmp_path: Path) -> None:
    with refused(DataError, "not_enough_data", values=["NOTEEVENTS.csv, NOTEEVENTS.csv.gz"]):
        read(tmp_path, "mimic")
    table(tmp_path / "NOTEEVENTS.csv", NOTES, [note(1, 20, "x")])
    with refused(DataError, "not_found", values=["DIAGNOSES_ICD.csv"]):
        read(tmp_path, "mimic")
    table(tmp_path / "DIAGNOSES_ICD.csv", CODES, codes((20, 1, "486")))
    table(tmp_path / "NOTEEVENTS.csv.gz", NOTES, [note(1, 20, "x")])
    with refused(DataError, "duplicate", at="NOTEEVENTS.csv.gz", values=["NOTEEVENTS.csv"]):
        read(tmp_path, "mimic")


def test_the_synthetic_corpus_comes_back(tmp_path: Path) -> None:
    corpus = generate(seed=3, sites=2, notes=30)
    write(corpus, tmp_path / "mimic", "mimic")
    found = {item.id: item for item in fs.read(tmp_path / "mimic", "mimic", **ALL)}
    assert len(found) == 30
    for document in corpus:
        copy = found[document.metadata["admission"]]
        assert (copy.text, copy.labels) == (document.text, document.labels)
        assert copy.metadata["patient"] == document.metadata["patient"]
    kinds = Counter(document.metadata["kind"] for document in corpus)
    assert len(read(tmp_path / "mimic", "mimic")) == kinds["discharge summary"]


TEXTS = st.one_of(
    st.text(alphabet='aB1. \n\r\t,"\v\x1c\x85\u00a0\u2028\ufeff\U0001f600', max_size=40),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)


@given(texts=st.lists(TEXTS, min_size=1, max_size=5), compressed=st.booleans())
def test_any_text_comes_back(texts: list[str], compressed: bool) -> None:
    corpus = [
        Document(str(n), text, labels=("486",), metadata={"patient": "7", "admission": str(n)})
        for n, text in enumerate(texts, start=1)
    ]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "mimic"
        write(corpus, path, "mimic")
        if compressed:
            plain = path / "NOTEEVENTS.csv"
            (path / "NOTEEVENTS.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
            plain.unlink()
        assert read(path, "mimic") == corpus


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_notes_that_are_not_kept_take_no_memory(tmp_path: Path, suffix: str) -> None:
    """10 MB of nursing notes with line breaks, read in less than 2 MB."""
    table(tmp_path / "DIAGNOSES_ICD.csv", CODES, codes((20, 1, "486")))
    path = tmp_path / f"NOTEEVENTS{suffix}"
    body = (60 * 'He said ""no"". ' + "\n") * 20
    with gzip.open(path, "wt", compresslevel=1) if suffix == ".csv.gz" else path.open("w") as file:
        file.write(",".join(NOTES) + "\n1,7,20,,,,Discharge summary,Report,,,kept\n")
        for row in range(2, 502):
            file.write(f'{row},7,20,,,,Nursing,Report,,,"{body}"\n')
    tracemalloc.start()
    try:
        (document,) = read(tmp_path, "mimic")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert document.text == "kept"
    assert peak < 2e6
