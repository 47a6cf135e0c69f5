"""Markup: what is written is read back, and what a model garbles is counted and never guessed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedstrata.core.documents import Span
from fedstrata.tasks.instruction.markup import (
    Faults,
    escape,
    mark,
    markable,
    read,
    unique_matches,
    unusable_types,
)

TYPES = ("problem", "test", "body location")
TEXTS = st.text(st.sampled_from("ab <>/span=\"'\n\té&lt;"), max_size=40) | st.text(max_size=30)


@st.composite
def annotated(draw: st.DrawFn) -> tuple[str, list[Span]]:
    text = draw(st.sampled_from(["", "<span", '<span class="test">', "</span>", "&lt;span "])) + draw(TEXTS)
    count = draw(st.integers(0, 5)) if text.strip() else 0
    spans = []
    for _ in range(count):
        start = draw(st.integers(0, len(text) - 1))
        end = draw(st.integers(start + 1, len(text)))
        if text[start:end].strip():
            spans.append(Span(start, end, draw(st.sampled_from(TYPES))))
    return text, spans


@given(annotated())
def test_what_is_written_is_read_back(case: tuple[str, list[Span]]) -> None:
    text, spans = case
    found, faults = read(text, mark(text, spans), TYPES)
    assert set(found) == {trimmed(text, span) for span in markable(spans)}
    assert faults == Faults()


def trimmed(text: str, span: Span) -> Span:
    inside = text[span.start : span.end]
    start = span.start + len(inside) - len(inside.lstrip())
    return Span(start, start + len(inside.strip()), span.label)


@given(annotated())
def test_what_markup_cannot_hold_crosses_what_it_holds(case: tuple[str, list[Span]]) -> None:
    _, spans = case
    kept = markable(spans)
    for one, other in pairwise(kept):
        assert not one.start < other.start < one.end < other.end
    for lost in set(spans) - set(kept):
        assert any(
            one.start < two.start < one.end < two.end
            for each in kept
            for one, two in ((lost, each), (each, lost))
        )


def test_the_markup_is_what_people_would_write() -> None:
    text = "No severe chest pain."
    spans = [Span(3, 20, "problem"), Span(10, 15, "body location")]
    expected = 'No <span class="problem">severe <span class="body location">chest</span> pain</span>.'
    assert mark(text, spans) == expected
    assert mark("WBC <span 4", []) == "WBC &lt;span 4"


PROBLEM = Span(8, 13, "problem")


@pytest.mark.parametrize(
    ("marked", "found", "faults"),
    [
        ('Reports <span class="problem">fever</span> and chills.', [PROBLEM], Faults()),
        ("Reports <span class='problem' >fever</span > and chills.", [PROBLEM], Faults()),
        ('Reports <span class="problem">fever and chills.', [], Faults(broken=1)),
        ("Reports fever</span> and chills.", [], Faults(broken=1)),
        ('Reports <span class="problem">fever</span> and <span class="pro', [PROBLEM], Faults(broken=1)),
        ('Reports <span class="disease">fever</span> and chills.', [], Faults(unknown=1)),
        ('Reports <span class="problem">fevers</span> and chills.', [], Faults(unaligned=1)),
        ('Reports <span class="problem">cough</span> and chills.', [], Faults(unaligned=1)),
        ('Reports <span class="problem"></span>fever and chills.', [], Faults(unaligned=1)),
        ('Reports<span class="problem"> </span>fever and chills.', [], Faults(unaligned=1)),
        ('Reported <span class="problem">fever</span> & chills.', [PROBLEM], Faults()),
        ('<span class="problem">fever</span>', [PROBLEM], Faults()),
        ('Reports <span class="problem">fever</span>', [PROBLEM], Faults()),
        (
            'Reports <span class="problem">fever</span> and <span class="problem">fever</span> and chills.',
            [],  # one of them is the source's, and the other made up
            Faults(unaligned=2),
        ),
        (
            '<span class="test"><span class="problem">Reports</span></span> fever and chills.',
            [Span(0, 7, "problem"), Span(0, 7, "test")],
            Faults(),
        ),
        ("", [], Faults()),
    ],
)
def test_broken_markup_gives_what_can_be_placed(marked: str, found: list[Span], faults: Faults) -> None:
    assert read("Reports fever and chills.", marked, TYPES) == (tuple(found), faults)


def test_a_mention_that_could_be_in_two_places_is_in_none() -> None:
    knees = "pain left knee, pain right knee"
    for source, marked in (
        (knees, '<span class="problem">pain</span> right knee'),  # the beginning and the end are the source's
        ("fever, fever", '<span class="problem">fever</span>'),
        ("no pain, then pain", '<span class="problem">pain</span>'),
        ("no pain, then pain", 'x <span class="problem">pain</span> x'),
        ("BP 120/80, repeat BP 130/85", '<span class="problem">BP</span> 130/85'),
    ):
        assert read(source, marked, TYPES) == ((), Faults(unaligned=1))


def test_an_answer_that_was_cut_off_is_the_beginning() -> None:
    source = "fever and fever and chills"
    marked = '<span class="problem">fever</span> and'
    for end in ("", " ", " <", " </spa", ' <span class="pro'):
        found, faults = read(source, marked + end, TYPES, finished=False)
        assert found == (Span(0, 5, "problem"),)
        assert faults["unaligned"] == 0
    assert read(source, marked, TYPES) == ((), Faults(unaligned=1))
    twice = f"fever and {marked} fever"
    assert read(source, twice, TYPES, finished=False) == read(source, twice, TYPES)


@pytest.mark.parametrize(
    ("source", "marked", "found"),
    [
        ("Has chest\r\npain now", 'Has <span class="problem">chest pain</span> now', (4, 15)),
        ("Has chest pain now", 'Has  <span class="problem">chest\n pain</span>\tnow', (4, 14)),
        ("Has chest pain now", 'Has<span class="problem"> chest pain </span>now', (4, 14)),
        ("Has chest pain now", 'Has <SPAN CLASS="problem">chest pain</Span> now', (4, 14)),
        ("<SPAN chest pain", '&lt;SPAN <span class="problem">chest pain</span>', (6, 16)),
    ],
)
def test_blanks_and_capitals_of_tags_are_all_alike(source: str, marked: str, found: tuple[int, int]) -> None:
    assert read(source, marked, TYPES) == ((Span(*found, "problem"),), Faults())


def test_a_long_sentence_is_read_whatever_is_changed_in_it() -> None:
    words = [f"word{number}" for number in range(2000)]
    source = " ".join(words)
    words[3], words[1500] = "changed", '<span class="problem">word1500</span>'
    (found,), faults = read(source, " ".join(words), TYPES)
    assert source[found.start : found.end] == "word1500"
    assert faults == Faults()


@given(st.text("ab ", max_size=5), st.text("ab ", max_size=5))
@example("ab", "aab")
def test_a_match_is_in_all_cheapest_alignments(one: str, other: str) -> None:
    found = unique_matches(_codes(one), _codes(other))
    assert found.tolist() == _naive(one, other)


@given(annotated(), st.text(max_size=60))
def test_anything_can_be_read(case: tuple[str, list[Span]], marked: str) -> None:
    text, _ = case
    found, _ = read(text, marked, TYPES)
    assert all(text[span.start : span.end].strip() for span in found)


@given(annotated(), st.data())
def test_a_change_elsewhere_moves_no_mention(case: tuple[str, list[Span]], data: st.DataObject) -> None:
    """A mention that is found in a changed text is where the one was that was written."""
    text, spans = case
    marked = mark(text, spans)
    place = data.draw(st.integers(0, len(marked)))
    found, _ = read(text, marked[:place] + "zzz" + marked[place:], TYPES)
    assert set(found) <= {trimmed(text, span) for span in spans}


def test_names_that_would_break_a_tag_are_told() -> None:
    assert unusable_types(["problem", 'a"b', "<x", " test", ""]) == ['a"b', "<x", " test", ""]
    assert escape("a < b") == "a < b"


def _codes(text: str) -> np.ndarray:
    return np.array([ord(character) for character in text], dtype=np.uint32)


def _naive(one: str, other: str) -> list[int]:
    """Enumerates all cheapest alignments."""
    best: list[tuple[int, list[int]]] = []

    def walk(i: int, j: int, cost: int, matched: list[int]) -> None:
        if i == len(one) and j == len(other):
            best.append((cost, matched))
            return
        if i < len(one) and j < len(other):
            same = one[i] == other[j]
            walk(i + 1, j + 1, cost + (not same), [*matched, j if same else -1])
        if i < len(one):
            walk(i + 1, j, cost + 1, [*matched, -1])
        if j < len(other):
            walk(i, j + 1, cost + 1, matched)

    walk(0, 0, 0, [])
    least = min(cost for cost, _ in best)
    places = [set(column) for column in zip(*(each for cost, each in best if cost == least), strict=True)]
    return [next(iter(place)) if len(place) == 1 else -1 for place in places]
