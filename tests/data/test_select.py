from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import problems_of, refused

from fedstrata.core.documents import MODIFIERS_OF, Document, Relation, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.data import DataSettings, LabelSettings
from fedstrata.data.select import rename_relations, select_labels, select_relations, select_types, types_of

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
    assert problems_of(error.value) == [("data.types", "not_found")] * 2
    assert "'Drug'" in str(error.value)
    assert "'dose'" in str(error.value)
    assert "Disease, Symptom, drug, severity, strength" in str(error.value)


def test_naming_no_type_is_refused() -> None:
    with refused(ConfigurationError, "missing", at="data.types"):
        select_types([NOTE], [])


def test_mention_types_are_sorted_and_distinct() -> None:
    assert types_of([NOTE, NOTE], "spans") == ("Disease", "Symptom", "drug", "severity", "strength")


def related(documents: list[Document], **settings: Any) -> list[tuple[str, str, str]]:
    """The types of each relation's mentions and its own, once these settings have chosen."""
    return [
        (document.spans[own.head].label, document.spans[own.tail].label, own.label)
        for document in select_relations(documents, DataSettings(**settings))
        for own in document.relations
    ]


MODIFIED = replace(
    NOTE,
    id="m",
    relations=(
        Relation(1, 0, "MODIFY"),
        Relation(3, 4, "MODIFY"),
        Relation(3, 4, "MOD"),
        Relation(1, 2, "OVERLAP"),
        Relation(2, 0, "MODIFY"),
    ),
)


def test_relations_are_kept_by_their_types() -> None:
    everything = select_relations([MODIFIED], DataSettings())
    assert everything[0] is MODIFIED
    assert related([MODIFIED], relations=["OVERLAP", "MOD"]) == [
        ("drug", "strength", "MOD"),
        ("Disease", "Symptom", "OVERLAP"),
    ]


def test_relations_are_renamed_and_may_take_the_type_of_their_modifier() -> None:
    assert related([MODIFIED], relations={"MODIFY": "modifies", "MOD": "modifies"}) == [
        ("Disease", "severity", "modifies"),
        ("drug", "strength", "modifies"),
        ("Symptom", "severity", "modifies"),
    ]
    assert related([MODIFIED], relations={"MODIFY": "<modifier>"}) == [
        ("Disease", "severity", "severity"),
        ("drug", "strength", "strength"),
        ("Symptom", "severity", "severity"),
    ]


def test_relations_take_the_name_that_the_run_gives_to_the_modifier() -> None:
    renamed = select_types([MODIFIED], {"Disease": "problem", "Symptom": "problem", "severity": "how bad"})
    assert related(renamed, relations={"MODIFY": "<modifier>"}) == [("problem", "how bad", "how bad")]


def test_relations_are_kept_between_some_types() -> None:
    assert related([MODIFIED], modifiers={"drug": ["strength"], "Disease": ["Symptom"]}) == [
        ("drug", "strength", "MODIFY"),
        ("drug", "strength", "MOD"),
        ("Disease", "Symptom", "OVERLAP"),
    ]
    renamed = select_types([MODIFIED], {"Disease": "problem", "severity": "severity", "drug": "severity"})
    assert related(renamed, modifiers="clinical") == [("problem", "severity", "MODIFY")]
    assert "strength" not in MODIFIERS_OF["problem"]


def test_choices_of_relations_that_do_not_fit_the_data_are_all_told() -> None:
    with pytest.raises(ConfigurationError) as error:
        related([MODIFIED], relations={"modify": "<tail>"}, modifiers={"Drug": ["strength"]})
    text = str(error.value)
    assert problems_of(error.value) == [
        ("data.relations", "not_found"),
        ("data.relations", "reserved"),
        ("data.modifiers", "not_found"),
    ]
    for value in ("'modify'", "MOD, MODIFY", "'<tail>'", "<modifier>", "'Drug'", "Disease, Symptom, dru"):
        assert value in text
    with refused(ConfigurationError, "missing", at="data.relations", values=["MOD"]):
        related([MODIFIED], relations=[])
    with refused(ConfigurationError, "not_enough_data", at="data.modifiers", values=["5 relations"]):
        related([MODIFIED], modifiers={"drug": ["severity"]})


