"""The MIMIC-III tables: columns, identifiers, codes, quoting."""

from __future__ import annotations

import csv
from pathlib import Path

from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.writers import write

NOTE = 'He said "no",\r\nthen left.\n\nPlan:\r rest\u2028'


def note(number: int, patient: str, admission: str, *labels: str, **metadata: str) -> Document:
    identifiers = {"patient": patient, "admission": admission}
    return Document(f"n{number}", NOTE, labels=labels, site="s", metadata={**identifiers, **metadata})


def tables(folder: Path, documents: list[Document]) -> dict[str, list[dict[str, str]]]:
    write(documents, folder, "mimic")
    found = {}
    for path in folder.iterdir():
        with path.open(newline="", encoding="utf-8") as file:
            found[path.stem] = list(csv.DictReader(file))
    return found


def cells(rows: list[dict[str, str]], *columns: str) -> list[tuple[str, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def test_notes_and_codes_of_an_admission(tmp_path: Path) -> None:
    corpus = [
        note(1, "17", "205", "428.0", "V58.61", kind="discharge summary"),
        note(2, "17", "205", "401.9", "428.0", kind="progress note"),
        note(3, "17", "206", "E885.9"),
        note(4, "5", "7", kind="telephone call"),
    ]
    found = tables(tmp_path / "mimic", corpus)
    assert cells(found["NOTEEVENTS"], "ROW_ID", "SUBJECT_ID", "HADM_ID", "CATEGORY") == [
        ("1", "17", "205", "Discharge summary"),
        ("2", "17", "205", "Physician "),
        ("3", "17", "206", "Discharge summary"),
        ("4", "5", "7", "General"),
    ]
    assert cells(found["NOTEEVENTS"], "TEXT", "CHARTDATE") == [(NOTE, "")] * 4
    assert cells(found["DIAGNOSES_ICD"], "HADM_ID", "SEQ_NUM", "ICD9_CODE") == [
        ("205", "1", "4280"),
        ("205", "2", "V5861"),
        ("205", "3", "4019"),
        ("206", "1", "E8859"),
    ]
    admissions = [("17", "205"), ("17", "206"), ("5", "7")]
    assert cells(found["ADMISSIONS"], "SUBJECT_ID", "HADM_ID") == admissions
    assert cells(found["PATIENTS"], "SUBJECT_ID") == [("17",), ("5",)]


def test_columns_are_those_of_the_database(data_root: Path, tmp_path: Path) -> None:
    write([], tmp_path / "mimic", "mimic")
    originals = {"NOTEEVENTS": "NOTEEVENTS.header_only.csv"}
    for table in ("NOTEEVENTS", "DIAGNOSES_ICD", "ADMISSIONS", "PATIENTS"):
        original = data_root / "mimic3_demo" / originals.get(table, f"{table}.csv")
        header = original.read_text().splitlines()[0].upper().split(",")
        assert next(csv.reader([(tmp_path / "mimic" / f"{table}.csv").read_text()])) == header


def test_text_is_quoted_and_numbers_and_missing_values_are_not(tmp_path: Path) -> None:
    write([Document("n", "Fever.", metadata={"patient": "3", "admission": "4"})], tmp_path / "mimic", "mimic")
    header, row = (tmp_path / "mimic" / "NOTEEVENTS.csv").read_text().splitlines()
    assert header.startswith('"ROW_ID","SUBJECT_ID"')
    assert row == '1,3,4,,,,"Discharge summary","Report",,,"Fever."'


def test_identifiers_that_are_no_numbers_or_not_distinct_are_numbered(tmp_path: Path) -> None:
    corpus = [note(1, "p1", "1"), note(2, "p2", "1"), note(3, "p1", "1"), Document("alone", "")]
    rows = tables(tmp_path / "mimic", corpus)["NOTEEVENTS"]
    assert [row["SUBJECT_ID"] for row in rows] == ["10001", "10002", "10001", "10003"]
    assert [row["HADM_ID"] for row in rows] == ["100001", "100002", "100001", "100003"]


def test_a_label_that_is_no_code_is_refused(tmp_path: Path) -> None:
    with refused(DataError, "wrong_form", values=["'cardiology'"]):
        write([note(1, "1", "1", "cardiology")], tmp_path / "mimic", "mimic")
