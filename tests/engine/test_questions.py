"""Runs on cloze questions and summaries: models that learn a few by heart, resuming, predictions, cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import refused, write_lines
from told import assert_refused
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.readers import read

MODEL = (
    "model={init: random, tokenizer: mini, config: {model_type: llama, hidden_size: 48, "
    "intermediate_size: 96, num_hidden_layers: 2, num_attention_heads: 4, tie_word_embeddings: true}}"
)
LEARNING = "training={learning_rate: 0.01, batch_size: 8, epochs: 30, warmup: 0.1}"
PLAN = ("method={name: fedavg}", "federation={rounds: 3, evaluate_every: 3}", "data.types=null")

RTE = [
    {"premise": "Severe chest pain.", "hypothesis": "Pain.", "label": "entailment"},
    {"premise": "Denies fever.", "hypothesis": "Fever.", "label": "not_entailment"},
    {"premise": "Given aspirin.", "hypothesis": "A drug was given.", "label": 0},
    {"premise": "No known allergies.", "hypothesis": "An allergy.", "label": 1},
]
COPA = [
    {"premise": "He fell.", "choice1": "It hurt.", "choice2": "It rained.", "question": "effect", "label": 0},
    {"premise": "She coughed.", "choice1": "She ate.", "choice2": "A cold.", "question": "cause", "label": 1},
    {"premise": "He slept.", "choice1": "Fatigue.", "choice2": "He ran.", "question": "cause", "label": 0},
]  # fmt: skip
MULTIRC = [
    {
        "passage": {
            "text": "Ann has a cough. Bo has a fever.",
            "questions": [
                {
                    "question": f"Who has a {sign}?",
                    "answers": [{"text": name, "label": name == right} for name in ("Ann", "Bo", "Cy")],
                }
                for sign, right in (("cough", "Ann"), ("fever", "Bo"))
            ],
        }
    }
]
DIALOGUES = [
    ("CC", "Chest pain since Monday.", "Doctor: What is it? Patient: My chest hurts since Monday."),
    ("ALLERGY", "None known.", "Doctor: Allergies? Patient: Not that I know."),
    ("MEDICATIONS", "Aspirin daily.", "Doctor: Any drugs? Patient: Aspirin, every day."),
]


def write_questions(folder: Path, task: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes the same questions as every split of two sites; returns the override that reads them."""
    for site in ("north", "south"):
        for split in ("train", "val", "test"):
            write_lines(folder / site / f"{task}_{split}.jsonl", rows)
    return f"data={{format: superglue, path: {folder}}}"


def predict(run: Path, source: Path, out: Path, form: str) -> Any:
    arguments = ["predict", str(run), str(source), "--out", str(out), "--input-format", form]
    return CliRunner().invoke(app, arguments)


def predicted(run: Path, source: Path, out: Path, form: str) -> str:
    """What a command that succeeds shows."""
    done = predict(run, source, out, form)
    assert done.exit_code == 0, done.output
    return str(done.output)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "rows", "metrics"),
    [
        ("rte", RTE, ["accuracy", "macro_f1"]),
        ("copa", COPA, ["accuracy"]),
        ("multirc", MULTIRC, ["f1a", "exact_match"]),
    ],
)
def test_a_model_that_knows_its_questions_answers_them_in_runs_and_predictions(
    run_tiny: Any, tmp_path: Path, task: str, rows: Sequence[Mapping[str, Any]], metrics: list[str]
) -> None:
    data = write_questions(tmp_path / "questions", task, rows)
    run = run_tiny(data, "task={name: cloze, max_length: 128}", MODEL, LEARNING, *PLAN)
    scores = run.summary["metrics"]["global"]
    assert [scores[metric] for metric in metrics] == [1.0] * len(metrics)
    source = tmp_path / "questions" / "north" / f"{task}_test.jsonl"
    assert metrics[0] in predicted(run.folder, source, tmp_path / "found", "superglue")
    expected = {document.id: document.labels for document in read(source, "superglue")}
    found = {document.id: document for document in read(tmp_path / "found", "jsonl")}
    assert {name: document.labels for name, document in found.items()} == expected
    assert all(any(key.startswith("probability/") for key in own.metadata) for own in found.values())
    texts = tmp_path / "texts.txt"
    texts.write_text("Severe chest pain.")
    unread = predict(run.folder, texts, tmp_path / "nothing", "text")
    assert_refused(unread.exception, ConfigurationError, "not_supported", at="--input-format")
    exported = CliRunner().invoke(app, ["export", str(run.folder), "--out", str(tmp_path / "model")])
    assert exported.exit_code == 0, exported.output


