"""Runs on extraction by instruction: a model that learns a few sentences, uneven sites, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support import TINY, Finished, assert_same_tensors, executed, refused, write_lines
from told import assert_refused
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import divide
from fedstrata.data.readers import read
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare
from fedstrata.metrics.relations import match_relations, triples_of
from fedstrata.metrics.spans import scores_of
from fedstrata.results.export import export
from fedstrata.results.result import open_result

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
                    lines.append(line | {"metadata": {"split": part}})
        write_lines(folder / site / "notes.jsonl", lines)
    return f"data={{format: jsonl, path: {folder}}}"


PLUS = ("method={name: fedmedlora_plus}", "adapter={kind: lora, rank: 2}", "data.split.server=4")
LEARNT = "training={learning_rate: 0.01, batch_size: 3, epochs: 20, warmup: 0.1}"


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("learnt")
    data = write_corpus(folder / "notes", {"north": True, "south": True}, copies=1)
    rounds = "federation={rounds: 2, evaluate_every: 2}"
    return executed(folder / "run", [*TINY, *EXTRACT, data, LEARNT, rounds])


def predict(run: Finished, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["predict", str(run.folder), *map(str, arguments)])


def predicted(run: Finished, *arguments: object) -> str:
    """What a command that succeeds shows."""
    done = predict(run, *arguments)
    assert done.exit_code == 0, done.output
    return done.output


def scored_as(run: Finished, gold: Path, found: Path) -> dict[str, Any]:
    file = found.with_suffix(".json")
    done = CliRunner().invoke(app, ["score", *map(str, (gold, found, "--as", run.folder, "--json", file))])
    assert done.exit_code == 0, done.output
    system: dict[str, Any] = json.loads(file.read_text())["systems"][0]
    return system


def test_modifiers_of_given_mentions_are_those_of_the_run(learnt: Finished, tmp_path: Path) -> None:
    for site in ("north", "south"):
        notes = (learnt.folder.parent / "notes" / site / "notes.jsonl").read_text().splitlines()
        tested = (json.loads(line) for line in notes if '"split": "test"' in line)
        write_lines(tmp_path / "test" / site / "notes.jsonl", tested)
    asked = (tmp_path / "test", "--input-format", "jsonl", "--format", "jsonl", "--keep-mentions")
    assert "ner_f1" not in predicted(learnt, *asked, "--out", tmp_path / "found")
    gold, found = (read(tmp_path / side, "jsonl") for side in ("test", "found"))
    assert [each.spans for each in found] == [each.spans for each in gold]
    scores = scores_of(match_relations(*(list(map(triples_of, side)) for side in (gold, found))), [], "re_")
    expected = learnt.summary["metrics"]["global"]
    assert scores.items() <= expected.items()
    assert scores["re_lenient_f1"] > 0.0
    # Mentions are scored apart from modifiers, under the types of the run.
    predicted(learnt, *asked[:-1], "--out", tmp_path / "whole")
    for out, what, prefix in (("whole", "mentions", "ner_"), ("found", "relations", "re_")):
        own = scored_as(learnt, tmp_path / "test", tmp_path / out)[what]["scores"]
        assert own.items() <= {name.removeprefix(prefix): each for name, each in expected.items()}.items()
        assert own["lenient_f1"] > 0.0


@pytest.mark.slow
def test_modifiers_are_asked_for_where_there_are_mentions(
    learnt: Finished, run_tiny: Any, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("Denies fever.", encoding="utf-8")
    done = predict(learnt, tmp_path / "note.txt", "--keep-mentions")
    assert_refused(done.exception, ConfigurationError, "not_supported", at="--input-format")
    data = write_corpus(tmp_path / "notes", {"north": True})
    only = run_tiny(*EXTRACT, data, "task.tasks=[re]", "federation.rounds=0", out="only")
    done = predict(only, tmp_path / "note.txt")
    assert_refused(done.exception, ConfigurationError, "not_supported", at="--input-format")
    mentions = run_tiny(*EXTRACT, data, "task.tasks=[ner]", "federation.rounds=0", out="mentions")
    done = predict(mentions, tmp_path / "note.txt", "--keep-mentions")
    assert_refused(done.exception, ConfigurationError, "not_supported", at="--keep-mentions")
    predicted(mentions, tmp_path / "note.txt", "--format", "i2b2", "--out", tmp_path / "i2b2")
    assert (tmp_path / "i2b2" / "note.con").is_file()  # which has no place for modifiers
    notes = (tmp_path / "notes", "--input-format", "jsonl")
    done = predict(only, *notes, "--format", "i2b2")
    values = ["extract", "brat, jsonl", "'i2b2'"]
    assert_refused(done.exception, ConfigurationError, "not_supported", at="--format", values=values)


def test_documents_of_the_server_without_any_instruction_are_told(run_tiny: Any, tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "notes", {"north": True, "south": True}, copies=4)
    asked = ("task.tasks=[re]", "task.modifiers={drug: [frequency]}", "data.split.server=1", "seed=1")
    with refused(ConfigurationError, "not_enough_data", at="data.split.server", values=["extract"]):
        run_tiny(*EXTRACT, data, *PLUS, *asked)


def test_a_model_that_knows_its_sentences_finds_everything_in_runs_and_predictions(
    learnt: Finished, tmp_path: Path
) -> None:
    scores = learnt.summary["metrics"]["global"]
    assert scores["f1"] == scores["ner_f1"] == scores["re_f1"] == 1.0
    assert scores["unaligned_left_out"] == scores["unfinished_left_out"] == 0.0
    (tmp_path / "one.txt").write_text("Denies fever.\nSevere chest pain.", encoding="utf-8")
    predicted(learnt, tmp_path / "one.txt", "--out", tmp_path / "found")
    (found,) = read(tmp_path / "found", "brat")
    assert [(span.label, found.text[span.start : span.end]) for span in found.spans] == [
        ("negation", "Denies"), ("problem", "fever"), ("severity", "Severe"), ("problem", "chest pain"),
    ]  # fmt: skip
    assert len(found.relations) == 2


@pytest.mark.slow
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
    checked = check_settings(read_source(None, [*TINY, *settings]))
    divided = divide(checked.settings, checked.task)
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
    assert (uneven.task.mentions, uneven.task.modifiers) == (whole.task.mentions, whole.task.modifiers)
    assert all(document.lacks_relations for document in uneven.server)
    for name, own in uneven.clients.items():
        assert all(document.lacks_relations for document in own.train)
        assert own.test == whole.clients[name].test
        assert any(document.relations for document in own.test)


def test_sites_that_are_no_clients_have_no_name_in_what_is_handed_on(run_tiny: Any, tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "notes", {"st-marys": True, "st-lukes": True})
    dealt = ("partition={by: iid, clients: 2}", "task.mentions_only=[st-marys]", "federation.rounds=0")
    run = run_tiny(*EXTRACT, data, *dealt)
    export(open_result(run.folder), tmp_path / "out", licence=None, language=None, with_names=False)
    assert "st-marys" in (run.folder / "config.yaml").read_text(encoding="utf-8")
    assert "st-marys" not in (tmp_path / "out" / "fedstrata.json").read_text(encoding="utf-8")


def test_a_client_without_anything_to_learn_is_told_before_anything_starts(
    run_tiny: Any, tmp_path: Path
) -> None:
    data = write_corpus(tmp_path / "notes", {"both": True, "mentions": False})
    with refused(ConfigurationError, "nothing_to_learn", at="task.tasks", values=["mentions"]):
        run_tiny(*EXTRACT, data, "task.tasks=[re]")


@pytest.mark.slow
def test_a_resumed_run_may_leave_open_again_what_it_found(run_tiny: Any, tmp_path: Path) -> None:
    """Types that are found in the data, and a template's file; not what gives something else now."""
    data, template = write_corpus(tmp_path / "notes", {"north": True}), tmp_path / "ner.txt"
    template.write_text("Mark: {input}\n", encoding="utf-8")
    own = f"task.templates={{ner: {template}}}"
    run_tiny(*EXTRACT, data, own, "task.tasks=[ner]", "federation.rounds=1")
    open_again = ("task.mentions=auto", "task.modifiers=auto", own)
    run_tiny(*open_again, "federation.rounds=2", resume=True)
    template.write_text("Find: {input}\n", encoding="utf-8")
    with refused(ConfigurationError, "changed", at="task.templates.ner", values=["ner.txt"]):
        run_tiny(*open_again, "federation.rounds=3", resume=True)
    run_tiny(*EXTRACT, data, "task.mentions=[problem]", "federation.rounds=1", out="fewer")
    with refused(ConfigurationError, "changed", at="task.mentions", values=["[drug, problem]", "[problem"]):
        run_tiny("task.mentions=auto", "federation.rounds=2", out="fewer", resume=True)


def test_what_cannot_be_extracted_is_told_before_anything_starts(run_tiny: Any, tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "notes", {"north": False, "south": False})
    with refused(ConfigurationError, "nothing_to_learn", at="task.modifiers"):
        run_tiny(*EXTRACT, data)
    names = ["extract", "lora", "bottleneck"]
    with refused(ConfigurationError, "not_supported", at="adapter.kind", values=names):
        run_tiny(*EXTRACT, data, "task.tasks=[ner]", "adapter={kind: prefix}")
    with refused(ConfigurationError, "not_supported", at="model.tokenizer"):
        run_tiny(*EXTRACT, data, "task.tasks=[ner]", "model.tokenizer={train: words}")
