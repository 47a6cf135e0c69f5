from __future__ import annotations

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


def predict(text: str) -> list[tuple[str, str]]:
    tagger = LookupTagger.fit(TRAINING)
    return [(text[span.start : span.end], span.label) for span in tagger.predict(Document("new", text))]


def test_the_longest_known_mention_is_taken() -> None:
    assert predict("chest pain at rest, chest pain at night, pain") == [
        ("chest pain at rest", "problem"),
        ("chest pain", "problem"),
        ("pain", "problem"),
    ]


def test_case_and_white_space_do_not_matter_and_offsets_are_those_of_the_text() -> None:
    assert predict("Chest\r\n  PAIN.") == [("Chest\r\n  PAIN", "problem")]


def test_only_whole_words_match_and_digits_are_words() -> None:
    assert predict("painful; 5mg, 50 mg") == [("5", "dose")]


def test_the_most_frequent_type_is_taken() -> None:
    assert predict("cold") == [("cold", "problem")]


def test_equally_frequent_types_are_taken_in_alphabetical_order() -> None:
    training = [note("mole", ("mole", "problem")), note("mole", ("mole", "anatomy"))]
    assert LookupTagger.fit(training).predict(Document("new", "mole")) == (Span(0, 4, "anatomy"),)


def test_a_known_mention_cut_off_at_the_end_of_the_text_is_not_found() -> None:
    assert predict("at rest: chest pain at") == [("chest pain", "problem")]
    assert predict("chest pain") == [("chest pain", "problem")]
    assert predict("chest") == []


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
