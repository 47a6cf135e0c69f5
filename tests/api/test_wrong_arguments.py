"""What a first user gets wrong from Python: it is told in one message, which quotes no note."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import OF_DOCUMENTS, RunTiny, problems_of, refused

import fedstrata as fs
from fedstrata.api.inputs import documents_of
from fedstrata.api.options import source_of
from fedstrata.engine.check import check_settings

NOTE = "Mr Smith of 12 Elm Road has a secret illness."
NOTES = [fs.Document(str(number), f"{NOTE} {number}", site="x") for number in range(3)]
FRAME = pd.DataFrame({"note": [NOTE, NOTE], "site": ["x", "y"]})
QUIET: Mapping[str, Any] = {"progress": False}


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "given",
    [
        {"settings": {"data": NOTES}},
        {"settings": {"data.path": NOTES}},
        {"config": {"data": NOTES}},
        {"config": {"data": FRAME}},
        {"data": {"text": NOTE * 5}},
        {"task": NOTES},
        {"method": NOTES},
        {"model": NOTES},
        {"training": FRAME},
        {"training": {"epochs": NOTE * 5}},
        {"data": FRAME, "columns": {"text": FRAME["note"]}},
        {"data": FRAME, "columns": NOTES},
    ],
)
def test_documents_in_a_wrong_place_are_refused_and_not_quoted(given: dict[str, Any]) -> None:
    with pytest.raises(fs.ConfigurationError) as caught:
        fs.run(**given, **QUIET)
    assert "Smith" not in str(caught.value)


def test_sites_may_be_called_as_settings_are() -> None:
    """A site `path` or `text` is a site where it has documents."""
    found = documents_of({"path": [replace(NOTES[0], site="")], "text": [replace(NOTES[1], site="")]})
    assert [document.site for document in found] == ["path", "text"]


def test_no_documents_are_not_the_synthetic_ones() -> None:
    for nothing in ({}, pd.DataFrame({"text": []})):
        with refused(fs.ConfigurationError, "not_enough_data", at="data"):
            fs.run(data=nothing, **QUIET)
    assert not Path("runs").exists()


def test_documents_by_split_are_split_as_tables_are() -> None:
    """Those of `test` are no site that trains."""
    own = [replace(document, site="") for document in NOTES]
    found = documents_of({"train": own[:2], "test": own[2:]})
    assert [document.metadata["split"] for document in found] == ["train", "train", "test"]
    with refused(fs.ConfigurationError, "conflict", at="data", values=["'train'", "'unsupervised'"]):
        documents_of({"train": own[:2], "unsupervised": own[2:]})
    with refused(fs.ConfigurationError, "wrong_type", at="data", values=["nan"]):
        documents_of({float("nan"): own})


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        (fs.Document(1, NOTE), ["`id`", "int"]),  # type: ignore[arg-type]
        (fs.Document("1", None), ["`text`", "NoneType"]),  # type: ignore[arg-type]
        (fs.Document("1", f"{NOTE}\ud800"), ["`text`", "surrogate"]),
        (fs.Document("1", NOTE, labels={"a"}), ["`labels`", "set"]),  # type: ignore[arg-type]
        (fs.Document("1", NOTE, labels="ab"), ["`labels`", "str"]),  # type: ignore[arg-type]
        (fs.Document("1", NOTE, metadata={"patient": 3}), ["`metadata`", "int"]),  # type: ignore[dict-item]
        (fs.Document("1", NOTE, (fs.Span(0, 1.5, "a"),)), ["span", "begin"]),  # type: ignore[arg-type]
    ],
)
def test_a_document_of_wrong_types_is_named_by_its_place(document: fs.Document, wrong: list[str]) -> None:
    values = ["document 2", "'x'", *wrong]
    with refused(fs.ConfigurationError, "wrong_type", at="data", values=values) as caught:
        documents_of({"x": [NOTES[0], document]})
    assert "Smith" not in str(caught.value)


def test_columns_are_of_tables() -> None:
    with refused(fs.ConfigurationError, "no_effect", at="columns"):
        fs.run(data=NOTES, columns={"text": "note"}, **QUIET)
    with refused(fs.ConfigurationError, "unknown_key", at="columns.tezt", values=["'text'"]):
        fs.run(data=FRAME, columns={"tezt": "note"}, **QUIET)


def test_frames_may_have_numbers_for_names_and_arrays_in_cells() -> None:
    """As one that was read from parquet has."""
    frame = pd.DataFrame({0: ["a", "b"], 1: [np.array(["x", "y"]), ("x",)]}, index=[7, 7])
    found = documents_of(frame, fs.settings.ColumnSettings(text="0", labels="1"))
    assert [(each.text, each.labels) for each in found] == [("a", ("x", "y")), ("b", ("x",))]
    twice = pd.DataFrame([["a", "b"]], columns=["text", "text"])
    with refused(fs.ConfigurationError, "duplicate", at="data.columns", values=["'text'"]):
        documents_of(twice, fs.settings.ColumnSettings(text="text"))


@pytest.mark.parametrize(
    ("given", "path", "values"),
    [
        ({"training": fs.settings.FederationSettings()}, "training", ["TrainingSettings", "FederationS"]),
        ({"method": fs.tasks.NamedEntityRecognition()}, "method", ["Method", "NamedEntityRecognition"]),
        ({"task": fs.methods.FedAvg()}, "task", ["Task", "FedAvg"]),
        ({"adapter": fs.settings.ModelSettings()}, "adapter", ["LoraSettings", "ModelSettings"]),
        ({"rounds": fs.settings.SplitSettings()}, "rounds", ["plain value", "SplitSettings"]),
        ({"method": fs.methods.FedProx}, "method", ["FedProx(...)"]),
        ({"settings": ["a=1"]}, "settings", ["list"]),
        ({"settings": {1: 2}}, "settings", ["dict"]),
    ],
)
def test_an_object_of_another_section_is_one_problem(
    given: dict[str, Any], path: str, values: list[str]
) -> None:
    with refused(fs.ConfigurationError, "wrong_type", at=path, values=values) as caught:
        source_of(None, given)
    assert len(problems_of(caught.value)) == 1


def test_numbers_of_numpy_and_objects_within_sections_are_plain_values() -> None:
    given = {
        "rounds": np.int64(3),
        "settings": {"data.split": fs.settings.SplitSettings(train=0.6, test=0.3)},
        "training": {"learning_rate": np.float64(0.5)},
    }
    read = check_settings(source_of(None, given)).settings
    assert (read.federation.rounds, read.data.split.train, read.training.learning_rate) == (3, 0.6, 0.5)


@pytest.mark.parametrize(
    ("given", "path", "code", "value"),
    [
        ({"methods": []}, "methods", "missing", ""),
        ({"methods": "fedavg"}, "methods", "wrong_type", "not str"),
        ({"methods": [fs.methods.FedAvg]}, "methods", "wrong_type", "class FedAvg"),
        ({"methods": [3]}, "methods", "wrong_type", "not int"),
        ({"methods": ["fedavg", fs.methods.FedAvg()]}, "methods", "duplicate", "'fedavg'"),
        ({"methods": ["fedavg"], "method": "fedprox"}, "method", "no_effect", "methods"),
        ({"methods": ["fedavg"], "seed": 1}, "seed", "no_effect", "seeds"),
        ({"methods": ["fedavg"], "seeds": 3}, "seeds", "wrong_type", "not int"),
        ({"grid": {"training.learning_rate": 0.1}}, "grid.training.learning_rate", "wrong_type", "not float"),
        ({"grid": {"device": "cpu"}}, "grid.device", "wrong_type", "not str"),
        ({"grid": ["a"]}, "grid", "wrong_type", "not list"),
        ({"jobs": 0}, "jobs", "out_of_range", "not 0"),
        ({"config": []}, "config", "missing", ""),
    ],
)
def test_wrong_arguments_of_a_comparison(given: dict[str, Any], path: str, code: str, value: str) -> None:
    with refused(fs.ConfigurationError, code, at=path, values=[value]) as caught:
        fs.compare(**given, out="compared", **QUIET)
    assert problems_of(caught.value) == [(path, code)]
    assert not Path("compared").exists()


@pytest.mark.parametrize(
    ("call", "path", "code"),
    [
        (lambda: fs.score({"x": NOTES}, NOTES), "gold", "wrong_type"),
        (lambda: fs.score([NOTE], NOTES), "gold", "wrong_type"),
        (lambda: fs.score(NOTES, [*NOTES, NOTES[0]]), "predicted", "duplicate"),
        (lambda: fs.score(NOTES, NOTES, types="drug"), "types", "wrong_type"),
        (lambda: fs.score(NOTES, NOTES, level=95), "level", "out_of_range"),
        (lambda: fs.score(NOTES, NOTES, resamples=-1), "resamples", "out_of_range"),
        (lambda: fs.score([], [], types=["a"], run="run"), "types", "no_effect"),
        (lambda: fs.synth(sites=0), "sites", "out_of_range"),
        (lambda: fs.read("x", fs.Reader), "format", "wrong_type"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_of_scores_and_readers(call: Callable[[], Any], path: str, code: str) -> None:
    with pytest.raises(fs.ConfigurationError) as caught:
        call()
    assert problems_of(caught.value) == [(path, code)]
    assert "Smith" not in str(caught.value)


def test_a_run_is_found_after_it_or_the_working_folder_has_moved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"data": fs.synth(sites=2, notes=8), "method": "fedavg", "task": "ner", "rounds": 0}
    result = fs.run(**given, settings=OF_DOCUMENTS, out="run", keep_documents=True, **QUIET)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert list(result.predict(["No fever."]).columns) == ["document", "start", "end", "label", "text"]
    (tmp_path / "run").rename(tmp_path / "below" / "moved")
    assert len(fs.resume("moved", rounds=1, progress=False).history) == 1


def test_what_is_asked_of_a_result_in_a_wrong_way(run_once: RunTiny) -> None:
    """Names of columns are no texts, and no client has the scores of one that is not there."""
    run = run_once("federation.rounds=1").folder
    result = fs.load(run)
    for wrong in (FRAME, {"x": NOTES}, 3, [3], [fs.Document("1", None)], "run", "No fever."):  # type: ignore[arg-type]
        for ask in (result.predict, result.annotate):
            with refused(fs.ConfigurationError, "wrong_type", at="texts"):
                ask(wrong)  # type: ignore[operator]
    assert list(result.predict(FRAME["note"]).columns)
    with refused(fs.ConfigurationError, "no_effect", at="format"):
        result.predict(["a"], format="brat")
    values = ["site-1, site-2, site-3", "'north'"]
    with refused(fs.ConfigurationError, "unknown_name", at="client", values=values):
        fs.load(run, client="north")
    values = ["[unknown_key, from the argument settings]"]
    with refused(fs.ConfigurationError, "unknown_key", at="devise", values=values):
        assert fs.load(run, settings={"devise": "cpu"}).model
    with refused(fs.ConfigurationError, "no_effect", at="client"):
        assert fs.load(run, client="site-1").model
