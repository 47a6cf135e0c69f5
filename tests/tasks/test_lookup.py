from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Document, Span
from fedstrata.metrics.spans import match_spans, scores_of
from fedstrata.tasks.lookup import LookupTagger


def note(text: str, *mentions: tuple[str, str]) -> Document:
    """A note with the first occurrence of each mention annotated."""
    spans = (Span(text.index(words), text.index(words) + len(words), label) for words, label in mentions)
    return Document("note", text, tuple(sorted(spans, key=lambda span: (span.start, span.end))))


TRAINING = [
    note("severe chest pain, aspirin 5mg", ("chest pain", "problem"), ("aspirin", "drug"), ("5", "dose")),
    note("pain; chest pain at rest", ("pain", "problem"), ("chest pain at rest", "problem")),
    note("cold and COLD", ("cold", "problem"), ("COLD", "disease")),
    note("cold", ("cold", "problem")),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chest pain at rest, pain", [("chest pain at rest", "problem"), ("pain", "problem")]),
        ("Chest\r\n  PAIN.", [("Chest\r\n  PAIN", "problem")]),
        ("painful; 5mg, 50 mg", [("5", "dose")]),
        ("cold", [("cold", "problem")]),
        ("at rest: chest pain at", [("chest pain", "problem")]),
        ("chest pain", [("chest pain", "problem")]),
        ("chest", []),
    ],
    ids=["longest", "blanks and case", "whole words", "most frequent", "cut off", "at the end", "a part"],
)
def test_known_mentions_are_found(text: str, expected: list[tuple[str, str]]) -> None:
    found = LookupTagger.fit(TRAINING).predict(Document("new", text))
    assert [(text[span.start : span.end], span.label) for span in found] == expected


def test_equally_frequent_types_are_taken_in_alphabetical_order() -> None:
    training = [note("mole", ("mole", "problem")), note("mole", ("mole", "anatomy"))]
    assert LookupTagger.fit(training).predict(Document("new", "mole")) == (Span(0, 4, "anatomy"),)


def test_discontinuous_mentions_and_mentions_without_words_are_not_learned() -> None:
    training = [Document("a", "left   arm", (Span(0, 10, "problem", ((0, 4), (7, 10))), Span(4, 7, "test")))]
    tagger = LookupTagger.fit(training)
    assert tagger.lexicon == {}
    assert tagger.predict(training[0]) == ()
    assert LookupTagger.fit([]).predict(Document("new", "")) == ()


@given(st.lists(st.sampled_from(["aspirin", "ibuprofen", "fever", "no", "and", ", "]), max_size=20))
def test_a_corpus_without_ambiguity_is_tagged_without_error(words: list[str]) -> None:
    text, spans = "", []
    for word in words:
        start = len(text)
        text += word + " "
        if word in ("aspirin", "ibuprofen"):
            spans.append(Span(start, start + len(word), "drug"))
    document = Document("note", text, tuple(spans))
    answer = LookupTagger.fit([document]).predict(document)
    assert answer == document.spans
    assert scores_of(match_spans([spans], [answer]), ())["f1"] == (1.0 if spans else 0.0)