def test_an_input_of_a_prediction_keeps_relations_that_the_settings_do_not_name() -> None:
    settings = DataSettings(relations={"MODIFY": "<modifier>"}, modifiers={"drug": ["strength"]})
    found = rename_relations(MODIFIED, settings)
    assert found.relations == (Relation(3, 4, "strength"), Relation(3, 4, "MOD"))


def coded(*documents: str) -> list[Document]:
    """Documents with the labels named, set apart by blanks."""
    return [Document(str(n), "text", labels=tuple(labels.split())) for n, labels in enumerate(documents)]


def kept(documents: list[Document], usual: int | None = None, **settings: Any) -> list[str]:
    selected = select_labels(documents, LabelSettings(**settings), usual=usual)
    return [" ".join(document.labels) for document in selected]


def test_all_labels_are_kept_by_default_and_documents_stay_themselves() -> None:
    documents = coded("b a", "", "a")
    assert all(
        one is other for one, other in zip(select_labels(documents, LabelSettings()), documents, strict=True)
    )


def test_the_most_frequent_labels_and_the_alphabet_between_equals() -> None:
    documents = coded("d b", "c b", "a a a", "")
    assert kept(documents, top=1) == ["b", "b", "", ""]
    assert kept(documents, top=2) == ["b", "b", "a", ""]
    assert kept(documents, top=99) == kept(documents, top="all") == ["d b", "c b", "a", ""]


def test_what_null_means_depends_on_the_format() -> None:
    documents = coded("a b", "a", "c")
    assert kept(documents, usual=1) == ["a", "a", ""]
    assert kept(documents, usual=1, top="all") == ["a b", "a", "c"]
    assert kept(documents, usual=1, keep=["b", "c"]) == ["b", "", "c"]


def test_labels_by_name_and_the_most_frequent_of_those() -> None:
    documents = coded("a b c", "c b", "c")
    assert kept(documents, keep=["c", "a"]) == ["a c", "c", "c"]
    assert kept(documents, keep=["a", "b"], top=1) == ["b", "b", ""]


def test_documents_without_labels_can_be_left_out() -> None:
    documents = coded("a b", "b", "")
    assert kept(documents, keep=["a"], without_labels="drop") == ["a"]
    assert [item.id for item in select_labels(documents, LabelSettings(without_labels="drop"))] == ["0", "1"]
    with refused(
        ConfigurationError,
        "not_enough_data",
        at="data.labels.without_labels",
        values=["'drop'", "1 documents"],
    ):
        kept(coded(""), without_labels="drop")


def test_codes_are_shortened_before_they_are_counted_and_named() -> None:
    documents = coded("401.9 401.1 V45.81", "E888.9 401.9", "486 E888.1")
    assert kept(documents, digits=3) == ["401 V45", "E888 401", "486 E888"]
    assert kept(documents, digits=3, keep=["E888"]) == ["", "E888", "E888"]
    with refused(
        ConfigurationError, "wrong_form", at="data.labels.digits", values=["'Surgery'", "document 1"]
    ):
        kept(coded("401.9", "Surgery"), digits=3)


def test_labels_that_occur_nowhere_are_all_named() -> None:
    with pytest.raises(ConfigurationError) as error:
        kept(coded("401.9 Surgery", "Urology"), keep=["Surgery", "surgery", "4019"])
    assert problems_of(error.value) == [("data.labels.keep", "not_found")] * 2
    for value in ("'surgery'", "3 labels", "example Surgery"):
        assert value in str(error.value)
    with refused(ConfigurationError, "not_enough_data", at="data.labels.keep", values=["'a'"]):
        kept(coded(""), keep=["a"])


@given(
    sets=st.lists(st.sets(st.sampled_from("abcdef")), max_size=8), top=st.integers(1, 7), seed=st.randoms()
)
def test_no_label_that_is_left_out_is_more_frequent(sets: list[set[str]], top: int, seed: Random) -> None:
    documents = coded(*(" ".join(sorted(labels)) for labels in sets))
    counts = Counter(label for labels in sets for label in labels)
    chosen = {label for labels in kept(documents, top=top) for label in labels.split()}
    assert len(chosen) == min(top, len(counts))
    assert sum(counts[label] for label in chosen) == sum(sorted(counts.values(), reverse=True)[:top])
    shuffled = seed.sample(documents, len(documents))
    selected = select_labels(shuffled, LabelSettings(top=top))
    assert {label for document in selected for label in document.labels} == chosen
