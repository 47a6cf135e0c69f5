"""What a score must beat, in each task, by hand; and answers that are all one thing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.task import Task
from fedstrata.data.split import Split
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.cloze import ClozeQuestions
from fedstrata.tasks.extract import Extraction
from fedstrata.tasks.floors import ALL_PAIRS, LEAD, LOOKUP, MAJORITY, UNIGRAM, constant_labels
from fedstrata.tasks.lm import LanguageModelling
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.relations import RelationClassification
from fedstrata.tasks.summarize import Summarization


def scores_of(
    task: Task, train: Sequence[Document], test: Sequence[Document], tokenizer: Any = None
) -> Mapping[str, Mapping[str, float]]:
    """The scores of each floor, by the task's own scoring; each has one of the names that the task tells."""
    floors = task.floors(train, test, tokenizer)
    assert floors.keys() <= set(task.floor_names)
    return {name: task.scored(task.counted(test, answers), {}) for name, answers in floors.items()}


def note(text: str, *mentions: tuple[str, str], related: Sequence[Relation] = ()) -> Document:
    spans = tuple(Span(text.index(words), text.index(words) + len(words), label) for words, label in mentions)
    return Document(text[:8], text, spans, tuple(related))


def labelled(*labels: Sequence[str]) -> list[Document]:
    return [Document(str(number), "a note", labels=tuple(own)) for number, own in enumerate(labels)]


def test_mentions_are_looked_up_among_those_of_the_training_documents() -> None:
    task = NamedEntityRecognition().of_types(["drug", "problem"])
    train = [note("took aspirin for pain", ("aspirin", "drug"), ("pain", "problem"), ("took", "other"))]
    test = [note("took Aspirin; no pain, no fever", ("Aspirin", "drug"), ("fever", "problem"))]
    scores = scores_of(task, train, test)[LOOKUP]  # finds two, of which one is right, of two
    assert (scores["precision"], scores["recall"], scores["f1"]) == (0.5, 0.5, 0.5)
    assert task.floors([note("nothing here")], test, None) == {}


def test_the_most_frequent_label_is_given_to_all() -> None:
    task = DocumentClassification(problem_type="single_label").of_labels(["no", "yes"])
    train, test = labelled(["yes"], ["no"], ["yes"]), labelled(["yes"], ["no"], ["no"], ["no"])
    assert scores_of(task, train, test)[MAJORITY]["accuracy"] == 0.25
    assert task.floors(labelled(), test, None) == {}


def test_of_any_number_of_labels_as_many_are_given_as_are_best_for_the_training_documents() -> None:
    classes = ["a", "b", "c"]
    task = DocumentClassification(problem_type="multi_label").of_labels(classes)
    train = labelled(["a", "b"], ["a", "b"], ["a"], ["c"])

    def f1(labels: set[str]) -> float:
        right = sum(len(labels & {*each.labels}) for each in train)
        return 2 * right / (sum(len(each.labels) for each in train) + len(labels) * len(train))

    ranked = [{"a"}, {"a", "b"}, {"a", "b", "c"}]
    assert max(ranked, key=f1) == {"a", "b"}
    assert constant_labels(train, classes, one_each=False)[0] == ("a", "b")
    scores = scores_of(task, train, train)[MAJORITY]
    assert scores["micro_f1"] == pytest.approx(f1({"a", "b"}))


def test_a_label_has_its_share_of_the_documents_in_which_it_was_looked_for() -> None:
    """Half of the documents were annotated for `b` alone: what they say of `a` is unknown."""
    both = labelled(["a"], ["a", "b"])
    only_b = [replace(each, annotates=frozenset({"b"})) for each in labelled([], [])]
    labels, shares = constant_labels([*both, *only_b], ["a", "b"], one_each=False)
    assert labels == ("a",)
    assert shares.tolist() == [1.0, 0.25]


def test_all_pairs_are_related_as_pairs_of_their_types_most_often_are() -> None:
    task = RelationClassification(modifiers={"drug": ["dose", "form"]}).of_types(["gives", "of", "shape"])
    mentions = [("aspirin", "drug"), ("5mg", "dose"), ("tablet", "form")]
    train = [
        note("aspirin 5mg", *mentions[:2], related=[Relation(0, 1, "of")]),
        note("aspirin, 5mg", *mentions[:2], related=[Relation(0, 1, "of")]),
        note("aspirin; 5mg", *mentions[:2], related=[Relation(0, 1, "gives")]),
    ]
    text = "aspirin 5mg tablet"  # a drug and a form are never related in training
    test = [note(text, *mentions, related=[Relation(0, 1, "of"), Relation(0, 2, "shape")])]
    assert task.floors(train, test, None)[ALL_PAIRS] == [(Relation(0, 1, "of"),)]
    scores = scores_of(task, train, [*test, note("aspirin or 5mg", *mentions[:2])])[ALL_PAIRS]
    assert (scores["precision"], scores["recall"]) == (0.5, 0.5)


