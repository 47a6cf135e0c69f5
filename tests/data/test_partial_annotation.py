"""Sites with annotations for some tasks only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import problems_of, refused

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.partial_annotation import (
    as_if_complete,
    declare,
    mark_unannotated,
    require_sites,
    set_relations_aside,
    types_missing,
)
from fedstrata.data.select import keep_types, select_types

BOTH = Document(
    "b",
    "severe pain",
    (Span(0, 6, "severity"), Span(7, 11, "problem")),
    (Relation(1, 0, "severity"),),
    site="one",
)
PLAIN = replace(BOTH, id="p", relations=())
OTHER = replace(PLAIN, id="o", site="two")


def test_a_site_without_a_single_relation_says_nothing_of_them() -> None:
    marked = mark_unannotated([PLAIN, OTHER, BOTH])
    assert marked == [PLAIN, replace(OTHER, lacks_relations=True), BOTH]


def test_relations_of_a_site_can_be_set_aside() -> None:
    other = replace(BOTH, site="two")
    assert set_relations_aside([BOTH, other], ["one"]) == (
        replace(BOTH, relations=(), lacks_relations=True),
        other,
    )


def test_an_unknown_site_is_told() -> None:
    require_sites(["one"], [BOTH, OTHER])
    with refused(
        ConfigurationError, "unknown_name", at="task.mentions_only", values=["'three'", "'one', 'two'"]
    ):
        require_sites(["three"], [BOTH, OTHER])


DRUGS = replace(BOTH, id="d", spans=(Span(0, 6, "drug"),), relations=(), site="two")


def test_what_a_site_does_not_annotate_is_left_out() -> None:
    """All of it at its own documents; those of other sites stay as they are."""
    ours, theirs = declare([BOTH, DRUGS], {"one": ["problem"]}, (), "data.annotates")
    assert ours.spans == (Span(7, 11, "problem"),)
    assert (ours.relations, ours.lacks_relations, ours.annotates) == ((), True, frozenset({"problem"}))
    assert theirs == DRUGS
    with_relations, _ = declare([BOTH, DRUGS], ["problem", "severity"], (), "data.annotates")
    assert (with_relations.relations, with_relations.lacks_relations) == (BOTH.relations, False)
    assert as_if_complete([ours]) == (replace(ours, annotates=None, lacks_relations=False),)


def test_names_that_are_nowhere_are_told_all_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        declare([BOTH, DRUGS], {"one": ["problm"], "three": ["drug"]}, (), "data.annotates")
    told = str(caught.value)
    expected = [("data.annotates", "unknown_name"), ("data.annotates.one", "unknown_name")]
    assert sorted(problems_of(caught.value)) == expected
    for value in ("'three'", "'one', 'two'", "'problm'", "mean 'problem'"):
        assert value in told
    declare([BOTH], ["problem", "test"], {"test"}, "data.annotates")  # the task names it: others have it


def test_mentions_that_are_left_out_since_several_types_have_one_name_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    types = {"problem": "finding", "severity": "finding"}
    (whole,) = select_types([replace(BOTH, annotates=frozenset(types))], types)
    assert (len(whole.spans), caplog.text) == (2, "")
    one = replace(BOTH, spans=BOTH.spans[1:], relations=(), annotates=frozenset({"problem"}))
    (partly,) = select_types([one], types, absent=["finding"])
    assert partly.spans == ()
    assert "'finding'" in caplog.text


def test_a_name_for_several_types_was_looked_for_where_all_of_them_were() -> None:
    types = {"problem": "finding", "severity": "finding", "drug": "drug"}
    both, one = (replace(BOTH, annotates=frozenset(own)) for own in (["problem", "severity"], ["problem"]))
    selected = select_types([both, replace(one, spans=(), relations=()), DRUGS], types)
    assert [document.annotates for document in selected] == [{"finding"}, frozenset(), None]
    kept = keep_types(replace(BOTH, spans=(), relations=(), annotates=frozenset({"finding"})), types)
    assert kept.annotates == {"finding"}


def test_types_that_a_site_lacks_without_saying_so_are_found() -> None:
    types = ("drug", "problem", "severity")
    assert types_missing([BOTH, DRUGS], ["spans"], types) == {
        "one": (["drug"], ["problem", "severity"]),
        "two": (["problem", "severity"], ["drug"]),
    }
    declared = replace(DRUGS, annotates=frozenset({"drug", "severity"}))
    assert types_missing([declared], ["spans"], types) == {"two": (["severity"], ["drug"])}


def test_the_types_of_related_mentions_are_not_among_those_that_nobody_looked_for() -> None:
    types = ("dosage", "severity")
    assert types_missing([BOTH], ["relations"], types) == {"one": (["dosage"], ["problem", "severity"])}
