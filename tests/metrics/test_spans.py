from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nervaluate import Evaluator
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import IOB2

from fedstrata.core.documents import Span
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


OF_NERVALUATE = {"": "strict", "lenient_": "ent_type", "untyped_": "exact", "untyped_lenient_": "partial"}
"""What it calls our schemes."""


def found_by(counts: Any) -> int:
    """How many spans nervaluate finds, those of which it finds a part counted whole."""
    return int(counts.correct + counts.partial)


def alone(gold: list[Span], predicted: list[Span]) -> bool:
    """Whether no span overlaps two of the other side."""
    return all(
        sum(one.start < other.end and other.start < one.end for other in others) < 2
        for ones, others in ((gold, predicted), (predicted, gold))
        for one in ones
    )


@given(CORPUS)
def test_schemes_find_what_nervaluate_s_find_and_more_only_where_spans_overlap_several(
    corpus: list[tuple[list[str], list[str]]],
) -> None:
    gold, predicted = ([spans(valid(pair[side])) for pair in corpus] for side in (0, 1))
    result, matching = nervaluate(gold, predicted), match_spans(gold, predicted)
    for scheme, name in OF_NERVALUATE.items():
        ours, theirs = matching.total(SCHEMES[scheme]).correct, found_by(result["overall"][name])
        assert ours >= theirs
        if scheme in ("", "untyped_") or all(map(alone, gold, predicted)):
            assert ours == theirs
    for label, counts in matching.by_type().items():
        assert counts.correct == result["entities"][label]["strict"].correct


def test_the_first_prediction_does_not_use_up_a_span() -> None:
    """nervaluate's ent_type finds one less: it gives the first prediction the closest span of any type."""
    for gold, predicted in (
        ([Span(0, 9, "drug")], [Span(0, 3, "test"), Span(4, 9, "drug")]),
        ([Span(0, 2, "drug"), Span(2, 6, "drug")], [Span(1, 5, "drug"), Span(5, 6, "drug")]),
    ):
        assert found_by(nervaluate([gold], [predicted])["overall"]["ent_type"]) == len(gold) - 1
        assert scores_of(match_spans([gold], [predicted]), TYPES)["lenient_recall"] == 1.0


def test_a_discontinuous_span_is_its_pieces() -> None:
    """Neither the stretch around them nor what lies in the gap."""
    pieces = Span(0, 9, "problem", ((0, 3), (6, 9)))
    for other, strict, lenient in (
        (pieces, 1.0, 1.0),
        (Span(0, 9, "problem"), 0.0, 1.0),
        (Span(3, 7, "problem"), 0.0, 1.0),
        (Span(3, 6, "problem"), 0.0, 0.0),
    ):
        scores = scores_of(match_spans([[pieces]], [[other]]), TYPES)
        assert (scores["f1"], scores["lenient_f1"]) == (strict, lenient)
