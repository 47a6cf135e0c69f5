from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nervaluate import Evaluator
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import IOB2

from fedstrata.core.documents import Span
from fedstrata.metrics.counts import Counts
from fedstrata.metrics.matching import SCHEMES
from fedstrata.metrics.spans import OVERALL, match_spans, score_names, scores_of

TYPES = ("drug", "problem", "test")

TAGS = st.lists(
    st.sampled_from(["O", *(f"{prefix}-{label}" for prefix in "BI" for label in TYPES)]),
    min_size=12,
    max_size=12,
)
CORPUS = st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=6)


def valid(tags: list[str]) -> list[str]:
    """Turns an I- that continues nothing into a B-, so that every scheme reads the same mentions."""
    fixed: list[str] = []
    for tag in tags:
        follows = bool(fixed) and fixed[-1] != "O" and fixed[-1][2:] == tag[2:]
        fixed.append(f"B-{tag[2:]}" if tag[0] == "I" and not follows else tag)
    return fixed


def spans(tags: list[str]) -> list[Span]:
    """Reads spans off valid tags; a token is one character."""
    found: list[Span] = []
    for position, tag in enumerate(tags):
        if tag[0] == "B":
            found.append(Span(position, position + 1, tag[2:]))
        elif tag[0] == "I":
            found[-1] = Span(found[-1].start, position + 1, tag[2:])
    return found


def nervaluate(gold: list[list[Span]], predicted: list[list[Span]]) -> dict[str, Any]:
    rows = [
        [[{"label": s.label, "start": s.start, "end": s.end - 1} for s in document] for document in side]
        for side in (gold, predicted)
    ]
    result: dict[str, Any] = Evaluator(*rows, tags=list(TYPES), loader="dict").evaluate()
    return result


def strict_counts(gold: list[list[Span]], predicted: list[list[Span]]) -> dict[str, Counts]:
    return match_spans(gold, predicted).by_type()


@given(CORPUS)
def test_scores_equal_seqeval_s_strict_mode(corpus: list[tuple[list[str], list[str]]]) -> None:
    gold, predicted = ([valid(pair[side]) for pair in corpus] for side in (0, 1))
    scores = scores_of(match_spans(list(map(spans, gold)), list(map(spans, predicted))), TYPES)
    for name, function in {"f1": f1_score, "precision": precision_score, "recall": recall_score}.items():
        arguments = {"mode": "strict", "scheme": IOB2, "zero_division": 0}
        assert scores[name] == pytest.approx(function(gold, predicted, average="micro", **arguments))
        present = sorted({tag[2:] for tags in gold + predicted for tag in tags if tag != "O"})
        by_type = function(gold, predicted, average=None, **arguments) if present else []
        for label, expected in zip(present, by_type, strict=True):
            assert scores[f"{name}/{label}"] == pytest.approx(expected)


@given(CORPUS)
def test_scores_equal_nervaluate_s_strict_scheme(corpus: list[tuple[list[str], list[str]]]) -> None:
    gold, predicted = ([spans(valid(pair[side])) for pair in corpus] for side in (0, 1))
    scores = scores_of(match_spans(gold, predicted), TYPES)
    result = nervaluate(gold, predicted)
    assert scores["f1"] == pytest.approx(result["overall"]["strict"].f1)
    assert scores["precision"] == pytest.approx(result["overall"]["strict"].precision)
    assert scores["recall"] == pytest.approx(result["overall"]["strict"].recall)
    for label, schemes in result["entities"].items():
        assert scores[f"f1/{label}"] == pytest.approx(schemes["strict"].f1)


def test_micro_scores_count_mentions_and_not_documents() -> None:
    gold = [[Span(0, 3, "drug"), Span(5, 9, "test")], [Span(0, 3, "drug")]]
    predicted = [[Span(0, 3, "drug"), Span(5, 8, "test"), Span(10, 12, "test")], []]
    scores = scores_of(match_spans(gold, predicted), ("drug", "test"))
    assert scores == {
        "f1": pytest.approx(2 / 6),
        "precision": pytest.approx(1 / 3),
        "recall": pytest.approx(1 / 3),
        "lenient_f1": pytest.approx(4 / 6),
        "lenient_precision": pytest.approx(2 / 3),
        "lenient_recall": pytest.approx(2 / 3),
        "untyped_f1": pytest.approx(2 / 6),
        "untyped_lenient_f1": pytest.approx(4 / 6),
        "f1/drug": pytest.approx(2 / 3),
        "precision/drug": 1.0,
        "recall/drug": 0.5,
        "lenient_f1/drug": pytest.approx(2 / 3),
        "f1/test": 0.0,
        "precision/test": 0.0,
        "recall/test": 0.0,
        "lenient_f1/test": pytest.approx(2 / 3),
    }
    assert list(scores) == list(score_names(("drug", "test")))
    prefixed = scores_of(match_spans(gold, predicted), ("drug", "test"), "ner_")
    assert list(prefixed) == list(score_names(("drug", "test"), "ner_"))
    assert list(prefixed)[:2] == ["ner_f1", "ner_precision"]
    assert list(prefixed.values()) == list(scores.values())


