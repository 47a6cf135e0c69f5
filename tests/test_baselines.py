"""What needs no language model: labels that words give away, and modifiers of the nearest mention."""

from __future__ import annotations

import warnings

import pytest
from baselines import tfidf_baseline
from nearest import NearestLinker

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.data.split import Split
from fedstrata.tasks.classify import DocumentClassification

WORDS = {"heart": "dyspnoea oedema", "kidney": "oliguria creatinine", "lung": "cough wheeze"}


def notes(kind: str, count: int) -> tuple[Document, ...]:
    names = sorted(WORDS)
    result = []
    for number in range(count):
        own = [names[number % 3]] if kind == "single_label" else names[: number % 4]
        text = f"patient {number} with " + " and ".join(WORDS[name] for name in own)
        result.append(Document(f"{number}", text, labels=tuple(own)))
    return tuple(result)


def test_labels_that_words_give_away_are_found() -> None:
    """And those that no or every training document has are no trouble."""
    for kind in ("single_label", "multi_label"):
        documents = notes(kind, 48)
        task = DocumentClassification().fitted({"north": Split(documents)})
        assert task.problem_type == kind
        scores = tfidf_baseline(task, documents[:36], documents[36:])
        assert set(task.metrics) <= set(scores)
        assert scores[task.metric] > 0.9
    always = tuple(Document(note.id, note.text, labels=(*note.labels, "always")) for note in documents[:24])
    odd = Document("odd", "cough wheeze", labels=("never", "always"))
    task = DocumentClassification().fitted({"north": Split(always, (), (odd,))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tfidf_baseline(task, always, [odd])["micro_recall"] == pytest.approx(0.5)


def marked(text: str, labels: dict[str, str], relations: tuple[tuple[int, int, str], ...] = ()) -> Document:
    spans = (Span(text.index(words), text.index(words) + len(words), own) for words, own in labels.items())
    return Document("note", text, tuple(spans), tuple(Relation(*each) for each in relations))


def test_each_modifier_is_linked_once_to_the_nearest_mention_that_it_may_modify() -> None:
    """The first of two as near; and none that is too far away or of other types."""
    severe, pain, fever = {"severe": "severity"}, {"pain": "problem"}, {"fever": "problem"}
    trained = marked(
        "severe pain and fever yesterday; mild nausea",
        {**severe, **pain, **fever, "yesterday": "time", "mild": "severity", "nausea": "problem"},
        ((1, 0, "grade"), (2, 3, "since"), (5, 4, "degree"), (2, 0, "degree")),
    )
    linker, near = (NearestLinker.fit([trained], most_words=most) for most in (3, 1))
    note = marked(
        "cough with mild fever today after aspirin",
        {"cough": "problem", "mild": "severity", **fever, "today": "time", "aspirin": "drug"},
    )
    assert linker.predict(note) == (Relation(2, 1, "degree"), Relation(2, 3, "since"))
    between = marked("pain mild fever", {**pain, "mild": "severity", **fever})
    assert linker.predict(between) == (Relation(0, 1, "degree"),)
    far = marked("mild and quite long lasting fever", {"mild": "severity", **fever})
    other = marked("mild aspirin", {"mild": "severity", "aspirin": "drug"})
    assert near.predict(far) == near.predict(other) == near.predict(Document("none", "text")) == ()
