"""Sites and corpora that are only tested on: what trains does not know of them; their scores stand apart."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console
from support import TINY, RunTiny, assert_same_tensors, refused, write_lines

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import divide, read_documents
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.display.run import Display
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare
from fedstrata.engine.sites import sites_of
from fedstrata.train.evaluate import predict


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sites; site 4 is apart in a folder of its own too."""
    tmp_path = tmp_path_factory.mktemp("notes")
    documents = generate(seed=1, sites=4, notes=28, imbalance=0.0)
    write(documents, tmp_path / "four", "jsonl")
    write([item for item in documents if item.site != "site-4"], tmp_path / "three", "jsonl")
    return tmp_path


def data(folder: Path, *held_out: str) -> str:
    split = f"{{test_sites: [{', '.join(held_out)}]}}"
    return f"data={{format: jsonl, path: {folder}, types: [problem, test, treatment, drug], split: {split}}}"


LITTLE = ("federation.rounds=1", "federation.floors=false", "training.learning_rate=0.0003")
"""Hardly trained, a model still finds a little by chance; one that has begun to learn finds nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "layer_skipping, top: 2, head: local", "centralized"])
def test_the_others_run_as_if_it_were_not_there(run_tiny: RunTiny, notes: Path, method: str) -> None:
    overrides = [f"method={{name: {method}}}", "training.learning_rate=0.01"]
    without = run_tiny(data(notes / "three"), *overrides, out="without")
    run = run_tiny(data(notes / "four", "site-4"), *overrides, out="with")
    assert_same_tensors(without.state.tensors, run.state.tensors)
    ours, theirs = run.summary["metrics"], without.summary["metrics"]
    assert ours.pop("external").keys() == {"site-4"}
    assert theirs.pop("external") is None
    assert ours == theirs
    assert run.summary["clients"] == without.summary["clients"] == 3
    assert run.summary["communication"] == without.summary["communication"]
    assert run.of("run")[0]["clients"]["site-4"] == {"train": 0, "validation": 0, "test": 7}
    assert not (run.folder / "clients/site-4").exists()


def f1_on(experiment, documents: list[Document]) -> float:
    task, model = experiment.task, experiment.model
    examples = task.encode(documents, model.tokenizer)
    found = task.decode(documents, examples, predict(model, task, examples, experiment.settings.training))
    return task.score(documents, found)["f1"]


def test_its_score_is_that_of_the_global_model(run_tiny: RunTiny, notes: Path) -> None:
    run = run_tiny(data(notes / "four", "site-4"), "method={name: fedavg}", *LITTLE)
    experiment = prepare(read_source(run.folder / "config.yaml", []))
    everything = read_documents(experiment.settings.data, Seed(0))
    documents = sorted((item for item in everything if item.site == "site-4"), key=lambda item: item.id)
    untrained = f1_on(experiment, documents)
    experiment.model.load(run.state.tensors)
    expected = f1_on(experiment, documents)
    assert 0 < expected != untrained
    assert run.summary["metrics"]["external"]["site-4"]["f1"] == pytest.approx(expected)


@pytest.mark.slow
def test_with_models_of_their_own_its_score_is_their_mean(run_tiny: RunTiny, notes: Path) -> None:
    run = run_tiny(data(notes / "four", "site-4"), "method={name: local_only}", *LITTLE)
    scores = []
    for client in ("site-1", "site-2", "site-3"):
        folder = run.folder / "clients" / client / "model"
        source = read_source(run.folder / "config.yaml", [f"model={{name: {folder}}}"])
        experiment = prepare(source)
        scores.append(f1_on(experiment, list(experiment.clients["site-4"].test)))
    assert min(scores) > 0
    assert len(set(scores)) > 1
    assert run.summary["metrics"]["external"]["site-4"]["f1"] == pytest.approx(fmean(scores))


def test_a_site_can_be_held_out_of_any_division(run_once: RunTiny, notes: Path) -> None:
    run = run_once(
        data(notes / "four", "site-2", "site-4"), "partition={by: iid, clients: 3}", "federation.rounds=0"
    )
    assert list(run.summary["metrics"]["clients"]) == ["client-01", "client-02", "client-03"]
    assert list(run.summary["metrics"]["external"]) == ["site-2", "site-4"]


def test_a_held_out_site_counts_whatever_split_its_folders_name(run_tiny: RunTiny, tmp_path: Path) -> None:
    line = {"text": "Has fever.", "spans": [{"start": 4, "end": 9, "label": "problem"}]}
    for place, count in {"a/train": 2, "a/test": 1, "b/train": 2, "b/test": 1, "c/test": 3}.items():
        rows = ({"id": f"{place}-{number}", **line} for number in range(count))
        write_lines(tmp_path / "notes" / place / "notes.jsonl", rows)
    split = "split: {test_sites: [c]}"
    run = run_tiny(f"data={{format: jsonl, path: {tmp_path / 'notes'}, {split}}}", "federation.rounds=0")
    assert run.of("run")[0]["clients"]["c"] == {"train": 0, "validation": 0, "test": 3}
    assert set(run.summary["metrics"]["external"]) == {"c"}


def test_a_held_out_site_cannot_have_the_name_of_a_client(tmp_path: Path) -> None:
    documents = generate(seed=1, sites=2, notes=12)
    renamed = [replace(item, site="client-01") if item.site == "site-2" else item for item in documents]
    write(renamed, tmp_path / "notes", "jsonl")
    overrides = [data(tmp_path / "notes", "client-01"), "partition={by: iid, clients: 3}"]
    with refused(ConfigurationError, "duplicate", values=["client-01"]):
        prepare(read_source(None, [*TINY, *overrides]))


def test_pooled_data_lacks_it() -> None:
    overrides = [*TINY, "method={name: centralized}", "data.split.test_sites=[site-3]"]
    _, (pool,) = sites_of(prepare(read_source(None, overrides)))
    assert {document.site for document in pool.documents.all} == {"site-1", "site-2"}


def test_the_table_names_it(run_once: RunTiny) -> None:
    out = StringIO()
    run = run_once("data.split.test_sites=[site-3]", "federation.rounds=0")
    Display(Console(file=out, width=200)).show(run.summary, run.folder, personal=False)
    assert "site-3 (held out)" in out.getvalue()


EXTERNAL = "data.external={elsewhere: {synthetic: {sites: 2, notes: 6}}}"


def test_an_external_corpus_is_scored_and_changes_nothing_else(run_once: Any) -> None:
    alone, run = run_once("federation.rounds=1"), run_once("federation.rounds=1", EXTERNAL)
    ours, theirs = run.summary["metrics"], alone.summary["metrics"]
    assert ours["external"].keys() == {"elsewhere"}
    assert {**ours, "external": None} == theirs
    assert set(run.of("run")[0]["clients"]) == {*alone.of("run")[0]["clients"], "elsewhere"}


def test_documents_of_an_external_corpus_are_its_own() -> None:
    checked = check_settings(read_source(None, [EXTERNAL, "data.synthetic.notes=24"]))
    assert not checked.problems
    sites = divide(checked.settings, checked.task).clients
    outside = sites["elsewhere"]
    assert (len(outside.train), len(outside.validation), len(outside.test)) == (0, 0, 6)
    assert all(document.id.startswith("elsewhere/") for document in outside.test)
    texts = {document.text for name, own in sites.items() if name != "elsewhere" for document in own.all}
    assert texts.isdisjoint(document.text for document in outside.test)
