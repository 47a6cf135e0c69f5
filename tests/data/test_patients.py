"""Whose documents are, as a file says it."""

from __future__ import annotations

import csv
import gzip
import io
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.documents import Document, Span, spelling_key
from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.data.degenerate import alike_names
from fedstrata.data.patients import patients_of, read_patients, with_patients

SETTING = "data.patients"
NOTES = [
    Document("north/n1", "Fever.", site="north"),
    Document("north/n2", "Cough.", site="north", metadata={"split": "train"}),
    Document("south/n1", "Rash.", site="south", metadata={"patient": "p9"}),
]


@pytest.fixture
def table(tmp_path: Path):
    """Writes a file of patients."""

    def write(text: str | bytes, name: str = "patients.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def patients(documents: Sequence[Document]) -> dict[str, str]:
    return {document.id: document.patient for document in documents}


def test_documents_get_the_patient_of_the_file_and_keep_all_else(
    table, caplog: pytest.LogCaptureFixture
) -> None:
    named = with_patients(NOTES, table("document,patient\nnorth/n1,p1\nnorth/n2,p1\nsouth/n1,p9\n"), SETTING)
    assert patients(named) == {"north/n1": "p1", "north/n2": "p1", "south/n1": "p9"}
    assert named[1].metadata == {"split": "train", "patient": "p1"}
    assert [document.text for document in named] == [document.text for document in NOTES]
    assert patients_of(named) == {("north", "p1"), ("south", "p9")}
    assert not caplog.text
    named = with_patients(NOTES, table("document,patient\nnorth/n1,p1\n"), SETTING)
    assert patients(named) == {"north/n1": "p1", "north/n2": "", "south/n1": "p9"}


@pytest.mark.parametrize("blank", ["", "  ", "\t"])
def test_a_blank_patient_of_the_data_is_none(table, blank: str) -> None:
    notes = [Document("n1", "Fever.", metadata={"patient": blank})]
    assert notes[0].patient == ""
    assert patients_of(notes) == set()
    assert patients(with_patients(notes, table("document,patient\nn1,p1\n"), SETTING)) == {"n1": "p1"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\ufeffdocument,patient\r\nn1,p1\r\nn2,p1\r\n", "a.csv"),
        ('patient,document\n"p1",n1\n\np1 , n2\n', "b.CSV"),
        ("document\tpatient\nn1\tp1\nn2\tp1\nn1\tp1\n", "c.tsv"),
        (gzip.compress(b"document,patient\nn1,p1\nn2,p1\n", mtime=0), "d.csv.gz"),
    ],
)
def test_forms_of_the_file(table, text: str | bytes, name: str) -> None:
    assert read_patients(table(text, name)) == {"n1": "p1", "n2": "p1"}


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1, max_size=20)


@given(
    expected=st.dictionaries(NAMES.map(str.strip).filter(bool), NAMES.map(str.strip).filter(bool), min_size=1)
)
def test_any_names_come_back(tmp_path_factory: pytest.TempPathFactory, expected: dict[str, str]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("document", "patient"), *expected.items()])
    path = tmp_path_factory.mktemp("names") / "patients.csv"
    path.write_bytes(file.getvalue().encode())
    assert read_patients(path) == expected
    notes = [Document(name, "Fever.") for name in expected]
    assert patients(with_patients(notes, path, SETTING)) == {
        note: spelling_key(patient) for note, patient in expected.items()
    }


@pytest.mark.parametrize("other", ["7.0", " 7 ", "7\u00a0", "\uff17", "7\u200b", "7.00"])
def test_a_patient_that_is_spelt_otherwise_is_the_same(table, other: str) -> None:
    """One patient in train and test, or with two epsilons, would be protected by half."""
    one, two, three = (
        Document(str(n), "Fever.", metadata={"patient": each}) for n, each in enumerate(("7", other, "8"))
    )
    assert one.patient == two.patient != three.patient
    assert len(patients_of([one, two, three])) == 2
    assert Document("n", "Fever.", metadata={"patient": "Müller"}).patient == (
        Document("n", "Fever.", metadata={"patient": "MU\u0308LLER"}).patient
    )
    for told in alike_names([one, two, three], hide=False):
        assert ": 1;" in told
        assert "7" not in told, "names of patients are shown nowhere"