def test_equal_spans_count_once() -> None:
    once, twice = [Span(0, 3, "drug")], [Span(0, 3, "drug")] * 2
    assert (
        scores_of(match_spans([twice], [once]), ())
        == scores_of(match_spans([once], [twice]), ())
        == scores_of(match_spans([once], [once]), ())
    )


def test_order_within_a_document_does_not_matter_even_where_predictions_overlap() -> None:
    """nervaluate's strict scheme gives 0 here: the wrong prediction, seen first, uses up the gold span."""
    gold, predicted = [Span(0, 5, "drug")], [Span(0, 6, "drug"), Span(0, 5, "drug")]
    for order in permutations(predicted):
        assert strict_counts([gold], [list(order)]) == {"drug": Counts(1, 2, 1)}


def test_a_discontinuous_span_is_not_found_by_the_stretch_around_it() -> None:
    pieces = Span(0, 9, "problem", ((0, 3), (6, 9)))
    assert scores_of(match_spans([[pieces]], [[pieces]]), ())["f1"] == 1.0
    assert scores_of(match_spans([[pieces]], [[Span(0, 9, "problem")]]), ())["f1"] == 0.0


def test_nothing_to_find_scores_0_and_a_type_that_does_not_occur_has_no_score() -> None:
    empty = dict.fromkeys(OVERALL, 0.0)
    assert scores_of(match_spans([[], []], [[], []]), ("drug",)) == empty
    assert scores_of(match_spans([], []), ("drug",)) == empty
    invented = scores_of(match_spans([[]], [[Span(0, 3, "drug")]]), ("drug", "test"))
    of_drugs = ["f1/drug", "precision/drug", "recall/drug", "lenient_f1/drug"]
    assert invented == empty | dict.fromkeys(of_drugs, 0.0)


def test_spans_of_other_types_count_in_the_micro_scores_alone() -> None:
    scores = scores_of(
        match_spans([[Span(0, 3, "drug")]], [[Span(0, 3, "drug"), Span(4, 5, "test")]]), ("drug",)
    )
    assert (scores["precision"], scores["precision/drug"]) == (0.5, 1.0)
    assert "f1/test" not in scores


def test_documents_must_be_paired() -> None:
    with pytest.raises(ValueError, match="zip"):
        scores_of(match_spans([[]], []), ())


SCHEMES_OF_NERVALUATE = {"lenient": "ent_type", "untyped": "exact", "untyped_lenient": "partial"}


def found_by(result: dict[str, Any], scheme: str) -> int:
    """How many spans nervaluate finds, those of which it finds a part counted whole."""
    counts = result["overall"][SCHEMES_OF_NERVALUATE[scheme]]
    return int(counts.correct + counts.partial)


def alone(gold: list[Span], predicted: list[Span]) -> bool:
    """Whether no span overlaps two of the other side."""
    return all(
        sum(one.start < other.end and other.start < one.end for other in others) < 2
        for ones, others in ((gold, predicted), (predicted, gold))
        for one in ones
    )


@given(CORPUS)
def test_other_schemes_find_what_nervaluate_s_find_and_more_only_where_spans_overlap_several(
    corpus: list[tuple[list[str], list[str]]],
) -> None:
    gold, predicted = ([spans(valid(pair[side])) for pair in corpus] for side in (0, 1))
    result, matching = nervaluate(gold, predicted), match_spans(gold, predicted)
    ours = {
        "lenient": matching.total(SCHEMES["lenient_"]).correct,
        "untyped": matching.total(SCHEMES["untyped_"]).correct,
        "untyped_lenient": matching.total(SCHEMES["untyped_lenient_"]).correct,
    }
    assert ours["untyped"] == found_by(result, "untyped")
    for scheme, number in ours.items():
        assert number >= found_by(result, scheme)
        if all(map(alone, gold, predicted)):
            assert number == found_by(result, scheme)


def test_a_wrong_type_that_comes_first_does_not_use_up_a_span() -> None:
    """nervaluate's ent_type gives 0 here: the first prediction uses up the annotated span."""
    gold, predicted = [[Span(0, 9, "drug")]], [[Span(0, 3, "test"), Span(4, 9, "drug")]]
    assert found_by(nervaluate(gold, predicted), "lenient") == 0
    assert scores_of(match_spans(gold, predicted), TYPES)["lenient_recall"] == 1.0


def test_lenient_scores_look_for_the_most_matches() -> None:
    """nervaluate's ent_type finds one: it gives the first prediction the closer of two spans."""
    gold = [[Span(0, 2, "drug"), Span(2, 6, "drug")]]
    predicted = [[Span(1, 5, "drug"), Span(5, 6, "drug")]]
    assert found_by(nervaluate(gold, predicted), "lenient") == 1
    assert scores_of(match_spans(gold, predicted), TYPES)["lenient_f1"] == 1.0


def test_what_lies_in_the_gap_of_a_discontinuous_span_does_not_overlap_it() -> None:
    gold = [[Span(0, 9, "problem", ((0, 3), (6, 9)))]]
    assert scores_of(match_spans(gold, [[Span(3, 6, "problem")]]), TYPES)["untyped_lenient_f1"] == 0.0
    assert scores_of(match_spans(gold, [[Span(3, 7, "problem")]]), TYPES)["lenient_f1"] == 1.0
