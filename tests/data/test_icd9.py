"""ICD-9-CM codes with and without their dot."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedstrata.data.icd9 import category, dotted, without_dot


@pytest.mark.parametrize(
    "code", ["", "12", "40199.1", "401.", "401.999", "V5", "V4.581", "E88", "E888.91", "M54.5", "4O19"]
)
def test_what_is_no_code(code: str) -> None:
    assert dotted(code) == without_dot(code) == category(code) == ""


def test_every_code_of_the_table_of_titles(data_root: Path) -> None:
    with (data_root / "mimic3_demo" / "D_ICD_DIAGNOSES.csv").open(newline="") as file:
        codes = [row["icd9_code"] for row in csv.DictReader(file)]
    assert len(codes) == 14567
    for code in codes:
        assert without_dot(dotted(code)) == code
        assert len(category(code)) == (4 if code.startswith("E") else 3)
        assert dotted(code).startswith(category(code))
