"""A federated run of document classification, from the notes to the saved model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support import TINY, RunTiny, problems_of, refused, write_lines
from transformers import AutoModelForSequenceClassification

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import divide
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run_folder import open_run, resumable
from fedstrata.tasks import classify
from fedstrata.tasks.windows import run_model

CODES = ("task.name=classify", "data.types=null", "task.max_windows=2", "training.batch_size=4")
LABELS = ("cardiac", "renal", "neither")


@pytest.fixture
def one_each(tmp_path: Path) -> Path:
    """Two sites whose notes have one label each, given away by a word."""
    folder = tmp_path / "notes"
    labels = [LABELS[n % 3] for n in range(18)]
    rows = [
        {"id": str(n), "text": f"Note {n}: {label} disease, seen today.", "labels": [label]}
        for n, label in enumerate(labels)
    ]
    for site in ("north", "south"):
        write_lines(folder / site / "notes.jsonl", rows)
    return folder


def single(folder: Path) -> str:
    return f"data={{format: jsonl, path: {folder}}}"


def test_codes_of_synthetic_notes_are_learnt_and_scored(run_once: RunTiny) -> None:
    run = run_once(*CODES)
    summary = run.summary
    assert summary["task"] == "classify"
    assert summary["convergence"]["metric"] == "micro_f1"
    for event in [*run.of("round"), *run.of("final")]:
        for scores in [event["global"], *event["clients"].values()]:
            assert {"micro_f1", "macro_f1", "auc_labels_left_out", "precision_at_5"} <= set(scores)
    losses = [event["loss"] for event in run.of("round")]
    assert losses[-1] < losses[0]


def test_a_run_leaves_what_using_its_model_needs_and_does_not_go_on_with_other_labels(
    run_tiny: RunTiny, one_each: Path
) -> None:
    run = run_tiny(*CODES, single(one_each), "federation={rounds: 1, floors: false}")
    checked = check_settings(read_source(run.folder / "config.yaml", []))
    assert not checked.problems
    model = AutoModelForSequenceClassification.from_pretrained(run.folder / "model")
    assert model.config.problem_type == "single_label_classification"
    labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
    task = checked.task.restored(labels)
    assert task.classes == tuple(sorted(LABELS))
    assert (task.metric, task.head_type) == ("accuracy", model.config.problem_type)
    file = one_each / "north" / "notes.jsonl"
    file.write_text(file.read_text().replace('"labels": ["renal"]', '"labels": ["cardiac"]'))
    with refused(ConfigurationError, "changed", at="data"):
        run_tiny("federation.rounds=2", resume=True)


def test_words_that_give_labels_away_are_learnt(run_once: RunTiny, one_each: Path) -> None:
    run = run_once(
        *CODES, single(one_each), "federation.rounds=4", "training.epochs=3", "training.learning_rate=0.01",
        "task.max_length=32", "method={name: fedavg}", "federation.evaluate_every=4",
        "federation.floors=false",
    )  # fmt: skip
    assert run.summary["metrics"]["global"]["accuracy"] > 0.9


def test_storing_what_frozen_blocks_give_takes_no_more_windows_at_a_time_than_scoring(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []

    def counted(module, batch):
        rows.append(len(batch["input_ids"]))
        return run_model(module, batch)

    monkeypatch.setattr(classify, "run_model", counted)
    run = run_tiny(
        *CODES, "task.max_windows=3", "task.max_length=32", "training.batch_size=1",
        "training.eval_batch_size=4", "training.epochs=2", "training.cache=on",
        "federation={rounds: 1, floors: false}",
        "method={name: layer_skipping, top: 1}", "data.synthetic.notes=24",
    )  # fmt: skip
    assert any(facts["used"] for facts in run.of("cache"))
    assert max(rows) == 4


def test_frozen_output_of_several_windows_is_the_same_from_the_file(run_once: RunTiny) -> None:
    common = [
        *CODES, "training.epochs=2", "method={name: layer_skipping, top: 1}", "model.dtype=float32",
        "federation={rounds: 1, floors: false}", "data.synthetic.notes=6",
    ]  # fmt: skip
    runs = [run_once(*common, f"training.cache={cache}") for cache in ("on", "off")]
    assert any(facts["used"] for facts in runs[0].of("cache"))
    torch.testing.assert_close(runs[0].state.tensors, runs[1].state.tensors, rtol=0, atol=1e-5)


def test_a_run_can_be_resumed_with_the_file_that_left_the_kind_of_problem_open(
    run_once: RunTiny, tmp_path: Path
) -> None:
    folder = run_once(*CODES).folder
    again = [*TINY, *CODES, "federation.rounds=3"]
    source = resumable(folder, None, again)
    assert source.values["task"]["problem_type"] == "multi_label"
    (tmp_path / "open.yaml").write_text("{}\n")
    source = resumable(folder, tmp_path / "open.yaml", again)
    assert "problem_type" not in source.values["task"]
    with refused(
        ConfigurationError, "changed", at="task.problem_type", values=["single_label", "multi_label"]
    ):
        resumable(folder, None, ["task.problem_type=single_label"])


def test_a_label_skew_is_one_of_the_labels_that_are_learnt(tmp_path: Path) -> None:
    """The notes have mentions too, which a division for this task must not go by."""
    write(generate(seed=1, sites=2, notes=24), tmp_path / "notes", "jsonl")
    rule = "partition={by: speciality, clients: 3, lean: 1.0}"
    source = read_source(None, [*TINY, *CODES, single(tmp_path / "notes"), rule])
    for path in (tmp_path / "notes").rglob("*.jsonl"):
        notes = [json.loads(line) for line in path.read_text().splitlines()]
        for number, note in enumerate(notes):
            note["labels"] = [LABELS[number % 3]]
            note.pop("metadata", None)
        write_lines(path, notes)
    checked = check_settings(source)
    clients = divide(checked.settings, checked.task).clients
    assert [{document.labels for document in own.all} for own in clients.values()] == [
        {(label,)} for label in sorted(LABELS)
    ]


@pytest.mark.parametrize("by", ["dirichlet", "speciality", "iid"])
def test_every_division_gives_every_client_the_same_labels_to_choose_from(by: str) -> None:
    experiment = prepare(read_source(None, [*TINY, *CODES, f"partition={{by: {by}, clients: 3}}"]))
    everybody = {label for own in experiment.clients.values() for note in own.all for label in note.labels}
    assert set(experiment.task.classes) == everybody
    assert experiment.model.module.config.num_labels == len(everybody)


def test_problems_of_the_task_are_told_with_those_of_other_sections(one_each: Path) -> None:
    overrides = [*TINY, *CODES, single(one_each), "task.problem_type=single_label", "method={name: fedmagic}"]
    file = one_each / "north" / "notes.jsonl"
    file.write_text(file.read_text().replace('"labels": ["renal"]', '"labels": []'))
    with pytest.raises(ConfigurationError) as error:
        open_run(read_source(None, overrides), one_each / "run", lambda *_: None, resume=False)
    assert {at for at, _ in problems_of(error.value)} == {"task.problem_type", "method.name"}
    assert not (one_each / "run").exists()
