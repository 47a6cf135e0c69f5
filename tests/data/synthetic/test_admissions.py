"""Synthetic notes under given admissions."""

from __future__ import annotations

from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.readers.mimic import Admission
from fedstrata.data.synthetic.admissions import under_admissions

NOTES = [
    Document("a", "pneumonia", labels=("486",), site="site-1", metadata={"evidence": "{}"}),
    Document("b", "diabetes", labels=("250.00",)),
    Document("c", "diabetes and hypertension", labels=("401.9", "250.00")),
]


def test_an_admission_gets_the_free_note_that_shares_most_codes_with_it() -> None:
    admissions = {
        "20": Admission("7", ["250.00", "401.9", "995.91"]),
        "21": Admission("7", ["250.00", "401.9"]),
        "22": Admission("8", ["401.9"]),
    }
    documents = under_admissions(NOTES, admissions)
    assert [item.text for item in documents] == ["diabetes and hypertension", "diabetes", "pneumonia"]
    assert documents[0] == Document(
        "20",
        "diabetes and hypertension",
        labels=("250.00", "401.9", "995.91"),
        metadata={"patient": "7", "admission": "20", "kind": "discharge summary"},
    )


def test_every_admission_needs_a_note() -> None:
    with refused(ConfigurationError, "not_enough_data", at="--notes", values=["3 notes", "4 admissions"]):
        under_admissions(NOTES, {str(number): Admission("1") for number in range(4)})
