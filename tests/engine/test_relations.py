"""A federated run that learns relations, from the notes to the files of a prediction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support import TINY, Finished, RunTiny, assert_same_tensors, refused

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.data.readers import read
from fedstrata.data.writers import write
from fedstrata.engine.check import check_settings
from fedstrata.engine.run_folder import resumable
from fedstrata.planning.plan import make_plan
from fedstrata.results.document_pairs import select_as
from fedstrata.results.export import export
from fedstrata.results.predict import check_input, check_output, open_inputs, predict_files
from fedstrata.results.result import open_result
from fedstrata.results.score import Draws, score_systems

RELATIONS = (
    "task={name: relations, max_length: 48}",
    "data.types=null",
    "method={name: layer_skipping, top: 1}",
    "training.batch_size=32",
    "training.eval_batch_size=64",
    "federation.floors=false",
)
DRUGS = ("aspirin", "heparin", "insulin")
DOSES = ("5 mg", "81 mg", "100 units")


def note(name: str, site: str, number: int, **more: bool) -> Document:
    """Two drugs with a dose each; that of the second stands behind the first, too."""
    parts = [(DRUGS[number % 3], "Medication"), (" ", ""), (DOSES[number % 2], "Dosage"), (" and ", "")]
    parts += [(DRUGS[(number + 1) % 3], "Medication"), (" ", ""), (DOSES[2], "Dosage"), (" .", "")]
    text, spans = "", []
    for words, label in parts:
        if label:
            spans.append(Span(len(text), len(text) + len(words), label))
        text += words
    relations = (Relation(0, 1, "MODIFY"), Relation(2, 3, "MODIFY"), Relation(0, 2, "OVERLAP"))
    kept = () if more.get("lacks_relations") else relations
    return Document(name, text, tuple(spans), kept, site=site, **more)


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites whose notes say which dose is whose; some notes of one say nothing of relations."""
    return write_notes(tmp_path_factory.mktemp("notes"))


def write_notes(folder: Path) -> Path:
    corpus = [note(f"{site}-{n}", site, n) for site in ("north", "south") for n in range(12)]
    corpus += [note(f"south-x{n}", "south", n, lacks_relations=True) for n in range(6)]
    write(corpus, folder / "notes", "jsonl")
    return folder / "notes"


def of(folder: Path) -> tuple[str, ...]:
    data = f"format: jsonl, path: {folder}, types: {{Medication: drug, Dosage: dosage}}"
    return (*RELATIONS, f"data={{{data}, relations: {{MODIFY: <modifier>}}}}")


LEARNT = (
    "training.epochs=12",
    "federation.rounds=5",  # with 3 the score is above or below .9 with the last bits of a processor
    "federation.evaluate_every=5",
    "method={name: fedavg}",
    "training.learning_rate=0.01",
)


@pytest.fixture(scope="module")
def learnt(run_once: RunTiny, notes: Path) -> Finished:
    return run_once(*of(notes), *LEARNT)


def test_modifiers_of_synthetic_notes_are_learnt_and_scored(run_tiny: RunTiny) -> None:
    chosen = "data={synthetic: {sites: 3, notes: 12}, relations: [severity, dosage], modifiers: clinical}"
    run = run_tiny(*RELATIONS, chosen, "task.most_words=6")
    assert (run.summary["task"], run.summary["convergence"]["metric"]) == ("relations", "f1")
    for event in [*run.of("round"), *run.of("final")]:
        for scores in [event["global"], *event["clients"].values()]:
            assert {"f1", "precision", "recall"} <= set(scores)
    losses = [event["loss"] for event in run.of("round")]
    assert losses[-1] < losses[0]
    checked = check_settings(read_source(run.folder / "config.yaml", []))
    assert not checked.problems
    assert checked.settings.task["modifiers"]["drug"] == ["dosage"]


def test_what_a_run_learnt_relates_the_mentions_of_other_files(learnt: Finished, tmp_path: Path) -> None:
    assert learnt.summary["metrics"]["global"]["f1"] > 0.9
    found = note("a", "", 1)
    known = Document("a", found.text, found.spans, (*found.relations, Relation(1, 0, "CAUSE")))
    write([known, Document("b", "No drug .")], tmp_path / "in", "brat")
    result = open_result(learnt.folder)
    assert result.model.module.config.id2label == {0: "none", 1: "dosage"}
    output = check_output(result.task, None)
    assert output == "brat"
    check_input(result.task, "brat")
    inputs = open_inputs(tmp_path / "in", "brat", output, result.settings.data)
    outcome = predict_files(result, inputs, tmp_path / "out", output, lambda count: None)
    first, second = read(tmp_path / "out", "brat")
    assert (first.text, second.text) == (known.text, "No drug .")
    # Mentions keep their places, under the names of the run; relations are those that were found.
    assert [span.label for span in first.spans] == ["drug", "dosage", "drug", "dosage"]
    assert first.relations == (Relation(0, 1, "dosage"), Relation(2, 3, "dosage"))
    assert outcome.annotations == 2
    assert outcome.unknown == {"OVERLAP", "CAUSE"}
    assert outcome.scores is not None
    assert outcome.scores["f1"] == 1.0
    # The files score the same: relations of other types are nobody's fault, and names are the run's.
    sides = [read(tmp_path / side, "brat") for side in ("in", "out")]
    (gold, found_again), mentions = select_as(learnt.folder, sides)
    (system,) = score_systems(gold, [found_again], Draws(), mentions)
    assert system.relations is not None
    assert (system.relations.scores["f1"], system.relations.counts[""].gold) == (1.0, 2)


