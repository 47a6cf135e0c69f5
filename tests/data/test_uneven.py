"""Clients with annotations for some tasks only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.split import Split
from fedstrata.data.uneven import mark_unannotated

BOTH = Document(
    "b", "severe pain", (Span(0, 6, "severity"), Span(7, 11, "problem")), (Relation(1, 0, "severity"),)
)
PLAIN = replace(BOTH, id="p", relations=())


def test_a_client_without_a_single_relation_says_nothing_of_them() -> None:
    clients = {"one": Split((BOTH, PLAIN), (PLAIN,), (PLAIN,)), "two": Split((PLAIN,), (), (PLAIN,))}
    marked = mark_unannotated(clients)
    assert marked["one"] == clients["one"]
    assert all(document.lacks_relations for document in marked["two"].all)
    assert [document.spans for document in marked["two"].all] == [PLAIN.spans] * 2


def test_relations_of_training_documents_can_be_set_aside() -> None:
    clients = {"one": Split((BOTH,), (BOTH,), (BOTH,)), "two": Split((BOTH,), (), ())}
    marked = mark_unannotated(clients, ["one"])
    assert marked["one"].train == (replace(BOTH, relations=(), lacks_relations=True),)
    assert (marked["one"].validation, marked["one"].test) == ((BOTH,), (BOTH,))
    assert marked["two"] == clients["two"]


def test_an_unknown_client_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"task.mentions_only.*no client 'three'.*one"):
        mark_unannotated({"one": Split((BOTH,)), "out": Split((), (), (BOTH,))}, ["three"])
