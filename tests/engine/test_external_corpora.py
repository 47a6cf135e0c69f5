"""Corpora that are only tested on."""

from __future__ import annotations

from typing import Any

from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import divide
from fedstrata.engine.check import check_settings

EXTERNAL = "data.external={elsewhere: {synthetic: {sites: 2, notes: 6}}}"


def test_an_external_corpus_is_scored_and_changes_nothing_else(run_once: Any) -> None:
    alone, run = run_once("federation.rounds=1"), run_once("federation.rounds=1", EXTERNAL)
    ours, theirs = run.summary["metrics"], alone.summary["metrics"]
    assert ours["external"].keys() == {"elsewhere"}
    assert {**ours, "external": None} == theirs
    assert set(run.of("run")[0]["clients"]) == {*alone.of("run")[0]["clients"], "elsewhere"}


def test_its_documents_are_its_own() -> None:
    checked = check_settings(read_source(None, [EXTERNAL, "data.synthetic.notes=24"]))
    assert not checked.problems
    sites = divide(checked.settings, checked.task).clients
    outside = sites["elsewhere"]
    assert (len(outside.train), len(outside.validation), len(outside.test)) == (0, 0, 6)
    assert all(document.id.startswith("elsewhere/") for document in outside.test)
    texts = {document.text for name, own in sites.items() if name != "elsewhere" for document in own.all}
    assert texts.isdisjoint(document.text for document in outside.test)
