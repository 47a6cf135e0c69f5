"""MIMIC-III tables: the notes of each admission (`NOTEEVENTS.csv`) with its codes (`DIAGNOSES_ICD.csv`).

Either table may be compressed (`.csv.gz`), and columns may be named in capitals (the database) or not (its
demo). `ADMISSIONS.csv` and `PATIENTS.csv` are checked against the notes if they are there.

- A document is an admission, its id HADM_ID. Its text is made of all its notes of the categories asked for
  (by default its discharge summaries), with a blank line between them: reports and their addenda together, as
  in Mullenbach et al., "Explainable Prediction of Medical Codes from Clinical Text" (CAML, NAACL 2018). They
  are ordered by CHARTTIME (CHARTDATE where it is empty, as for discharge summaries), at one time addenda
  last, then by ROW_ID.
- Its labels are the admission's ICD-9-CM codes in the order of SEQ_NUM, spelled with a dot (`data/icd9.py`).
- Rows with ISERROR 1 are left out. So are notes of admissions without codes, notes outside of an admission
  and rows of DIAGNOSES_ICD without a code; how many is logged.
- `metadata` has `patient` and `admission`. The tables name no sites; a sub-folder of tables is one.

NOTEEVENTS (4 GB) is read a row at a time, and only notes that are kept stay in memory.
"""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.core.settings.data import DISCHARGE_SUMMARY
from fedstrata.data.icd9 import dotted
from fedstrata.data.readers.files import Format, Source
from fedstrata.data.readers.folders import find_table
from fedstrata.data.readers.tables import read_rows

logger = logging.getLogger(__name__)

_SUFFIXES = (".csv", ".csv.gz")
_NUMBER = re.compile(r"([0-9]{1,12})(?:\.0)?")  # pandas writes 105331.0 where a column has gaps
_NOTE_COLUMNS = ("subject_id", "hadm_id", "text")


@dataclass(slots=True)
class Admission:
    """One admission.

    Attributes:
        patient: SUBJECT_ID.
        codes: Its ICD-9-CM codes with their dots, in the order of SEQ_NUM.
    """

    patient: str
    codes: list[str] = field(default_factory=list)


_Note = tuple[str, tuple[str, bool, int], str]
"""Of a row of NOTEEVENTS the ROW_ID, what an admission's notes are sorted by, and the text."""


def _number(path: Path, line: int, column: str, value: str) -> str:
    """Returns an identifier as digits without leading zeros; empty for an empty field."""
    match = _NUMBER.fullmatch(value.strip())
    if value.strip() and match is None:
        raise DataError(path, f"{column.upper()} is no number", line=line, code="wrong_form")
    return str(int(match[1])) if match else ""


def read_codes(folder: Path) -> dict[str, Admission]:
    """Reads `DIAGNOSES_ICD`.

    Args:
        folder: The folder of the tables.

    Returns:
        Each admission that has codes, by HADM_ID, in the order of the table.

    Raises:
        DataError: The table is missing or malformed, holds something that is no ICD-9-CM diagnosis code,
            gives a SEQ_NUM of an admission twice, or an admission to two patients.
    """
    path = find_table(folder, "diagnoses_icd", _SUFFIXES)
    if path is None:
        expected = "DIAGNOSES_ICD.csv or DIAGNOSES_ICD.csv.gz beside NOTEEVENTS.csv"
        raise DataError(folder, "has no table of diagnoses", expected=expected, code="not_found")
    found: dict[str, Admission] = {}
    numbered: dict[str, dict[int, str]] = {}
    blank = 0
    required = ("subject_id", "hadm_id", "seq_num", "icd9_code")
    for line, row in read_rows(path, required=required, fold_case=True):
        if not row["icd9_code"].strip():
            blank += 1
            continue
        patient, admission, position = (_number(path, line, name, row[name]) for name in required[:3])
        if not (patient and admission and position):
            message = "a code without SUBJECT_ID, HADM_ID or SEQ_NUM"
            raise DataError(path, message, line=line, expected="all three", code="missing")
        code = dotted(row["icd9_code"])
        if not code:
            expected = "3 to 5 digits, or V and 2 to 4, or E and 3 or 4"
            raise DataError(
                path,
                "ICD9_CODE is no ICD-9-CM diagnosis code",
                line=line,
                expected=expected,
                code="unknown_name",
            )
        if found.setdefault(admission, Admission(patient)).patient != patient:
            raise DataError(
                path, "the admission belongs to another patient in a row above", line=line, code="conflict"
            )
        codes = numbered.setdefault(admission, {})
        if int(position) in codes:
            raise DataError(
                path, f"the admission has a second code with SEQ_NUM {position}", line=line, code="duplicate"
            )
        codes[int(position)] = code
    for admission, codes in numbered.items():
        found[admission].codes = list(dict.fromkeys(code for _, code in sorted(codes.items())))
    if blank:
        logger.warning("%s: %d rows without a code left out", path, blank)
    return found


