"""Scores of relations."""

from __future__ import annotations

import pytest

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.metrics.relations import Triple, match_relations, triples_of
from fedstrata.metrics.spans import score_names, scores_of

PAIN = Span(10, 14, "problem")
SEVERE, CHEST = Span(0, 6, "severity"), Span(20, 25, "body location")
GOLD = [Triple(PAIN, SEVERE, "severity"), Triple(PAIN, CHEST, "body location")]


def test_the_triples_of_a_document_go_from_the_main_mention_to_its_modifier() -> None:
    relations = (Relation(1, 0, "severity"), Relation(1, 2, "body location"))
    document = Document("note", "severe    pain in the chest", (SEVERE, PAIN, CHEST), relations)
    assert triples_of(document) == tuple(GOLD)


def test_strict_lenient_and_untyped() -> None:
    predicted = [
        Triple(PAIN, Span(0, 6, "course"), "severity"),  # the modifier's own type is none of the triple
        Triple(Span(10, 17, "problem"), CHEST, "body location"),
        Triple(PAIN, CHEST, "temporal"),
    ]
    scores = scores_of(match_relations([GOLD], [predicted]), ("body location", "severity"), "re_")
    assert scores == {
        "re_f1": pytest.approx(2 / 5),
        "re_precision": pytest.approx(1 / 3),
        "re_recall": 0.5,
        "re_lenient_f1": pytest.approx(4 / 5),
        "re_lenient_precision": pytest.approx(2 / 3),
        "re_lenient_recall": 1.0,
        "re_untyped_f1": pytest.approx(4 / 5),
        "re_untyped_lenient_f1": pytest.approx(4 / 5),
        "re_f1/body location": 0.0,
        "re_precision/body location": 0.0,
        "re_recall/body location": 0.0,
        "re_lenient_f1/body location": 1.0,
        "re_f1/severity": 1.0,
        "re_precision/severity": 1.0,
        "re_recall/severity": 1.0,
        "re_lenient_f1/severity": 1.0,
    }
    assert list(scores) == list(score_names(("body location", "severity"), "re_"))


def test_equal_triples_count_once() -> None:
    assert scores_of(match_relations([GOLD * 2], [GOLD]), ())["f1"] == 1.0
