"""Matches are as many as can be, held against other ways to count them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Span
from fedstrata.metrics.matching import LENIENT, SCHEMES, Place, Scheme, place_of
from fedstrata.metrics.relations import Triple, match_relations
from fedstrata.metrics.spans import match_spans

TYPES = ("drug", "problem")


@st.composite
def pieces(draw: st.DrawFn) -> Place:
    """One to three stretches of a text of 30 characters."""
    bounds = sorted(draw(st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True)))
    return tuple(zip(bounds[::2], bounds[1::2], strict=False))


def span_of(place: Place, label: str) -> Span:
    return Span(place[0][0], place[-1][1], label, place if len(place) > 1 else ())


BROKEN = st.builds(span_of, pieces(), st.sampled_from(TYPES))
PLACES = st.tuples(st.integers(0, 4), st.integers(1, 3)).map(lambda pair: Span(pair[0], sum(pair), ""))
TRIPLES = st.builds(Triple, PLACES, PLACES, st.sampled_from(TYPES))


def corpora(items: st.SearchStrategy[Span] | st.SearchStrategy[Triple]) -> st.SearchStrategy:
    """The annotated and the predicted items of a few documents."""
    side = st.lists(items, max_size=5, unique=True)
    return st.lists(st.tuples(side, side), min_size=1, max_size=3)


def split(corpus: Sequence[tuple[list, list]]) -> tuple[list, list]:
    return [gold for gold, _ in corpus], [predicted for _, predicted in corpus]


def characters(span: Span) -> set[int]:
    return {position for start, end in place_of(span) for position in range(start, end)}


def most(agree: list[list[bool]], row: int = 0, taken: frozenset[int] = frozenset()) -> int:
    """Tries every choice."""
    if row == len(agree):
        return 0
    found = [
        1 + most(agree, row + 1, taken | {column})
        for column, fits in enumerate(agree[row])
        if fits and column not in taken
    ]
    return max([*found, most(agree, row + 1, taken)])


def of_type(spans: list[Span], label: str) -> list[Span]:
    return [span for span in spans if span.label == label]


def agree(one: Any, other: Any, scheme: Scheme) -> bool:
    """Whether two spans match, or two triples whose ends both do."""
    if not scheme.untyped and one.label != other.label:
        return False
    ends = [(one, other)]
    if isinstance(one, Triple):
        ends = [(one.main, other.main), (one.modifier, other.modifier)]
    if scheme.lenient:
        return all(characters(here) & characters(there) for here, there in ends)
    return all(place_of(here) == place_of(there) for here, there in ends)


def most_of(gold: list, predicted: list, scheme: Scheme) -> int:
    return most([[agree(one, other, scheme) for other in predicted] for one in gold])


@given(corpora(BROKEN))
def test_every_scheme_finds_the_most_matches_there_are(
    corpus: Sequence[tuple[list[Span], list[Span]]],
) -> None:
    matching = match_spans(*split(corpus))
    for scheme in SCHEMES.values():
        rows = matching.by_document(scheme)
        assert rows.tolist() == [
            [len(gold), len(predicted), most_of(gold, predicted, scheme)] for gold, predicted in corpus
        ]
        total = matching.total(scheme)
        assert rows.sum(axis=0).tolist() == [total.gold, total.predicted, total.correct]
        matched = matching.matched(scheme)
        assert len(np.unique(matched[:, 0])) == len(np.unique(matched[:, 1])) == len(matched)


@given(corpora(BROKEN))
def test_lenient_matches_of_a_type_are_the_most_there_are(
    corpus: Sequence[tuple[list[Span], list[Span]]],
) -> None:
    counts = match_spans(*split(corpus)).by_type(lenient=True)
    for label in TYPES:
        expected = sum(
            most_of(of_type(gold, label), of_type(predicted, label), LENIENT) for gold, predicted in corpus
        )
        assert (counts[label].correct if label in counts else 0) == expected


@given(corpora(TRIPLES))
def test_relations_match_where_both_places_do(corpus: Sequence[tuple[list[Triple], list[Triple]]]) -> None:
    matching = match_relations(*split(corpus))
    for scheme in SCHEMES.values():
        expected = sum(most_of(gold, predicted, scheme) for gold, predicted in corpus)
        assert matching.total(scheme).correct == expected
