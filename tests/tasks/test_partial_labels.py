"""Types and labels that nobody looked for in some documents: no loss for finding them, and no score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.metrics.relations import Triple
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.document_labels import LabelAnswer
from fedstrata.tasks.extract import Extracted, Extraction
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.partial_labels import partial_cross_entropy
from fedstrata.tasks.relations import RelationClassification
from fedstrata.tasks.windows import IGNORED

TEXT = "severe chest pain, given aspirin 5mg"
PAIN, ASPIRIN = Span(7, 17, "problem"), Span(25, 32, "drug")
WHOLE = Document("whole", TEXT, (PAIN, ASPIRIN))
PROBLEMS_ONLY = Document("partly", TEXT, (PAIN,), annotates=frozenset({"problem"}))
NER = NamedEntityRecognition(max_length=16, stride=4).of_types(["drug", "problem", "test"])


@given(st.data())
def test_the_loss_is_that_of_a_loop_over_rows(data: st.DataObject) -> None:
    """-log of the probability of the label, or of nothing together with whatever was not looked for."""
    rows, classes = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    logits = torch.from_numpy(rng.normal(0, 4, (rows, classes)))
    labels = torch.from_numpy(rng.choice([IGNORED, *range(classes)], rows))
    unknown = torch.from_numpy(rng.random((rows, classes)) < 0.4)
    losses = partial_cross_entropy(logits, labels, unknown).tolist()
    for row, label in enumerate(labels.tolist()):
        probabilities = logits[row].softmax(0).tolist()
        if label == IGNORED:
            expected = 0.0
        else:
            others = [own for own in range(1, classes) if label == 0 and unknown[row, own]]
            expected = -np.log(sum(probabilities[own] for own in {label, *others}))
        assert losses[row] == pytest.approx(expected, abs=1e-9)
    known = torch.zeros_like(unknown)
    assert torch.equal(
        partial_cross_entropy(logits, labels, known), partial_cross_entropy(logits, labels, None)
    )


def test_a_tagger_is_free_to_find_what_nobody_looked_for(
    tokenizer: Any, make_model: Callable[[int], Any]
) -> None:
    """Its loss is the naive one, and no gradient pulls the tags of such types down."""
    module = make_model(len(NER.classes))
    windows = NER.encode([WHOLE, PROBLEMS_ONLY], tokenizer)
    loss, count = NER.loss(module, NER.collate(windows))
    open_tags = [NER.classes.index(tag) for tag in ("B-drug", "I-drug", "B-test", "I-test")]
    expected = 0.0
    for window in windows:
        ids = torch.from_numpy(window.input_ids.astype(np.int64))[None]
        probabilities = module(ids).logits[0].softmax(-1).detach()
        for token in np.flatnonzero(window.owned):
            tags = {int(window.tags[token])}
            if window.document == 1 and tags == {0}:
                tags |= {*open_tags}
            expected -= float(probabilities[token, sorted(tags)].sum().log())
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert int(count) == sum(int(window.owned.sum()) for window in windows)


def test_a_type_is_scored_where_somebody_looked_for_it() -> None:
    found = NER.score([WHOLE, PROBLEMS_ONLY], [(PAIN, ASPIRIN), (PAIN, ASPIRIN)])
    assert found["f1"] == found["untyped_lenient_f1"] == found["f1/drug"] == found["f1/problem"] == 1.0
    missed = NER.score([WHOLE, PROBLEMS_ONLY], [(PAIN,), (ASPIRIN,)])
    assert missed["recall/problem"] == 0.5
    assert missed["precision/problem"] == 1.0
    assert missed["f1/drug"] == 0.0


def test_an_answer_says_something_of_every_type() -> None:
    assert NER.annotate(PROBLEMS_ONLY, [PAIN, ASPIRIN]).annotates is None


LABELS = ("a", "b", "c")


@pytest.fixture
def classifier(tiny_model: Any) -> Any:
    return tiny_model("llama", "sequence-classification", config={"vocab_size": 400}).module.eval()


def test_labels_that_nobody_looked_for_are_no_terms_of_the_loss(byte_level: Any, classifier: Any) -> None:
    task = DocumentClassification(problem_type="multi_label", max_length=32, stride=4).of_labels(LABELS)
    partly = Document("p", "some text", labels=("a",), annotates=frozenset({"a", "b"}))
    batch = task.collate(task.encode([partly, replace(partly, annotates=None)], byte_level))
    loss, terms = task.loss(classifier, batch)
    likely = torch.from_numpy(task.predict(classifier, batch)[0]).sigmoid().log().tolist()
    unlikely = torch.from_numpy(-task.predict(classifier, batch)[0]).sigmoid().log().tolist()
    assert loss.item() == pytest.approx(-2 * (likely[0] + unlikely[1]) - unlikely[2], rel=1e-5)
    assert (int(terms), task.terms(batch).tolist()) == (5, [2, 3])


def test_a_document_with_none_of_the_labels_looked_for_has_one_of_the_others(
    byte_level: Any, classifier: Any
) -> None:
    task = DocumentClassification(problem_type="single_label", max_length=32, stride=4).of_labels(LABELS)
    other = Document("o", "some text", annotates=frozenset({"a"}))
    batch = task.collate(task.encode([other, replace(other, annotates=None)], byte_level))
    loss, terms = task.loss(classifier, batch)
    probabilities = torch.from_numpy(task.predict(classifier, batch)[0]).softmax(0).tolist()
    assert loss.item() == pytest.approx(-np.log(probabilities[1] + probabilities[2]), rel=1e-5)
    assert int(terms) == 1
    assert not task.scorable(other)


def test_a_label_is_scored_where_somebody_looked_for_it() -> None:
    task = DocumentClassification(problem_type="multi_label").of_labels(LABELS)
    partly = Document("p", "", labels=("a",), annotates=frozenset({"a", "b"}))
    every = Document("w", "", labels=("c",))
    given_all = LabelAnswer(("a", "c"), np.array([0.9, 0.1, 0.8]))
    rightly = LabelAnswer(("c",), np.array([0.1, 0.1, 0.9]))
    scores = task.score([partly, every], [given_all, rightly])
    assert scores["micro_f1"] == scores["macro_f1"] == 1.0
    assert scores["micro_auc"] == 1.0
    assert task.score([replace(partly, annotates=None), every], [given_all, rightly])["micro_f1"] < 1.0


def test_a_document_that_has_its_one_label_has_no_other_whatever_somebody_looked_for() -> None:
    task = DocumentClassification(problem_type="single_label").of_labels(LABELS)
    known = [Document(str(place), "", labels=("a",), annotates=frozenset({"a"})) for place in range(5)]
    open_ = Document("o", "", annotates=frozenset({"a"}))
    wrongly = LabelAnswer(("c",), np.array([0.1, 0.1, 0.8]))
    assert [*map(task.scorable, [*known, open_])] == [*[True] * 5, False]
    tally = task.counted(known, [wrongly] * 5)
    assert (tally["predicted/c"], tally["correct/c"]) == (5, 0)
    told = task.degenerate(tally, 5)
    assert "5 documents" in told
    assert "'c'" in told


def test_relations_of_other_types_are_neither_right_nor_wrong() -> None:
    task = RelationClassification(modifiers={"drug": ["problem"]}).of_types(["causes", "treats"])
    partly = replace(WHOLE, annotates=frozenset({"drug", "problem", "treats"}))
    assert task.score([WHOLE, partly], [(), (Relation(1, 0, "causes"),)])["precision"] == 0.0
    both = (Relation(1, 0, "treats"), Relation(1, 0, "causes"))
    treated = replace(partly, relations=(Relation(1, 0, "treats"),))
    assert task.score([treated], [both])["precision"] == 1.0
    assert task.score([replace(treated, annotates=None)], [both])["precision"] == 0.5


EXTRACTION = Extraction(
    templates="short", max_length=900, mentions=["drug", "problem"], modifiers={"problem": ["severity"]}
)


def test_training_asks_for_what_somebody_looked_for(byte_level: Any) -> None:
    learnt = EXTRACTION.training_examples([PROBLEMS_ONLY], byte_level)
    assert [(own.question.kind, own.question.types) for own in learnt if own.question] == [
        ("ner", ("problem",))
    ]
    scored = EXTRACTION.encode([PROBLEMS_ONLY], byte_level)
    assert [own.question.kind for own in scored if own.question] == ["ner", "re"]


def test_extractions_of_other_types_are_neither_right_nor_wrong() -> None:
    severe = Triple(PAIN, Span(0, 6, "severity"), "severity")
    answer = Extracted((PAIN, ASPIRIN), (severe,))
    assert EXTRACTION.score([PROBLEMS_ONLY], [answer])["ner_precision"] == 1.0
    assert EXTRACTION.score([PROBLEMS_ONLY], [answer])["re_precision"] == 0.0
    whole = replace(PROBLEMS_ONLY, annotates=None)
    assert EXTRACTION.score([whole], [answer])["ner_precision"] == 0.5