def test_labels_and_sites_that_are_spelt_otherwise_stay_apart_and_are_named() -> None:
    notes = [
        Document("1", "Fever.", (Span(0, 5, "problem"),), labels=("Yes",), site="North"),
        Document("2", "Fever.", (Span(0, 5, "Problem"),), labels=("yes ", "no"), site="north"),
    ]
    told = list(alike_names(notes, hide=True))
    assert len(told) == 3
    assert all(
        name in "".join(told)
        for name in ("'Yes' and 'yes '", "'Problem' and 'problem'", "'North' and 'north'")
    )
    assert not list(alike_names([notes[0], Document("3", "None.", labels=("no",), site="South")], hide=True))


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("", "missing", []),
        ("note,patient\nn1,p1\n", "missing_column", ["line 1", "document", "document, patient"]),
        ("n1,p1\nn2,p2\n", "missing_column", ["document, patient"]),
        ("document,patient\n", "not_enough_data", []),
        ("document,patient,site\nn1,p1,north\n", "unknown_name", ["'site'", "document and patient"]),
        ("document,patient\nn1,p1\nn2,\n", "missing", ["line 3", "the patient"]),
        ("document,patient\nn1,p1\n ,p2\n", "missing", ["line 3", "the document"]),
        ("document,patient\nn1,p1\nn2,p1\nn1,p2\n", "conflict", ["line 4", "'n1'", "'p2'", "'p1'", "line 2"]),
        ("document,patient\nn1\n", "wrong_count", ["line 2", "1 fields"]),
        (
            "document,patient\nn1,p\udcff".encode("utf-8", "surrogateescape"),
            "not_utf8",
            ["line 2", "byte 21"],
        ),
        (f"document,patient\nn1,{'Zebrafinch ' * 30}\n", "wrong_form", ["line 2", "patient", 329]),
        ('document,patient\nn1,"Zebrafinch\nfever"\n', "wrong_form", ["line 2", "patient", "2 lines"]),
    ],
)
def test_files_that_name_no_patients_are_told(
    table, text: str | bytes, code: str, values: list[object]
) -> None:
    with refused(DataError, code, values=values) as told:
        read_patients(table(text))
    assert "Zebrafinch" not in str(told.value)


def test_a_file_of_another_kind_or_that_is_not_there_is_told_by_its_setting(table, tmp_path: Path) -> None:
    for path, code in (
        (table("document,patient\nn1,p1\n", "patients.xlsx"), "wrong_format"),
        (tmp_path / "absent.csv", "not_found"),
    ):
        with refused(ConfigurationError, code, at="data.patients", values=[path]):
            with_patients(NOTES, path, SETTING)


def test_what_the_data_says_itself_must_be_the_same(table) -> None:
    path = table("document,patient\nnorth/n1,p1\nsouth/n1,p8\n")
    values = ["1 of 3 documents", "'south/n1'", "'p9'", "'p8'"]
    with refused(ConfigurationError, "conflict", values=values) as told:
        with_patients(NOTES, path, "data.external.else.patients")
    assert [problem.path for problem in told.value.problems] == ["data.external.else.patients"]
    assert "Rash" not in str(told.value)


def test_a_file_of_another_corpus_is_refused_and_rows_too_many_are_told(
    table, caplog: pytest.LogCaptureFixture
) -> None:
    path = table("document,patient\nn1,p1\nn2,p1\n")
    with refused(ConfigurationError, "not_found", at=SETTING, values=["2 documents", "'n1'", "'north/n1'"]):
        with_patients(NOTES, path, SETTING)
    path = table("document,patient\nnorth/n1,p1\nn2,p1\nn3,p1\n")
    with caplog.at_level(logging.WARNING):
        with_patients(NOTES, path, SETTING)
    for value in ("2 of the 3", "'n2'", "1 of 3", "'north/n2'"):
        assert value in caplog.text
