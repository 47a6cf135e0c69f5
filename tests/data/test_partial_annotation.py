"""Sites with annotations for some tasks only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.partial_annotation import mark_unannotated, require_sites, set_relations_aside

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
    with pytest.raises(ConfigurationError, match=r"task.mentions_only.*a site 'three'.*'one', 'two'"):
        require_sites(["three"], [BOTH, OTHER])
