from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
from support import Call
from told import assert_told

import fedstrata as fs
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.data import CorpusSettings
from fedstrata.data.divide import read_documents
from fedstrata.data.readers import read
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import WITHOUT_PATIENTS


def test_options_reach_the_notes(call: Call, tmp_path: Path) -> None:
    options = ("--sites", 2, "--notes", 12, "--notes-per-patient", 4, "--imbalance", 1.5, "--seed", 3)
    done = call("synth", *options, "--format", "jsonl", "--out", "notes")
    assert done.status == 0, done.err
    written = generate(seed=3, sites=2, notes=12, imbalance=1.5, notes_per_patient=4)
    assert read(tmp_path / "notes", "jsonl") == list(written)
    for part in ("12 notes", "2 sites", f"{len({note.patient for note in written})} patients"):
        assert part in done.out
    again = call("synth", *options, "--out", "notes")
    assert again.status == 2
    assert_told(again.err, "exists", values=["notes"])


@pytest.mark.parametrize("form", ["i2b2", "brat", "conll", "jsonl", "mimic"])
def test_patients_come_back_from_every_format(tmp_path: Path, form: str) -> None:
    """From a file beside those that have no place for them; unasked it is not written."""
    out = tmp_path / "notes"
    made = fs.synth(sites=2, notes=24, notes_per_patient=4, out=out, format=form)
    written = [note for own in made.values() for note in own]
    beside = form in WITHOUT_PATIENTS
    assert (out / "patients.csv").exists() == beside
    chosen = {"mimic": {"categories": None}} if form == "mimic" else {}
    corpus = CorpusSettings.model_validate({"format": form, "path": str(out), **chosen})
    documents = read_documents(corpus, Seed(0))
    if beside:
        assert not any(document.patient for document in documents)
        named = corpus.model_copy(update={"patients": str(out / "patients.csv")})
        documents = read_documents(named, Seed(0))
        fs.synth(sites=2, notes=4, out=tmp_path / "unasked", format=form)
        assert not (tmp_path / "unasked" / "patients.csv").exists()
    assert Counter(document.patient for document in documents) == Counter(note.patient for note in written)
    if form != "mimic":  # whose documents are called after their admission
        theirs = {document.id.rpartition("/")[2]: document.patient for document in documents}
        assert theirs == {note.id: note.patient for note in written}
        return
    with (out / "NOTEEVENTS.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.reader(file)) == [
            "ROW_ID", "SUBJECT_ID", "HADM_ID", "CHARTDATE", "CHARTTIME", "STORETIME", "CATEGORY",
            "DESCRIPTION", "CGID", "ISERROR", "TEXT",
        ]  # fmt: skip


def test_notes_under_the_admissions_of_other_tables(call: Call, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "diagnoses_icd.csv").write_text(
        "row_id,subject_id,hadm_id,seq_num,icd9_code\n1,7,20,2,4019\n2,7,20,1,25000\n3,8,31,1,V4581\n"
    )
    options = ("--notes", 40, "--format", "mimic", "--admissions", "tables", "--out", "out")
    done = call("synth", *options)
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


def test_what_cannot_be_written_exits_2_and_leaves_nothing(call: Call, tmp_path: Path) -> None:
    wrong: list[tuple[str, str, str, str]] = [
        ("--sites 0", "", "", ""),
        ("--format word", "", "", ""),
        ("--notes-per-patient 0", "", "", ""),
        ("--sites 9 --notes 4", "--notes", "out_of_range", "9"),
        ("--admissions . --format brat", "--admissions", "no_effect", "'brat'"),
        ("--admissions . --format mimic --notes 4", "", "not_found", "DIAGNOSES_ICD.csv"),
        (
            "--admissions . --format mimic --notes-per-patient 4",
            "--notes-per-patient",
            "no_effect",
            "--admissions",
        ),
    ]
    for arguments, path, code, value in wrong:
        done = call("synth", *arguments.split(), "--out", "out")
        assert done.status == 2
        if code:  # the others are told by the parser of the command line
            assert_told(done.err, code, at=path, values=[value])
    assert not list(tmp_path.iterdir())
