"""A run from Python: its arguments, documents that are objects, and going on after Ctrl-C."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from support import OF_DOCUMENTS, TINY, Call, problems_of, refused

import fedstrata as fs
from fedstrata.api.inputs import documents_of
from fedstrata.api.options import source_of
from fedstrata.cli.options import configuration
from fedstrata.core.settings.source import read_source
from fedstrata.engine.check import check_settings
from fedstrata.record.log import read_events

Notes = dict[str, list[fs.Document]]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def notes() -> Notes:
    """Documents by site."""
    return fs.synth(sites=2, notes=8)


def tiny(**settings: Any) -> dict[str, Any]:
    """Arguments of a run of seconds on documents that are given."""
    return {"settings": OF_DOCUMENTS | settings, "progress": False}


def test_what_is_given_twice_is_refused() -> None:
    with refused(fs.ConfigurationError, "duplicate", at="federation.rounds", values=["rounds"]):
        fs.run(rounds=1, settings={"federation.rounds": 2}, progress=False)
    twice = {"x": [fs.Document("1", "One."), fs.Document("1", "Two.")]}
    with refused(fs.ConfigurationError, "duplicate", at="data", values=["'x/1'"]):
        fs.run(data=twice, **tiny())


def rounds_of(folder: Path) -> list[Any]:
    """What a run's rounds came to."""
    events = read_events(folder / "record.jsonl")
    return [(each["loss"], each.get("global")) for each in events if each["event"] == "round"]


def test_documents_by_site_are_the_run_that_their_files_are(notes: Notes, call: Call) -> None:
    result = fs.run(data=notes, task="ner", method="fedavg", rounds=1, **tiny())
    fs.synth(sites=2, notes=8, out="files", format="jsonl")
    data = ["data.format=jsonl", "data.path=files"]
    overrides = [each for each in TINY if not each.startswith("data.synthetic")]
    own = ["task.name=ner", "method={name: fedavg}", "federation.rounds=1"]
    assert call("run", *overrides, *data, *own, "--out", "from-files").status == 0
    assert rounds_of(result.folder) == rounds_of(Path("from-files"))
    assert result.folder == Path("runs/demo")


def files_with(texts: set[str], folder: Path) -> list[Path]:
    """Returns the files that hold one of these texts, as JSON would have them too."""
    spellings = {spelt.encode() for text in texts for spelt in (text, json.dumps(text)[1:-1])}
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(each in path.read_bytes() for each in spellings)]


def test_a_run_that_ends_leaves_no_text_of_documents_that_are_objects(notes: Notes) -> None:
    """It is resumed with the same documents, and with no others."""
    texts = {document.text for own in notes.values() for document in own}
    result = fs.run(data=notes, task="ner", method="fedavg", rounds=0, out="run", **tiny())
    assert files_with(texts, Path("run")) == []
    assert not (result.folder / "inputs").exists()
    for wrong in ({}, {"data": {site: own[1:] for site, own in notes.items()}}):
        with pytest.raises(fs.FedstrataError):
            fs.resume("run", rounds=1, progress=False, **wrong)
    assert len(fs.resume("run", rounds=1, progress=False, data=notes).history) == 1
    assert files_with(texts, Path("run")) == []


def test_documents_are_kept_where_it_is_asked_for_and_for_their_owner_alone(notes: Notes) -> None:
    """And a run goes on with what it began with alone."""
    given = {"data": notes, "task": "ner", "method": "fedavg", "rounds": 0, "out": "run", **tiny()}
    result = fs.run(**given, keep_documents=True)
    kept = result.folder / "inputs" / "documents.jsonl"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    settings = check_settings(read_source(result.folder / "config.yaml", [])).settings
    assert settings.data.path == str(kept.absolute())
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    with refused(fs.ConfigurationError, "exists", at="out", values=["fedstrata.resume"]):
        fs.run(**given)
    with refused(fs.ConfigurationError, "exists", at="data", values=["run"]):
        fs.resume("run", rounds=1, progress=False, data=notes)
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before
    with refused(fs.ConfigurationError, "changed", at="training.learning_rate"):
        fs.resume("run", settings={"training.learning_rate": 1.0}, progress=False)
    assert len(fs.resume("run", rounds=1, progress=False).history) == 1
    assert not kept.exists()


