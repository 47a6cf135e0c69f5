"""What an extraction asks for: the types of a corpus, or those that are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from instructed import LACKING, MODIFIERS, NOTE
from pydantic import ValidationError
from support import problems_of, refused

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.split import Split
from fedstrata.tasks.extract import FAULTS, Extraction
from fedstrata.tasks.instruction.instructions import TemplateFiles


def test_types_come_from_the_training_documents() -> None:
    clients = {"a": Split(train=(NOTE,))}
    task = Extraction().fitted(clients)
    assert task.mentions == ["drug", "problem"]
    assert task.modifiers == MODIFIERS
    assert task.restored(()).metric_names == task.metric_names
    assert task.lower_is_better == set(FAULTS)
    only = Extraction(tasks=["ner"], mentions=["problem"]).fitted(clients)
    assert only.metric == "ner_f1" and "re_f1" not in only.metrics


@pytest.mark.parametrize(
    ("document", "changes", "path", "code", "text"),
    [
        (
            replace(NOTE, spans=(), relations=()), {"tasks": ["ner"]}, "task.mentions", "nothing_to_learn",
            "'auto'",
        ),
        (replace(NOTE, relations=()), {}, "task.modifiers", "nothing_to_learn", "'auto'"),
        (
            replace(NOTE, spans=(Span(0, 2, 'a"b'),), relations=()), {"tasks": ["ner"]}, "task.mentions",
            "wrong_form", 'a"b',
        ),
        (
            NOTE, {"templates": TemplateFiles(re="{input} {where}")}, "task.templates.re", "unknown_name",
            "names {where}",
        ),
        (NOTE, {"templates": TemplateFiles(re="{input")}, "task.templates.re", "not_found", "'{input'"),
        (replace(NOTE, text_pair="x"), {}, "task.name", "not_supported", "'note'"),
        (NOTE, {"modifiers": {"problem": []}}, "task.modifiers", "missing", ""),
        (NOTE, {"mentions": ["problm"]}, "task.mentions", "unknown_name", "'problm'"),
        (NOTE, {"modifiers": {"problm": ["severity"]}}, "task.modifiers", "unknown_name", "mean 'problem'?"),
        (NOTE, {"modifiers": {"problem": ["severty"]}}, "task.modifiers", "unknown_name", "mean 'severity'?"),
        (NOTE, {"definitions": {"problm": "x"}}, "task.definitions", "unknown_name", "mean 'problem'?"),
        (LACKING, {"tasks": ["re"], "modifiers": MODIFIERS}, "task.tasks", "nothing_to_learn", "of a"),
    ],
)  # fmt: skip
def test_bad_settings_are_told(
    document: Document, changes: dict[str, Any], path: str, code: str, text: str
) -> None:
    with refused(ConfigurationError, code, at=path, values=[text]) as caught:
        Extraction(**changes).fitted({"a": Split(train=(document,))})
    assert len(problems_of(caught.value)) == 1


def test_a_type_with_a_definition_need_not_occur() -> None:
    """A few notes of a new site do not hold everything that a model was trained for."""
    settings = Extraction(mentions=["problem", "device"], definitions={"device": "an implant"})
    task = settings.fitted({"a": Split(train=(NOTE,))})
    assert task.mentions == ["problem", "device"]
    Extraction(mentions=["problem", "treatment"]).fitted({"a": Split(train=(NOTE,))})


def test_a_built_in_definition_is_not_changed_in_vain() -> None:
    for name, templates in (("problem", "short"), ("temporal", TemplateFiles(ner="{input}", re="{input}"))):
        settings = Extraction(templates=templates, definitions={name: "what brought the patient here"})
        with refused(ConfigurationError, "no_effect", at="task.definitions", values=[f"'{name}'"]):
            settings.fitted({"a": Split(train=(NOTE,))})
    other = Extraction(templates="short", mentions=["problem", "device"], definitions={"device": "a stent"})
    assert "device" in other.fitted({"a": Split(train=(NOTE,))}).mentions


def test_what_is_asked_for_twice_or_in_vain_is_told() -> None:
    for changes, code in (
        ({"tasks": ["ner", "ner"]}, "duplicate"),
        ({"tasks": ["re"], "mentions_only": ["a"]}, "no_effect"),
    ):
        with pytest.raises(ValidationError) as raised:
            Extraction(**changes)
        assert [each["ctx"]["error"].code for each in raised.value.errors()] == [code]


def test_a_type_of_test_documents_that_none_is_trained_on_is_told() -> None:
    label = replace(NOTE, spans=(*NOTE.spans, Span(46, 51, "device")))
    other = replace(NOTE, relations=(*NOTE.relations, Relation(3, 4, "duration")))
    for document, path in ((label, "data.types"), (other, "data.relations")):
        clients = {"a": Split(train=(NOTE,)), "b": Split(test=(document,))}
        with refused(ConfigurationError, "unknown_name", at=path, values=["test document 'note'"]):
            Extraction().fitted(clients)
        named = Extraction(mentions=["problem"], modifiers=MODIFIERS)
        assert named.fitted(clients).modifiers == MODIFIERS


def test_relations_between_types_that_no_training_document_relates_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = replace(NOTE, relations=(*NOTE.relations, Relation(5, 4, "temporal")))
    Extraction().fitted({"a": Split(train=(NOTE,), test=(other,))})
    assert "1 of 5 relations" in caplog.text
    assert "temporal of drug" in caplog.text
