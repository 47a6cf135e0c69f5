from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
from support import Call
from told import assert_told

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.data import CorpusSettings
from fedstrata.data.divide import read_documents
from fedstrata.data.readers import read
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import WITHOUT_PATIENTS


@pytest.mark.parametrize("form", ["i2b2", "brat", "conll", "jsonl"])
def test_what_is_written_is_read_back_site_by_site(call: Call, tmp_path: Path, form: str) -> None:
    done = call("synth", "--sites", "3", "--notes", "12", "--format", form, "--out", str(tmp_path / "notes"))
    assert done.status == 0, done.err
    for part in ("12 notes", "3 sites"):
        assert part in done.out
    documents = read(tmp_path / "notes", form)
    written = generate(seed=0, sites=3, notes=12)
    assert len(documents) == 12
    assert {document.site for document in documents} == {"site-1", "site-2", "site-3"}
    types = {"problem", "test", "treatment", "drug"}
    mentions = [
        sorted(
            (span.label, "".join(document.text[span.start : span.end].split()))
            for document in corpus
            for span in document.spans
            if span.label in types
        )
        for corpus in (documents, written)
    ]
    assert mentions[0] == mentions[1]


@pytest.mark.parametrize("form", ["i2b2", "brat", "conll", "jsonl", "mimic"])
def test_patients_come_back_from_every_format(call: Call, tmp_path: Path, form: str) -> None:
    """From a file beside those that have no place for them."""
    out = tmp_path / "notes"
    command = ("synth", "--sites", "2", "--notes", "24", "--format", form, "--out", str(out))
    done = call(*command, "--notes-per-patient", "4")
    assert done.status == 0, done.err
    written = generate(seed=0, sites=2, notes=24, notes_per_patient=4)
    assert f"{len({note.patient for note in written})} patients" in done.out
    beside = form in WITHOUT_PATIENTS
    assert (out / "patients.csv").exists() == beside
    chosen = {"mimic": {"categories": None}} if form == "mimic" else {}
    corpus = CorpusSettings.model_validate({"format": form, "path": str(out), **chosen})
    documents = read_documents(corpus, Seed(0))
    if beside:
        assert not any(document.patient for document in documents)
        named = corpus.model_copy(update={"patients": str(out / "patients.csv")})
        documents = read_documents(named, Seed(0))
    assert Counter(document.patient for document in documents) == Counter(note.patient for note in written)
    if form != "mimic":  # whose documents are called after their admission
        theirs = {document.id.rpartition("/")[2]: document.patient for document in documents}
        assert theirs == {note.id: note.patient for note in written}


def test_no_file_of_patients_is_written_unasked(call: Call, tmp_path: Path) -> None:
    assert call("synth", "--notes", "8", "--format", "brat", "--out", str(tmp_path / "notes")).status == 0
    assert not (tmp_path / "notes" / "patients.csv").exists()


def test_mimic_tables_have_their_real_columns_and_join(call: Call, tmp_path: Path) -> None:
    assert call("synth", "--notes", "12", "--format", "mimic", "--out", str(tmp_path)).status == 0
    with (tmp_path / "NOTEEVENTS.csv").open(newline="", encoding="utf-8") as file:
        notes = list(csv.DictReader(file))
    with (tmp_path / "DIAGNOSES_ICD.csv").open(newline="", encoding="utf-8") as file:
        codes = list(csv.DictReader(file))
    assert list(notes[0]) == [
        "ROW_ID", "SUBJECT_ID", "HADM_ID", "CHARTDATE", "CHARTTIME", "STORETIME", "CATEGORY", "DESCRIPTION",
        "CGID", "ISERROR", "TEXT",
    ]  # fmt: skip
    assert len(notes) == 12
    assert {code["HADM_ID"] for code in codes} <= {note["HADM_ID"] for note in notes}


def test_the_seed_decides_and_a_used_folder_is_refused(call: Call, tmp_path: Path) -> None:
    texts = {}
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert (
            call(
                "synth", "--notes", "4", "--seed", seed, "--format", "jsonl", "--out", str(tmp_path / name)
            ).status
            == 0
        )
        texts[name] = "".join(path.read_text() for path in sorted((tmp_path / name).rglob("*.jsonl")))
    assert texts["a"] == texts["b"] != texts["c"]
    again = call("synth", "--notes", "4", "--format", "jsonl", "--out", str(tmp_path / "a"))
    assert again.status == 2
    assert str(tmp_path / "a") in again.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--sites", "0"),
        ("--sites", "9", "--notes", "4"),
        ("--format", "word"),
        ("--notes-per-patient", "0"),
    ],
)
def test_bad_numbers_and_formats_exit_2(call: Call, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = call("synth", *arguments, "--out", str(tmp_path / "notes"))
    assert done.status == 2
    assert not (tmp_path / "notes").exists()


def test_notes_under_the_admissions_of_other_tables(call: Call, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "diagnoses_icd.csv").write_text(
        "row_id,subject_id,hadm_id,seq_num,icd9_code\n1,7,20,2,4019\n2,7,20,1,25000\n3,8,31,1,V4581\n"
    )
    done = call(
        "synth",
        "--notes",
        "40",
        "--format",
        "mimic",
        "--admissions",
        str(tables),
        "--out",
        str(tmp_path / "out"),
    )
    assert done.status == 0, done.err
    assert "2 notes" in done.out
    assert "3 codes" in done.out
    documents = read(tmp_path / "out", "mimic")
    assert [(item.id, item.labels, item.metadata["patient"]) for item in documents] == [
        ("20", ("250.00", "401.9"), "7"),
        ("31", ("V45.81",), "8"),
    ]
    # The notes join the tables they were written for as well.
    for table in ("DIAGNOSES_ICD", "ADMISSIONS", "PATIENTS"):
        (tmp_path / "out" / f"{table}.csv").unlink()
    (tables / "diagnoses_icd.csv").rename(tmp_path / "out" / "diagnoses_icd.csv")
    assert read(tmp_path / "out", "mimic") == documents


@pytest.mark.parametrize(
    ("arguments", "path", "code", "value"),
    [
        (["--format", "brat"], "--admissions", "no_effect", "'brat'"),
        (["--format", "mimic", "--notes", "4"], "", "not_found", "DIAGNOSES_ICD.csv"),
        (
            ["--format", "mimic", "--notes-per-patient", "4"],
            "--notes-per-patient",
            "no_effect",
            "--admissions",
        ),
    ],
)
def test_admissions_that_cannot_be_used_exit_2(
    call: Call, tmp_path: Path, arguments: list[str], path: str, code: str, value: str
) -> None:
    done = call("synth", *arguments, "--admissions", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.status == 2
    assert_told(done.err, code, at=path, values=[value])
    assert not (tmp_path / "out").exists()
