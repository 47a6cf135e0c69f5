"""Two notes, and what a system found in the first: one mention too short, one and a relation misnamed."""

from __future__ import annotations

from dataclasses import replace

from fedstrata.core.documents import Document, Relation, Span

QUOTED = "Zebrafinch"
"""Stands in the first; no message may contain it."""
TEXT = f"{QUOTED} has severe chest pain and takes aspirin, 81 mg."
SEVERE, PAIN = Span(15, 21, "severity"), Span(22, 32, "problem")
ASPIRIN, MILLIGRAMS = Span(43, 50, "drug"), Span(52, 57, "strength")
GOLD = Document(
    "note",
    TEXT,
    (SEVERE, PAIN, ASPIRIN, MILLIGRAMS),
    (Relation(1, 0, "severity"), Relation(2, 3, "strength")),
)
FOUND = replace(
    GOLD,
    spans=(SEVERE, replace(PAIN, start=28), replace(ASPIRIN, label="treatment"), MILLIGRAMS),
    relations=(Relation(1, 0, "severity"), Relation(2, 3, "dosage")),
)
OTHER = Document("other", "No fever.", (Span(3, 8, "problem"),))