def test_questions_without_answers_are_answered_and_not_scored(run_tiny: Any, tmp_path: Path) -> None:
    data = write_questions(tmp_path / "questions", "copa", COPA)
    run = run_tiny(data, "task={name: cloze, max_length: 128}", MODEL, *PLAN, "federation.rounds=0")
    blind = [{key: value for key, value in row.items() if key != "label"} for row in COPA]
    path = write_lines(tmp_path / "copa_blind.jsonl", [*blind, COPA[0]])
    said = predicted(run.folder, path, tmp_path / "found", "superglue")
    assert "3 of 4 documents" in " ".join(said.split())
    assert len(read(tmp_path / "found", "jsonl")) == 4
    write_questions(tmp_path / "questions", "copa", [{**COPA[0], "choice2": "It snowed."}, *COPA[1:]])
    with refused(ConfigurationError, "changed", at="data"):  # other choices are other data
        run_tiny("federation.rounds=1", resume=True)


def test_stored_states_of_frozen_blocks_change_nothing(run_tiny: Any, tmp_path: Path) -> None:
    data = write_questions(tmp_path / "questions", "multirc", MULTIRC)
    overrides = (data, "task={name: cloze, max_length: 128}", MODEL, "data.types=null", "federation.rounds=1")
    runs = [
        run_tiny(*overrides, "method={name: layer_skipping, top: 1}", f"training.cache={cache}", out=cache)
        for cache in ("on", "off")
    ]
    torch.testing.assert_close(*(dict(run.state.tensors) for run in runs), rtol=0.0, atol=1e-5)


def test_other_pairs_of_texts_are_asked_about_by_name(run_tiny: Any, tmp_path: Path) -> None:
    """GLUE's own files say nothing of questions, and hold the same fields."""
    rows = "".join(f"{row['premise']}\t{row['hypothesis']}\t{row['label']}\n" for row in RTE[:2])
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.tsv").write_text(f"sentence1\tsentence2\tlabel\n{rows * 4}")
    glue = (f"data={{format: glue, path: {tmp_path}}}", "partition={by: iid, clients: 2}", MODEL, *PLAN)
    with refused(ConfigurationError, "missing", at="task.question", values=["'auto'"]):
        run_tiny(*glue, "task={name: cloze}")
    run = run_tiny(*glue, "task={name: cloze, question: rte, max_length: 128}", "federation.rounds=1")
    assert run.summary["metrics"]["global"].keys() >= {"accuracy", "macro_f1"}


def write_dialogues(folder: Path) -> str:
    """Writes the same dialogues as every split of two sites; returns the override that reads them."""
    rows = "".join(
        f'{number},{head},"{text}","{talk}"\n' for number, (head, text, talk) in enumerate(DIALOGUES)
    )
    for site in ("north", "south"):
        (folder / site).mkdir(parents=True)
        for name in ("TrainingSet", "ValidationSet", "TestSet-1"):
            path = folder / site / f"MTS-Dialog-{name}.csv"
            path.write_text(f"ID,section_header,section_text,dialogue\n{rows}", encoding="utf-8")
    return f"data={{format: mts_dialog, path: {folder}}}"


@pytest.mark.slow
def test_a_model_that_knows_its_dialogues_writes_their_notes(run_tiny: Any, tmp_path: Path) -> None:
    data = write_dialogues(tmp_path / "dialogues")
    task = "task={name: summarize, max_length: 160, answer_length: 32}"
    run = run_tiny(data, task, MODEL, LEARNING, *PLAN)
    scores = run.summary["metrics"]["global"]
    assert scores["rouge1"] == scores["rouge2"] == scores["exact_match"] == scores["finished"] == 1.0
    source = tmp_path / "dialogues" / "north" / "MTS-Dialog-TestSet-1.csv"
    assert "rouge2" in predicted(run.folder, source, tmp_path / "found", "mts_dialog")
    found = read(tmp_path / "found", "jsonl")
    assert [own.text_pair for own in found] == [text for _, text, _ in DIALOGUES]
    assert [own.labels for own in found] == [(header,) for header, _, _ in DIALOGUES]
    exported = CliRunner().invoke(app, ["export", str(run.folder), "--out", str(tmp_path / "model")])
    assert exported.exit_code == 0, exported.output


def test_texts_alone_are_summed_up_where_the_instruction_asks_for_no_more(
    run_tiny: Any, tmp_path: Path
) -> None:
    data = write_dialogues(tmp_path / "dialogues")
    task = "task={name: summarize, max_length: 96, answer_length: 8, template: 'Sum up: {text}'}"
    run = run_tiny(data, task, MODEL, *PLAN, "federation.rounds=0")
    (tmp_path / "x.txt").write_text("Doctor: Yes?", encoding="utf-8")
    predicted(run.folder, tmp_path / "x.txt", tmp_path / "found", "text")
    (found,) = read(tmp_path / "found", "jsonl")
    assert found.text == "Doctor: Yes?"
    assert found.text_pair is not None
    adapter = ("adapter={kind: prefix}", task, data, MODEL, *PLAN)
    with refused(ConfigurationError, "not_supported", at="adapter.kind", values=["summarize"]):
        run_tiny(*adapter, out="other")
