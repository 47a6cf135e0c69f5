"""Data of which scores say little: each warning comes of data made for it, and of no other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.task import Task
from fedstrata.data.degenerate import degenerate, unmentioned
from fedstrata.data.duplicates import find_duplicates
from fedstrata.data.overview import holdings_of, overview
from fedstrata.data.split import Split
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.cloze import ClozeQuestions
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.relations import RelationClassification

NER = NamedEntityRecognition().of_types(["drug", "problem"])
LABELS = DocumentClassification(problem_type="single_label").of_labels(["no", "yes"])
RELATIONS = RelationClassification(modifiers={"drug": ["dose"]}).of_types(["dose"])
CLOZE = ClozeQuestions(question="boolq", words={"true": "yes", "false": "no"})


def note(number: int, *spans: str, labels: Sequence[str] = (), related: Sequence[int] = ()) -> Document:
    """Words of which each is the same in no other note; the first are mentions of these types."""
    text = " ".join(f"w{number}x{place}" for place in range(20))
    places, at = [], 0
    for word, label in zip(text.split(), spans, strict=False):
        places.append(Span(at, at + len(word), label))
        at += len(word) + 1
    relations = tuple(Relation(0, tail, "dose") for tail in related)
    return Document(str(number), text, tuple(places), relations, labels=tuple(labels))


def warnings(
    task: Task, clients: Mapping[str, Mapping[str, Sequence[Document]]], **changes: Any
) -> list[str]:
    splits = {
        name: Split(**{part: tuple(documents) for part, documents in parts.items()})
        for name, parts in clients.items()
    }
    repeated = find_duplicates(splits, lambda document: document.text)
    how = {"served": False, "hide": False, **changes}
    return degenerate(holdings_of(splits, task), repeated, **how)


def test_clean_data_is_not_warned_of() -> None:
    both = ["drug", "problem"]
    notes = [note(number, *both, labels=[("no", "yes")[number % 2]], related=[]) for number in range(12)]
    clients = {
        name: {
            "train": notes[at : at + 3],
            "validation": notes[at + 3 : at + 4],
            "test": notes[at + 4 : at + 6],
        }
        for name, at in (("a", 0), ("b", 6))
    }
    assert not warnings(NER, clients)
    assert not warnings(LABELS, clients)
    mixed = [note(number, "drug", "dose", "dose", related=[1]) for number in range(20, 24)]
    assert not warnings(RELATIONS, {"a": {"train": mixed[:2], "test": mixed[2:]}})


def test_a_client_without_what_others_learn() -> None:
    clients = {"a": {"train": [note(0, "drug")]}, "b": {"train": [note(n) for n in range(1, 8)]}}
    (told,) = warnings(NER, clients)
    assert "of b (7)" in told
    (told,) = warnings(NER, {**clients, "b": {"train": [note(1)]}}, hide=True)
    assert "b (fewer than 5)" in told


def test_relations_and_mentions_that_nobody_looked_for_are_not_missed() -> None:
    lacking = [replace(note(n, "drug", "dose"), lacks_relations=True) for n in range(1, 4)]
    related = [note(0, "drug", "dose", "dose", related=[1])]
    assert not warnings(RELATIONS, {"a": {"train": related}, "b": {"train": lacking}})
    strange = [replace(note(n), annotates=frozenset({"dose"})) for n in range(1, 4)]
    assert not warnings(NER, {"a": {"train": [note(0, "drug")]}, "b": {"train": strange}})


def test_what_somebody_looked_for_is_told_by_type() -> None:
    some = [replace(note(n, "drug"), annotates=frozenset({"drug"})) for n in range(6)]
    lacking = [replace(each, lacks_relations=True) for each in some]
    splits = {"a": Split(train=(*some, note(6, "problem"))), "b": Split(train=(note(7, "drug"),))}
    repeated = find_duplicates(splits, lambda document: document.text)
    told = {hide: overview(holdings_of(splits, NER), repeated, hide=hide)["looked"] for hide in (False, True)}
    nothing = {"validation": 0, "test": 0}
    assert told[False] == {"problem": {"a": {"train": 1, **nothing}, "b": {"train": 1, **nothing}}}
    assert told[True] == {"problem": {"a": {"train": None, **nothing}, "b": {"train": None, **nothing}}}
    related = {"a": Split(train=(*lacking, note(8, "drug", "dose", related=[1])))}
    told_of = overview(holdings_of(related, RELATIONS), find_duplicates({}, str), hide=False)
    assert told_of["looked"] == {"dose": {"a": {"train": 1, **nothing}}}


def test_pairs_that_are_all_related() -> None:
    related = [note(number, "drug", "dose", related=[1]) for number in range(4)]
    told = warnings(RELATIONS, {"a": {"train": related[:2], "test": related[2:]}})
    assert len(told) == 2
    for line, part in zip(told, ("training documents", "test documents"), strict=True):
        assert part in line
        assert "pair of mentions" in line
    mixed = [note(9, "drug", "dose", "dose", related=[1])]
    (told,) = warnings(RELATIONS, {"a": {"train": related[:2]}, "b": {"train": mixed}})
    assert "related at a:" in told


def test_one_class_at_a_client_and_in_what_is_tested() -> None:
    yes = [note(number, labels=["yes"]) for number in range(6)]
    no = [note(number, labels=["no"]) for number in range(6, 9)]
    clients = {"a": {"train": yes[:2], "test": yes[4:]}, "b": {"train": [*yes[2:4], no[0]]}}
    learnt, tested = warnings(LABELS, clients)
    for line, values in (
        (learnt, ("training document", "a ('yes')")),
        (tested, ("test document", "label 'yes'", "1.0")),
    ):
        assert all(value in line for value in values), line


def test_one_right_answer_of_cloze_questions() -> None:
    asked = [replace(note(n, labels=["true"]), metadata={"superglue": "boolq"}) for n in range(3)]
    other = replace(note(9, labels=["false"]), metadata={"superglue": "boolq"})
    (told,) = warnings(CLOZE, {"a": {"train": [*asked[:1], other], "test": asked[1:]}})
    assert all(value in told for value in ("test document", "label 'true'", "1.0")), told


def test_types_and_labels_that_no_training_document_has() -> None:
    clients = {"a": {"train": [note(0, "drug")], "test": [note(1, "problem", "drug")]}}
    (told,) = warnings(NER, clients)
    assert told.startswith("types of mentions")
    assert "'problem'" in told
    assert "other sites" not in told
    (told,) = warnings(NER, clients, served=True)
    assert "'problem'; other sites" in told


def test_documents_that_are_there_twice() -> None:
    notes = [note(number, "drug", "problem") for number in range(20)]
    copies = [replace(each, id=f"c{each.id}") for each in notes]
    near = [replace(each, id=f"n{each.id}", text=f"{each.text} end") for each in notes]
    clients = {
        "a": {"train": notes[:8], "test": [*copies[:6], near[6]]},
        "b": {"train": [*notes[8:12], near[0]], "test": [copies[8]]},
    }
    told = warnings(NER, clients)
    tested, elsewhere = told
    counts = re.compile(r"\d+ \w+(?: [ab]\b)?")
    assert tested.startswith("test documents")
    assert counts.findall(tested) == ["6 word", "1 nearly", "7 at a", "1 word", "1 at b"]
    assert counts.findall(elsewhere) == ["2 nearly", "15 at a", "1 nearly", "6 at b"]
    hidden, _ = warnings(NER, clients, hide=True)
    assert counts.findall(hidden) == ["6 word", "5 nearly", "7 at a", "5 word", "5 at b"]
    assert hidden.count("fewer than 5") == 3
    assert not any(word in " ".join(told) for each in notes for word in each.text.split())


def test_a_site_of_its_own_compares_with_its_own_documents() -> None:
    notes = [note(number, "drug", "problem") for number in range(3)]
    (told,) = warnings(NER, {"a": {"train": notes, "test": [replace(notes[0], id="x")]}}, served=True)
    assert told.startswith("test documents")
    assert told.endswith(": 1 word for word of 1 at a")


def test_hidden_counts_are_not_in_what_is_said_of_clients() -> None:
    notes = [note(number, "drug", *(["problem"] if number < 3 else [])) for number in range(7)]
    splits = {"a": Split(tuple(notes), (), (note(9),)), "b": Split(tuple(notes[:2]))}
    repeated = find_duplicates(splits, lambda document: document.text)
    told = overview(holdings_of(splits, NER), repeated, hide=True)
    assert told["documents"] == {
        "a": {"train": 7, "validation": 0, "test": None},
        "b": {"train": None, "validation": 0, "test": 0},
    }
    assert told["classes"]["mentions"]["a"]["train"] == {"drug": 7, "problem": None}
    assert told["words"]["b"]["train"] is None
    assert told["duplicates"]["elsewhere"]["b"] == {"documents": None, "equal": None, "near": 0}
    assert overview(holdings_of(splits, NER), repeated, hide=False)["documents"]["b"]["train"] == 2


def test_the_line_is_shown_that_says_what_a_site_does_not_annotate() -> None:
    ours, theirs = replace(note(1, "drug"), site="ours"), replace(note(2, "drug", "problem"), site="theirs")
    (told,) = unmentioned([ours, theirs], NER)
    assert "ours ('problem')" not in told
    assert "ours (problem)" in told
    assert told.endswith("write data.annotates: {ours: [drug]}")
    (told,) = unmentioned([replace(ours, site="no: 1"), theirs], NER)
    assert told.endswith("write data.annotates: {'no: 1': [drug]}"), "as YAML reads it"
    assert not list(unmentioned([replace(ours, annotates=frozenset({"drug"})), theirs], NER))
