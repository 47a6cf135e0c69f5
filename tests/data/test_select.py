from __future__ import annotations

import pytest

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.select import mention_types, select_types

NOTE = Document(
    "note",
    "severe chest pain, aspirin 5mg",
    spans=(
        Span(0, 6, "severity"),
        Span(7, 17, "Disease"),
        Span(7, 17, "Symptom"),
        Span(19, 26, "drug"),
        Span(27, 30, "strength"),
    ),
    relations=(
        Relation(1, 0, "severity"),
        Relation(2, 0, "severity"),
        Relation(1, 2, "same"),
        Relation(3, 4, "strength"),
    ),
    site="north",
    metadata={"split": "test"},
)


def test_null_keeps_everything() -> None:
    assert select_types([NOTE], None) == [NOTE]


def test_a_list_keeps_its_types_and_what_holds_between_them() -> None:
    (kept,) = select_types([NOTE], ["strength", "drug", "severity"])
    assert kept.spans == (Span(0, 6, "severity"), Span(19, 26, "drug"), Span(27, 30, "strength"))
    assert kept.relations == (Relation(1, 2, "strength"),)
    assert (kept.id, kept.text, kept.site, kept.metadata) == (NOTE.id, NOTE.text, NOTE.site, NOTE.metadata)


def test_a_mapping_renames_and_merges() -> None:
    (kept,) = select_types([NOTE], {"Symptom": "problem", "Disease": "problem", "severity": "a modifier"})
    assert kept.spans == (Span(0, 6, "a modifier"), Span(7, 17, "problem"))
    assert kept.relations == (Relation(1, 0, "severity"),)


def test_renaming_keeps_spans_sorted_and_relations_on_them() -> None:
    note = Document(
        "n",
        "abc",
        (Span(0, 2, "a"), Span(0, 2, "b"), Span(2, 3, "c")),
        (Relation(0, 2, "r"), Relation(1, 2, "q")),
    )
    (kept,) = select_types([note], {"a": "z", "b": "y", "c": "c"})
    assert kept.spans == (Span(0, 2, "y"), Span(0, 2, "z"), Span(2, 3, "c"))
    assert kept.relations == (Relation(1, 2, "r"), Relation(0, 2, "q"))


def test_every_type_that_occurs_nowhere_is_named() -> None:
    with pytest.raises(ConfigurationError) as error:
        select_types([NOTE], ["drug", "Drug", "dose"])
    assert [problem.path for problem in error.value.problems] == ["data.types", "data.types"]
    assert "'Drug'" in str(error.value)
    assert "'dose'" in str(error.value)
    assert "Disease, Symptom, drug, severity, strength" in str(error.value)


def test_naming_no_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="names no type"):
        select_types([NOTE], [])


def test_mention_types_are_sorted_and_distinct() -> None:
    assert mention_types([NOTE, NOTE]) == ("Disease", "Symptom", "drug", "severity", "strength")
