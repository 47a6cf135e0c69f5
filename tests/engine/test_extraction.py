"""Runs on extraction by instruction: a model that learns a few sentences, uneven sites, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import TINY, assert_same_tensors
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.sources import read_source
from fedstrata.engine.dividing import divide
from fedstrata.engine.setup import check_settings, prepare

SENTENCES = [
    ("Severe chest pain.", [(0, 6, "severity"), (7, 17, "problem")], [(1, 0, "severity")]),
    ("Denies fever.", [(0, 6, "negation"), (7, 12, "problem")], [(1, 0, "negation")]),
    ("Given aspirin daily.", [(6, 13, "drug"), (14, 19, "frequency")], [(0, 1, "frequency")]),
]
EXTRACT = (
    "task={name: extract, templates: short, max_length: 320}",
    "model={init: random, tokenizer: mini, config: {model_type: llama, hidden_size: 48, "
    "intermediate_size: 96, num_hidden_layers: 2, num_attention_heads: 4, tie_word_embeddings: true}}",
    "method={name: fedavg}",
)


def write_corpus(folder: Path, sites: dict[str, bool], copies: int = 2) -> str:
    """Writes the sentences of each site, with relations or without; returns the override that reads them."""
    for site, related in sites.items():
        lines = []
        for part in ("train", "validation", "test"):
            for copy in range(copies if part == "train" else 1):
                for number, (text, spans, relations) in enumerate(SENTENCES):
                    line: dict[str, Any] = {"id": f"{part}-{copy}-{number}", "text": text}
                    names = ("start", "end", "label")
                    line["spans"] = [dict(zip(names, span, strict=True)) for span in spans]
                    if related:
                        names = ("head", "tail", "label")
                        line["relations"] = [dict(zip(names, each, strict=True)) for each in relations]
                    lines.append(json.dumps(line | {"metadata": {"split": part}}))
        (folder / site).mkdir(parents=True)
        (folder / site / "notes.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"data={{format: jsonl, path: {folder}}}"


def test_a_model_that_knows_its_sentences_finds_everything_in_runs_and_predictions(
    run_tiny: Any, tmp_path: Path
) -> None:
    data = write_corpus(tmp_path / "notes", {"north": True, "south": True}, copies=8)
    training = "training={learning_rate: 0.01, batch_size: 8, epochs: 10, warmup: 0.1}"
    run = run_tiny(*EXTRACT, data, training, "federation={rounds: 4, evaluate_every: 4}")
    scores = run.summary["metrics"]["global"]
    assert scores["f1"] == scores["ner_f1"] == scores["re_f1"] == 1.0
    assert scores["unaligned_left_out"] == scores["unfinished_left_out"] == 0.0
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "one.txt").write_text("Denies fever.\nSevere chest pain.", encoding="utf-8")
    done = CliRunner().invoke(app, ["predict", str(run.folder), str(texts), "--out", str(tmp_path / "found")])
    assert done.exit_code == 0, done.output
    lines = (tmp_path / "found" / "one.ann").read_text(encoding="utf-8").splitlines()
    assert sorted(line.split("\t", 1)[1] for line in lines if line.startswith("T")) == [
        "negation 0 6\tDenies",
        "problem 21 31\tchest pain",
        "problem 7 12\tfever",
        "severity 14 20\tSevere",
    ]
    assert len([line for line in lines if line.startswith("R")]) == 2


PLUS = ("method={name: fedmedlora_plus}", "adapter={kind: lora, rank: 2}", "data.split.server=4")


def test_sites_without_relations_learn_and_are_scored_by_mentions(run_tiny: Any, tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "notes", {"both": True, "mentions": False})
    run = run_tiny(*EXTRACT, data, "federation.rounds=1")
    clients = run.summary["metrics"]["clients"]
    assert {"ner_f1", "re_f1"} <= clients["both"].keys()
    assert clients["mentions"]["f1"] == clients["mentions"]["ner_f1"]
    assert "re_f1" not in clients["mentions"]
    examples = {event["client"]: event["examples"] for event in run.of("client")}
    assert examples["both"] > examples["mentions"] > 0
    even = write_corpus(tmp_path / "even", {"both": True, "mentions": True})
    same = run_tiny(*EXTRACT, even, "federation.rounds=1", "task.mentions_only=[mentions]", out="same")
    assert_same_tensors(run.state.tensors, same.state.tensors)


@pytest.mark.parametrize("task", ["extract", "relations"])
@pytest.mark.parametrize("by", ["{by: site}", "{by: iid, clients: 2}"])
def test_whoever_has_a_document_it_says_what_was_looked_for(tmp_path: Path, task: str, by: str) -> None:
    data = write_corpus(tmp_path / "notes", {"both": True, "mentions": False}, copies=4)
    settings = (*EXTRACT, data, "data.split.server=4", f"partition={by}")
    if task == "relations":
        settings = (*settings, "task={name: relations}")
    divided = divide(check_settings(read_source(None, [*TINY, *settings]))[0])
    owned = [*divided.server, *(document for own in divided.clients.values() for document in own.all)]
    assert {(document.site, document.lacks_relations) for document in owned} == {
        ("both", False),
        ("mentions", True),
    }
    assert {document.site for document in divided.server} == {"both", "mentions"}


def test_relations_that_are_set_aside_are_so_for_the_server_and_leave_the_types_as_they_are(
    tmp_path: Path,
) -> None:
    data = write_corpus(tmp_path / "notes", {"both": True, "mentions": True}, copies=4)
    settings = (*TINY, *EXTRACT, data, *PLUS)
    whole = prepare(read_source(None, settings))
    uneven = prepare(read_source(None, [*settings, "task.mentions_only=[both, mentions]"]))
    assert (uneven.settings.task.mentions, uneven.settings.task.modifiers) == (
        whole.settings.task.mentions,
        whole.settings.task.modifiers,
    )
    assert all(document.lacks_relations for document in uneven.server)
    for name, own in uneven.clients.items():
        assert all(document.lacks_relations for document in own.train)
        assert own.test == whole.clients[name].test
        assert any(document.relations for document in own.test)


def test_a_client_without_anything_to_learn_is_told_before_anything_starts(
    run_tiny: Any, tmp_path: Path
) -> None:
    data = write_corpus(tmp_path / "notes", {"both": True, "mentions": False})
    with pytest.raises(ConfigurationError, match=r"task.tasks.*documents of mentions have no mention whose"):
        run_tiny(*EXTRACT, data, "task.tasks=[re]")


def test_a_resumed_run_is_the_uninterrupted_one(run_tiny: Any, tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "notes", {"north": True, "south": True})
    whole = run_tiny(*EXTRACT, data, "federation.rounds=2", out="whole")
    run_tiny(*EXTRACT, data, "federation.rounds=1", out="halves")
    halves = run_tiny("federation.rounds=2", out="halves", resume=True)
    assert_same_tensors(whole.state.tensors, halves.state.tensors)
    assert whole.summary["metrics"] == halves.summary["metrics"]


def test_what_cannot_be_extracted_is_told_before_anything_starts(run_tiny: Any, tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "notes", {"north": False, "south": False})
    with pytest.raises(ConfigurationError, match=r"task.modifiers.*finds no relation"):
        run_tiny(*EXTRACT, data)
    with pytest.raises(ConfigurationError, match=r"adapter.kind.*prefix|not there while an answer"):
        run_tiny(*EXTRACT, data, "task.tasks=[ner]", "adapter={kind: prefix}", "method={name: fedavg}")