def test_modifiers_are_looked_up_beside_the_mentions_of_their_sentence() -> None:
    task = Extraction(mentions=["problem"], modifiers={"problem": ["severity"]}, templates="short")
    task = task.restored(())
    mentions = [("pain", "problem"), ("severe", "severity")]
    train = [note("severe pain", *mentions, related=[Relation(0, 1, "severity")])]
    text = "Severe pain here. No pain there."
    first, second = Span(7, 11, "problem"), Span(21, 25, "problem")
    spans, relation = (first, second, Span(0, 6, "severity")), Relation(0, 2, "severity")
    scores = scores_of(task, train, [Document("x", text, spans, (relation,))])[LOOKUP]
    assert (scores["ner_f1"], scores["re_f1"], scores["f1"]) == (1.0, 1.0, 1.0)
    elsewhere = Document("x", text, spans, (Relation(1, 2, "severity"),))
    assert scores_of(task, train, [elsewhere])[LOOKUP]["re_f1"] == 0.0


def question(task: str, labels: Sequence[str], **choices: str) -> Document:
    metadata = {"superglue": task, "question": "cause", **choices}
    return Document(task, "A text.", labels=tuple(labels), metadata=metadata, text_pair="Why?")


def test_questions_are_answered_as_most_training_questions_are() -> None:
    train = [question("rte", [label]) for label in ("entailment", "not_entailment", "not_entailment")]
    test = [*train, question("rte", ["not_entailment"])]
    task = ClozeQuestions().fitted({"a": Split(train=tuple(train), test=tuple(test))})
    assert scores_of(task, train, test)[MAJORITY]["accuracy"] == 0.75

    two = {"choice1": "He fell.", "choice2": "It rained."}
    train = [question("copa", [label], **two) for label in ("choice2", "choice2", "choice1")]
    task = ClozeQuestions().fitted({"a": Split(train=tuple(train))})
    assert scores_of(task, train, train)[MAJORITY]["accuracy"] == pytest.approx(2 / 3)

    train = [question("multirc", labels, **two) for labels in (["choice1"], ["none"], ["choice2"])]
    task = ClozeQuestions().fitted({"a": Split(train=tuple(train))})
    assert scores_of(task, train, train)[MAJORITY] == {"f1a": 0.0, "exact_match": pytest.approx(1 / 3)}


def test_as_many_sentences_lead_as_references_have() -> None:
    train = [Document("1", "x", text_pair="One. Two."), Document("2", "x", text_pair="One. Two. Three.")]
    train.append(Document("3", "x", text_pair="One. Two."))
    task = Summarization().fitted({"a": Split(train=tuple(train))})
    test = [Document("4", "No pain. No fever. Sent home.", text_pair="No pain. No fever.")]
    assert task.floors(train, test, None)[LEAD] == [("No pain. No fever.", True)]
    assert scores_of(task, train, test)[LEAD]["rougeL"] == 1.0


def test_tokens_are_as_likely_as_they_were_in_the_training_documents_with_one_more_of_each(
    numbers: Any,
) -> None:
    train, test = [Document("1", "1 1 2"), Document("2", "1")], [Document("3", "1 3")]
    # The training documents have 1 three times, 2 once, 3 never and two ends: 6 tokens, and 4 that are added.
    expected = -sum(math.log(count / 10) for count in (3 + 1, 0 + 1, 2 + 1)) / 3
    scores = scores_of(LanguageModelling(), train, test, numbers)[UNIGRAM]
    assert scores["loss"] == pytest.approx(expected)
    assert scores["perplexity"] == pytest.approx(math.exp(expected))


def named_in(told: str) -> tuple[str, list[str]]:
    """How many documents a caution is about, and the answers that it names."""
    (count,) = re.findall(r"\b(\d+) documents", told)
    return count, re.findall(r"'(\w+)'", told)


def test_answers_that_are_all_one_thing_are_told_and_from_five_documents_on() -> None:
    single = DocumentClassification(problem_type="single_label").of_labels(["no", "yes"])
    yes = single.answers(np.array([[0.25, 0.75]] * 6))
    documents = labelled(*[["no"]] * 3, *[["yes"]] * 3)
    tally = single.counted(documents, yes)
    assert named_in(single.degenerate(tally, 6)) == ("6", ["yes"])
    assert not single.degenerate(single.counted(documents[:4], yes[:4]), 4)
    other = single.answers(np.array([[0.75, 0.25]] * 2))
    assert not single.degenerate(single.counted(documents, [*yes[:4], *other]), 6)

    several = DocumentClassification(problem_type="multi_label").of_labels(["a", "b"])
    notes = labelled(["a"], ["a", "b"], ["b"], [], ["a"])
    none, both = (several.answers(np.array([[share] * 2] * 5)) for share in (0.25, 0.75))
    assert named_in(several.degenerate(several.counted(notes, none), 5)) == ("5", [])
    assert named_in(several.degenerate(several.counted(notes, both), 5)) == ("5", ["a", "b"])

    ner = NamedEntityRecognition().of_types(["drug"])
    notes = [note("took aspirin", ("aspirin", "drug"))] * 5
    nothing = ner.counted(notes, [()] * 5)
    assert named_in(ner.degenerate(nothing, 5)) == ("5", [])
    assert not ner.degenerate(ner.counted(notes, [(Span(0, 4, "drug"),), *[()] * 4]), 5)

    written = Summarization(template="{text}")
    pairs = [Document("1", "A text.", text_pair="One.")] * 5
    assert named_in(written.degenerate(written.counted(pairs, [("", True)] * 5), 5)) == ("5", [])
    assert not written.degenerate(written.counted(pairs, [("One.", True)] * 5), 5)
