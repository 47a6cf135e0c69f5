from __future__ import annotations

import warnings

import pytest
from baselines import tfidf_baseline

from fedstrata.core.documents import Document
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


@pytest.mark.parametrize("kind", ["single_label", "multi_label"])
def test_labels_that_words_give_away_are_found(kind: str) -> None:
    documents = notes(kind, 48)
    task = DocumentClassification().fitted({"north": Split(documents)})
    assert task.problem_type == kind
    scores = tfidf_baseline(task, documents[:36], documents[36:])
    assert set(task.metrics) <= set(scores)
    assert scores[task.metric] > 0.9


def test_labels_that_no_or_every_training_document_has_are_no_trouble() -> None:
    documents = notes("multi_label", 24)
    always = tuple(Document(note.id, note.text, labels=(*note.labels, "always")) for note in documents)
    odd = Document("odd", "cough wheeze", labels=("never", "always"))
    task = DocumentClassification().fitted({"north": Split(always, (), (odd,))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = tfidf_baseline(task, always, [odd])
    assert scores["micro_recall"] == pytest.approx(0.5)
