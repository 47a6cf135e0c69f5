"""The floor for relations: a modifier belongs to the nearest mention that it may modify."""

from __future__ import annotations

from nearest import NearestLinker

from fedstrata.core.documents import Document, Relation, Span


def document(
    text: str, *labels: tuple[str, str], relations: tuple[tuple[int, int, str], ...] = ()
) -> Document:
    spans = tuple(Span(text.index(words), text.index(words) + len(words), label) for words, label in labels)
    return Document("note", text, spans, tuple(Relation(*each) for each in relations))


TRAINED = document(
    "severe pain and fever yesterday; mild nausea",
    ("severe", "severity"),
    ("pain", "problem"),
    ("fever", "problem"),
    ("yesterday", "time"),
    ("mild", "severity"),
    ("nausea", "problem"),
    relations=((1, 0, "grade"), (2, 3, "since"), (5, 4, "degree"), (2, 0, "degree")),
)


def test_each_modifier_is_linked_once_to_the_nearest_mention_that_it_may_modify() -> None:
    linker = NearestLinker.fit([TRAINED], most_words=3)
    note = document(
        "cough with mild fever today after aspirin",
        ("cough", "problem"),
        ("mild", "severity"),
        ("fever", "problem"),
        ("today", "time"),
        ("aspirin", "drug"),
    )
    assert linker.predict(note) == (Relation(2, 1, "degree"), Relation(2, 3, "since"))


def test_what_is_too_far_away_or_of_other_types_is_left_alone() -> None:
    linker = NearestLinker.fit([TRAINED], most_words=1)
    far = document("mild and quite long lasting fever", ("mild", "severity"), ("fever", "problem"))
    other = document("mild aspirin", ("mild", "severity"), ("aspirin", "drug"))
    assert linker.predict(far) == linker.predict(other) == linker.predict(Document("none", "text")) == ()


def test_of_two_as_near_the_first_is_taken() -> None:
    linker = NearestLinker.fit([TRAINED], most_words=3)
    note = document("pain mild fever", ("pain", "problem"), ("mild", "severity"), ("fever", "problem"))
    assert linker.predict(note) == (Relation(0, 1, "degree"),)
