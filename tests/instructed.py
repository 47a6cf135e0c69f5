"""A note with mentions and modifiers, for tests of extraction."""

from __future__ import annotations

from dataclasses import replace

from fedstrata.core.documents import Document, Relation, Span

NOTE = Document(
    "note",
    "Denies fever. Severe chest pain since Monday.\nGiven aspirin 81 mg daily.",
    spans=(
        Span(0, 6, "negation"),
        Span(7, 12, "problem"),
        Span(14, 20, "severity"),
        Span(21, 31, "problem"),
        Span(32, 44, "temporal"),
        Span(52, 59, "drug"),
        Span(60, 65, "strength"),
    ),
    relations=(
        Relation(1, 0, "negation"),
        Relation(3, 2, "severity"),
        Relation(3, 4, "temporal"),
        Relation(5, 6, "strength"),
    ),
)
MODIFIERS = {"drug": ["strength"], "problem": ["negation", "severity", "temporal"]}
LACKING = replace(NOTE, relations=(), lacks_relations=True)