def test_an_input_without_relations_is_not_scored(learnt: Finished, tmp_path: Path) -> None:
    result = open_result(learnt.folder)
    lacking = note("a", "s", 1, lacks_relations=True)
    write([lacking, Document("b", lacking.text, lacking.spans, site="s")], tmp_path / "in", "jsonl")
    inputs = open_inputs(tmp_path / "in", "jsonl", "jsonl", result.settings.data)
    outcome = predict_files(result, inputs, tmp_path / "out", "jsonl", lambda count: None)
    assert (outcome.scores, outcome.unscored) == (None, 1)
    predictions = tmp_path / "out" / "predictions.jsonl"
    assert [len(own.spans) for own in read(predictions, "jsonl")] == [4, 4]
    assert "lacks_relations" not in predictions.read_text()
    with refused(ConfigurationError, "not_supported", at="--input-format", values=["'text'"]):
        check_input(result.task, "text")
    values = ["relations", "brat, jsonl", "'i2b2'"]
    with refused(ConfigurationError, "not_supported", at="--format", values=values):
        check_output(result.task, "i2b2")


def test_the_code_of_the_card_relates_a_pair(
    learnt: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(open_result(learnt.folder), tmp_path / "model", licence=None, language=None, with_names=False)
    card = (tmp_path / "model" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path / "model")
    pair = "... @ * drug * WORDS @ ... # ^ dosage ^ WORDS # ..."
    assert pair in code
    own = "@ * drug * aspirin @ # ^ dosage ^ 5 mg # and heparin 100 units ."
    other = "aspirin # ^ dosage ^ 5 mg # and @ * drug * heparin @ 100 units ."
    found = []
    for text in (own, other):
        names: dict[str, Any] = {}
        exec(code.replace(pair, text), names)  # noqa: S102 - the card's own code is what is tested
        found.append(names["relation"])
    assert found == ["dosage", "none"]


def test_notes_that_say_nothing_of_relations_are_neither_trained_on_nor_scored_nor_planned(
    run_once: RunTiny, notes: Path
) -> None:
    split = "data.split={train: 0.5, validation: 0.25, test: 0.25}"
    overrides = (*of(notes), split, "federation.rounds=1")
    whole = run_once(*overrides)
    sizes = {event["client"]: event["examples"] for event in whole.of("client")}
    # Two drugs and two doses are four pairs. Six of north's notes are trained on, and of south's nine at most
    # as many as do not lack relations.
    assert sizes["north"] == 24
    assert sizes["south"] % 4 == 0
    assert sizes["south"] < 36
    plan = make_plan(read_source(None, [*TINY, *overrides]), seconds=0.0)
    assert {name: own.examples for name, own in plan.clients.items()} == sizes


def test_frozen_blocks_are_stored_and_training_gives_the_same(run_once: RunTiny, notes: Path) -> None:
    common = [*of(notes), "training.epochs=2", "federation.rounds=1"]
    runs = [run_once(*common, f"training.cache={cache}") for cache in ("on", "off")]
    assert any(facts["used"] for facts in runs[0].of("cache"))
    torch.testing.assert_close(runs[0].state.tensors, runs[1].state.tensors, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(run_tiny: RunTiny, tmp_path: Path) -> None:
    notes = write_notes(tmp_path)
    overrides = [*of(notes), "task.negatives=0.5"]
    whole = run_tiny(*overrides, "federation.rounds=2", out="whole")
    run_tiny(*overrides, "federation.rounds=1", out="short")
    resumed = run_tiny("federation.rounds=2", out="short", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert resumed.summary["metrics"] == whole.summary["metrics"]
    # The file that left the pairs open fits the run, and one that names others does not.
    resumable(tmp_path / "short", None, ["task.modifiers=auto", "federation.rounds=3"])
    with refused(ConfigurationError, "changed", at="task.modifiers.drug", values=["[drug]"]):
        resumable(tmp_path / "short", None, ["task.modifiers={drug: [drug]}"])
    file = next((notes / "north").iterdir())
    file.write_text(file.read_text().replace('"label": "MODIFY"', '"label": "OVERLAP"', 1))
    with refused(ConfigurationError, "changed", at="data"):
        run_tiny("federation.rounds=3", out="short", resume=True)