def _owners(folder: Path) -> dict[str, str] | None:
    """Returns the patient of each admission, checked against `PATIENTS`; none without `ADMISSIONS`."""
    path = find_table(folder, "admissions", _SUFFIXES)
    if path is None:
        return None
    patients = None
    if (listed := find_table(folder, "patients", _SUFFIXES)) is not None:
        rows = read_rows(listed, required=["subject_id"], fold_case=True)
        patients = {_number(listed, line, "subject_id", row["subject_id"]) for line, row in rows}
    owners: dict[str, str] = {}
    required = ("subject_id", "hadm_id")
    for line, row in read_rows(path, required=required, fold_case=True):
        patient, admission = (_number(path, line, name, row[name]) for name in required)
        if admission in owners:
            raise DataError(path, "a second row of the same HADM_ID", line=line, code="duplicate")
        if patients is not None and patient not in patients:
            raise DataError(
                path, "the row's SUBJECT_ID is not in the table PATIENTS", line=line, code="not_found"
            )
        owners[admission] = patient
    return owners


def _notes(
    path: Path,
    wanted: set[str] | None,
    admissions: Mapping[str, Admission],
    owners: Mapping[str, str] | None,
    left_out: Counter[str],
) -> dict[str, list[_Note]]:
    """Returns the notes that are kept, by admission; all tables say the same about whose they are."""
    notes: dict[str, list[_Note]] = {}
    required = _NOTE_COLUMNS if wanted is None else (*_NOTE_COLUMNS, "category")
    for line, row in read_rows(path, required=required, fold_case=True):
        if wanted is not None and row["category"].strip().lower() not in wanted:
            continue
        if row.get("iserror", "").strip() in {"1", "1.0"}:
            left_out["notes marked as errors"] += 1
            continue
        patient, admission = (_number(path, line, name, row[name]) for name in ("subject_id", "hadm_id"))
        if admission not in admissions:
            what = "notes of admissions without codes" if admission else "notes outside of an admission"
            left_out[what] += 1
            continue
        if admissions[admission].patient != patient:
            message = "the note's SUBJECT_ID is not the one its admission has in DIAGNOSES_ICD"
            raise DataError(path, message, line=line, code="conflict")
        if owners is not None and owners.get(admission) != patient:
            message = "the note's SUBJECT_ID and HADM_ID stand together in no row of ADMISSIONS"
            raise DataError(path, message, line=line, code="not_found")
        # The columns that notes are sorted by may be missing in a table cut down to a few.
        row_id = _number(path, line, "row_id", row.get("row_id", ""))
        time = row.get("charttime", "").strip() or row.get("chartdate", "").strip()
        addendum = row.get("description", "").strip().lower() == "addendum"
        others = notes.setdefault(admission, [])
        if row_id and any(other == row_id for other, _, _ in others):
            raise DataError(path, "a second row of the same ROW_ID", line=line, code="duplicate")
        others.append((row_id, (time, addendum, int(row_id or line)), row["text"]))
    return notes


def read(source: Source, categories: Sequence[str] | None = (DISCHARGE_SUMMARY,)) -> list[Document]:
    """Reads the notes of one `NOTEEVENTS` and joins the tables beside it.

    Args:
        source: The table of notes.
        categories: The CATEGORY of the notes to keep, without regard to case or outer blanks; all if None.

    Returns:
        A document an admission, in the order of their first notes.

    Raises:
        DataError: A table is missing or malformed, they do not fit each other, or no note is left.
    """
    folder = source.path.parent
    admissions, owners = read_codes(folder), _owners(folder)
    wanted = None if categories is None else {name.strip().lower() for name in categories}
    left_out: Counter[str] = Counter()
    notes = _notes(source.path, wanted, admissions, owners, left_out)
    counts = ", ".join(f"{count} {what}" for what, count in sorted(left_out.items()))
    if counts:
        logger.warning("%s: left out %s", source.path, counts)
    if not notes:
        kept = "any category" if categories is None else f"the category {' or '.join(categories)}"
        message = f"no note is left of {kept}" + (f"; left out: {counts}" if counts else "")
        raise DataError(
            source.path,
            message,
            expected="other data.mimic.categories (null keeps all)",
            code="not_enough_data",
        )
    return [
        Document(
            admission,
            "\n\n".join(text for _, _, text in sorted(own, key=itemgetter(1))),
            labels=tuple(admissions[admission].codes),
            metadata={"patient": admissions[admission].patient, "admission": admission},
        )
        for admission, own in notes.items()
    ]


FORMAT = Format(read, suffixes=_SUFFIXES, table="noteevents")