def test_a_run_that_is_stopped_before_it_begins_leaves_no_documents(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedstrata.engine.prepare.load_model", stop)
    with pytest.raises(KeyboardInterrupt) as stopped:
        fs.run(data=notes, task="ner", method="fedavg", rounds=2, out="run", **tiny())
    assert not (Path("run") / "inputs" / "documents.jsonl").exists()
    assert not getattr(stopped.value, "__notes__", [])


ROWS = {
    "note": ["No fever today.", "Chest pain.", "Cough."],
    "codes": [["a"], ["b", "a"], ["b"]],
    "hospital": ["x", "y", "x"],
}
COLUMNS = {"text": "note", "labels": "codes", "site": "hospital"}


def told(documents: list[fs.Document]) -> list[tuple[str, str, tuple[str, ...]]]:
    """What documents hold, in the order of their texts."""
    return sorted((each.text, each.site, tuple(each.labels)) for each in documents)


def test_a_table_may_be_a_frame_a_dataset_or_either_by_site() -> None:
    """The same documents come of all of them."""
    columns = fs.settings.ColumnSettings(**COLUMNS)
    frame = pd.DataFrame(ROWS)
    by_site = {site: own.drop(columns="hospital") for site, own in frame.groupby("hospital")}
    whole = documents_of(frame, columns)
    assert told(whole) == [
        ("Chest pain.", "y", ("b", "a")),
        ("Cough.", "x", ("b",)),
        ("No fever today.", "x", ("a",)),
    ]
    assert told(documents_of(Dataset.from_dict(ROWS), columns)) == told(whole)
    without_site = columns.model_copy(update={"site": None})
    assert told(documents_of(by_site, without_site)) == told(whole)
    datasets = {site: Dataset.from_pandas(own, preserve_index=False) for site, own in by_site.items()}
    assert told(documents_of(datasets, without_site)) == told(whole)
    ids = [document.id for document in documents_of(by_site, without_site)]
    assert len(set(ids)) == len(ids)


def test_a_dataset_with_splits_keeps_them() -> None:
    parts = {"train": ROWS, "test": {name: values[:1] for name, values in ROWS.items()}}
    given = DatasetDict({name: Dataset.from_dict(part) for name, part in parts.items()})
    found = documents_of(given, fs.settings.ColumnSettings(**COLUMNS))
    splits = [document.metadata["split"] for document in found]
    assert splits == ["train", "train", "train", "test"]


@pytest.mark.parametrize(
    ("given", "named"),
    [(["a text"], "list of str"), ({"x": [3]}, "list of int"), (3, "int"), ([], "list of nothing")],
)
def test_what_is_no_data_is_refused_by_its_kind(given: Any, named: str) -> None:
    with refused(fs.ConfigurationError, "wrong_type", at="data", values=[f"not {named}"]) as caught:
        fs.run(data=given, out="run", **tiny())
    assert "a text" not in str(caught.value)
    assert not Path("run").exists()


def test_all_wrong_arguments_are_told_at_once() -> None:
    with pytest.raises(fs.ConfigurationError) as caught:
        fs.run(metod="fedavg", epochs=3, out="run", progress=False)  # type: ignore[call-arg]
    assert problems_of(caught.value) == [("metod", "unknown_name"), ("epochs", "unknown_name")]
    assert "'method'" in str(caught.value)
    wrong = {"method": "fedavgg", "training": {"epochs": 0}, "rounds": -1}
    with pytest.raises(fs.ConfigurationError) as caught:
        fs.run(**wrong, out="run", progress=False)
    found = {problem.path: problem.origin for problem in caught.value.problems}
    assert found == {
        "method.name": "the argument method",
        "training.epochs": "the argument training",
        "federation.rounds": "the argument rounds",
    }
    assert not Path("run").exists()


def test_arguments_are_objects_mappings_or_names() -> None:
    """And single settings are laid over them all."""
    sections: list[Mapping[str, Any]] = [
        {"method": fs.methods.FedProx(mu=0.5), "training": fs.settings.TrainingSettings(epochs=2)},
        {"method": {"name": "fedprox", "mu": 0.5}, "training": {"epochs": 2}},
        {"method": "fedprox", "settings": {"method.mu": 0.5, "training.epochs": 2}},
    ]
    read = [check_settings(source_of({}, section)).settings for section in sections]
    assert read[0].model_dump() == read[1].model_dump() == read[2].model_dump()
    assert (read[0].method["mu"], read[0].training.epochs) == (0.5, 2)


def test_a_configuration_may_be_settings_as_they_were_read() -> None:
    first = check_settings(source_of(None, {"rounds": 7, "method": "fedprox"})).settings
    again = check_settings(source_of(first, {"seed": 3})).settings
    assert again.model_dump() == first.model_dump() | {"seed": 3}


def test_a_run_stopped_by_ctrl_c_goes_on_to_the_same_numbers(notes: Notes) -> None:
    """It says where its documents are until then."""

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "round" and facts["round"] == 1:
            raise KeyboardInterrupt

    method = fs.methods.FedPer(personal_blocks=1)
    rare = tiny(**{"federation.evaluate_every": 2})
    given = {"data": notes, "task": "ner", "method": method, "rounds": 2, **rare}
    whole = fs.run(**given, out="whole")
    with pytest.raises(KeyboardInterrupt) as stopped:
        fs.run(**given, out="stopped", on_event=stop)
    kept = Path("stopped") / "inputs" / "documents.jsonl"
    assert kept.exists()
    assert str(kept.absolute()) in "".join(stopped.value.__notes__)
    assert fs.load("stopped").state == "interrupted"
    resumed = fs.resume("stopped", progress=False)
    assert rounds_of(Path("stopped")) == rounds_of(Path("whole"))
    assert resumed.metrics == whole.metrics
    assert not kept.exists()


def test_a_method_of_a_function_cannot_go_to_workers(notes: Notes) -> None:
    class Mine(fs.methods.FedAvg):
        """FedAvg under another name."""

        name: Literal["mine"] = "mine"  # type: ignore[assignment]

    with refused(fs.ConfigurationError, "not_importable", at="workers", values=["Mine", ".py"]):
        fs.run(data=notes, task="ner", method=Mine(), workers=2, out="run", **tiny())
    assert not Path("run").exists()
    result = fs.run(data=notes, task="ner", method=Mine(), rounds=0, out="run", **tiny())
    assert result.state == "finished"
    with refused(fs.ConfigurationError, "not_importable", at="workers", values=["a function"]):
        fs.resume("run", workers=2, rounds=2, progress=False, data=notes)


class Mentions(fs.Metric):
    """Mentions that are found in a document, on average."""

    name: Literal["mentions"] = "mentions"

    def tally(self, documents: Any, answers: Any) -> dict[str, float]:
        """Counts them."""
        return {"found": float(sum(map(len, answers))), "documents": float(len(documents))}

    def score(self, tally: Mapping[str, float]) -> float:
        """Divides."""
        return tally["found"] / max(1.0, tally["documents"])


def test_a_metric_of_ones_own_is_of_all_clients_documents(notes: Notes) -> None:
    """It is counted by client and pooled, like any other."""
    task = fs.tasks.NamedEntityRecognition(extra_metrics=[Mentions()], max_length=64, stride=8)
    result = fs.run(data=notes, task=task, method="fedavg", rounds=1, out="run", **tiny())
    split = {name: parts["test"] for name, parts in result.clients.to_dict("index").items()}
    own = result.summary["metrics"]["clients"]
    pooled = sum(own[name]["mentions"] * count for name, count in split.items()) / sum(split.values())
    assert result.metrics["mentions"] == pytest.approx(pooled)


def test_a_plan_is_text_and_html(notes: Notes) -> None:
    made = fs.plan(data=notes, task="ner", method="fedavg", rounds=2, settings=OF_DOCUMENTS, seconds=0.0)
    assert (made.rounds, list(made.clients)) == (2, list(notes))
    assert f"{made.trainable_parameters:,}" in str(made)
    assert "<pre" in made._repr_html_()


def test_a_run_without_a_configuration_is_the_one_of_the_command_line() -> None:
    assert source_of(None, {}).values == configuration(None, []).values
    own = source_of(None, {"rounds": 3, "task": "classify"})
    assert own.values == configuration(None, ["federation.rounds=3", "task={name: classify}"]).values
    given = source_of(None, {"data": [fs.Document("1", "No fever.")]})
    assert not {"types", "synthetic"} & given.values["data"].keys(), "which are of the demo's notes"
    chosen = source_of(None, {"data": [fs.Document("1", "No fever.")], "settings": {"data.types": ["drug"]}})
    assert chosen.values["data"]["types"] == ["drug"]
