"""The error categories of predicted mentions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Span
from fedstrata.metrics.errors import CATEGORIES, ErrorCounts, count_errors, errors_of
from fedstrata.metrics.matching import STRICT, Item, place_of
from fedstrata.metrics.spans import match_spans

SPAN = st.builds(
    lambda start, length, label: Span(start, start + length, label),
    st.integers(0, 16),
    st.integers(1, 6),
    st.sampled_from(("drug", "problem", "test")),
)
SPANS = st.lists(SPAN, max_size=8, unique=True)
APART = st.lists(SPAN, max_size=8, unique_by=lambda span: (span.start, span.end))
CORPUS = st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=3)


def found(gold: list[Span], predicted: list[Span]) -> dict[str, tuple[int, int, int]]:
    """The categories that occur, with their errors and the mentions on both sides."""
    counts = count_errors(errors_of(match_spans([gold], [predicted])))
    assert list(counts) == list(CATEGORIES)
    return {name: (one.errors, one.gold, one.predicted) for name, one in counts.items() if one.errors}


def spans_in(text: str, *marked: tuple[str, str]) -> list[Span]:
    """Marks words of a text by what they are."""
    return [Span(text.index(words), text.index(words) + len(words), label) for words, label in marked]


# The examples of Table 7, its boundary error (which is a merger) and annotation error aside.
@pytest.mark.parametrize(
    ("text", "gold", "predicted", "expected"),
    [
        (
            "He was intubated for airway protection", [("airway protection", "treatment")], [],
            {"false negative": (1, 1, 0)},
        ),
        (
            "BLOOD ASA - NEG Ethanol", [("BLOOD ASA", "test")], [("BLOOD ASA", "drug")],
            {"type confusion": (1, 1, 1)},
        ),
        ("above the thoracic inlet", [], [("thoracic", "test")], {"false positive": (1, 0, 1)}),
        (
            "her ST segments with evolution of Q waves", [("evolution of Q waves", "test")],
            [("her ST segments", "test"), ("Q waves", "problem")],
            {"boundary and type": (1, 1, 1), "false positive": (1, 0, 1)},
        ),
        (
            "The nasogastric tube terminates", [("The nasogastric tube", "drug")],
            [("The nasogastric", "drug"), ("tube", "drug")], {"merged or split": (1, 1, 2)},
        ),
        (
            "His urine and serum tox screens", [("His urine", "test"), ("serum tox screens", "test")],
            [("His urine and serum tox screens", "test")], {"merged or split": (1, 2, 1)},
        ),
        (
            "severe chest pain", [("severe chest pain", "problem")], [("chest pain", "problem")],
            {"boundary": (1, 1, 1)},
        ),
    ],
)  # fmt: skip
def test_the_examples_of_the_paper(
    text: str,
    gold: list[tuple[str, str]],
    predicted: list[tuple[str, str]],
    expected: dict[str, tuple[int, int, int]],
) -> None:
    assert found(spans_in(text, *gold), spans_in(text, *predicted)) == expected


def test_what_is_found_exactly_is_no_error_and_takes_part_in_none() -> None:
    exact = Span(0, 9, "drug")
    assert found([exact], [exact]) == {}
    assert found([exact], [exact, Span(4, 9, "drug")]) == {"false positive": (1, 0, 1)}
    assert found([exact, Span(4, 9, "test")], [exact]) == {"false negative": (1, 1, 0)}


def test_the_same_place_goes_before_the_same_type() -> None:
    gold, predicted = [Span(0, 9, "drug")], [Span(0, 9, "test"), Span(0, 5, "drug")]
    assert found(gold, predicted) == {"type confusion": (1, 1, 1), "false positive": (1, 0, 1)}


def test_the_same_type_goes_before_another() -> None:
    gold, predicted = [Span(0, 9, "drug")], [Span(0, 4, "test"), Span(5, 9, "drug")]
    assert found(gold, predicted) == {"boundary": (1, 1, 1), "false positive": (1, 0, 1)}


def test_overlaps_between_documents_are_none() -> None:
    errors = errors_of(match_spans([[Span(0, 9, "drug")], []], [[], [Span(0, 9, "drug")]]))
    assert [(error.category, error.document) for error in errors] == [
        ("false negative", 0),
        ("false positive", 1),
    ]


@given(CORPUS)
def test_every_mention_without_an_exact_match_is_in_one_error(
    corpus: list[tuple[list[Span], list[Span]]],
) -> None:
    gold, predicted = [own for own, _ in corpus], [own for _, own in corpus]
    errors = errors_of(match_spans(gold, predicted))
    for number, (ones, others) in enumerate(corpus):
        own = [error for error in errors if error.document == number]
        exact = {item(span) for span in ones} & {item(span) for span in others}
        for spans, in_errors in (
            (ones, [one for error in own for one in error.gold]),
            (others, [one for error in own for one in error.predicted]),
        ):
            assert sorted(in_errors) == sorted({item(span) for span in spans} - exact)
    counts = count_errors(errors)
    correct = match_spans(gold, predicted).total(STRICT).correct
    assert sum(one.gold for one in counts.values()) == sum(map(len, gold)) - correct
    assert sum(one.predicted for one in counts.values()) == sum(map(len, predicted)) - correct


def item(span: Span) -> Item:
    return Item((place_of(span),), span.label)


@given(CORPUS)
def test_each_error_is_what_its_category_says(corpus: list[tuple[list[Span], list[Span]]]) -> None:
    errors = errors_of(match_spans([own for own, _ in corpus], [own for _, own in corpus]))
    for error in errors:
        numbers = len(error.gold), len(error.predicted)
        labels = {one.label for one in (*error.gold, *error.predicted)}
        if error.category in ("false negative", "false positive"):
            assert numbers == ((1, 0) if error.category == "false negative" else (0, 1))
            continue
        assert all(any(overlap(one, other) for other in error.predicted) for one in error.gold)
        assert all(any(overlap(one, other) for one in error.gold) for other in error.predicted)
        same_place = {one.places for one in error.gold} == {one.places for one in error.predicted}
        if error.category == "merged or split":
            assert sum(numbers) > 2
            assert len(labels) == 1
        else:
            assert numbers == (1, 1)
            assert (len(labels) == 1) is (error.category == "boundary")
            assert same_place is (error.category == "type confusion")


def overlap(one: Item, other: Item) -> bool:
    ((begin, end),), ((start, stop),) = one.places[0], other.places[0]
    return start < end and begin < stop


@given(CORPUS)
def test_what_is_left_does_not_overlap(corpus: list[tuple[list[Span], list[Span]]]) -> None:
    """Else it would have been paired."""
    errors = errors_of(match_spans([own for own, _ in corpus], [own for _, own in corpus]))
    for number in range(len(corpus)):
        own = [error for error in errors if error.document == number]
        missed = [error.gold[0] for error in own if error.category == "false negative"]
        invented = [error.predicted[0] for error in own if error.category == "false positive"]
        assert not any(overlap(one, other) for one in missed for other in invented)


@given(st.lists(st.tuples(APART, APART), min_size=1, max_size=3))
def test_the_other_way_round_misses_are_inventions(corpus: list[tuple[list[Span], list[Span]]]) -> None:
    """Where one side has two types at one place, either may be taken for the confused one."""
    gold, predicted = [own for own, _ in corpus], [own for _, own in corpus]
    there, back = (
        count_errors(errors_of(match_spans(*sides))) for sides in ((gold, predicted), (predicted, gold))
    )
    turned = {"false negative": "false positive", "false positive": "false negative"}
    for category, counts in there.items():
        other = back[turned.get(category, category)]
        assert counts == ErrorCounts(other.errors, other.predicted, other.gold)
