"""Each kind of bad input: one clear message, the right exit status, no traceback, and never the text of a
note."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import TINY, Call, Told
from told import assert_told
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.cli.options import configuration
from fedstrata.engine.check import check_settings

QUOTED = "Zebrafinch"
"""Stands in every note; no message may contain it."""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Two sites as JSONL, nine short notes each."""
    folder = tmp_path / "notes"
    for site in ("north", "south"):
        (folder / site).mkdir(parents=True)
        lines = [
            {
                "id": f"{number}",
                "text": f"{QUOTED} has fever {number}.",
                "spans": [{"start": 15, "end": 20, "label": "problem"}],
            }
            for number in range(9)
        ]
        (folder / site / "notes.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


@pytest.fixture
def fedstrata(call: Call) -> Call:
    """Calls a command, which must not quote a text."""

    def run(*arguments: str) -> Told:
        told = call(*arguments)
        assert QUOTED not in told.out + told.err
        assert "Traceback" not in told.err
        return told

    return run


def config(tmp_path: Path, text: str = "{}\n") -> str:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    return str(file)


def jsonl(notes: Path) -> list[str]:
    return [*TINY[3:], "data.format=jsonl", f"data.path={notes}"]


@pytest.mark.parametrize(
    ("overrides", "path", "code", "values"),
    [
        (["data={format: brat, path: nowhere}"], "data.path", "not_found", ["nowhere"]),
        (["training.epoch=3"], "training.epoch", "unknown_key", ["'epochs'"]),
        (["method={name: layer_skipping, top: 9}"], "method.top", "out_of_range", ["3", "not 9"]),
        (["method={name: layer_skipping, top: 0}"], "method.top", "out_of_range", ["not 0"]),
        (["method={name: layer_skipping, top: 1.5}"], "method.top", "wrong_type", ["not 1.5"]),
        (
            ["method.name=fedmagic"],
            "method.name",
            "unknown_name",
            ["fedmagic", "layer_skipping", "fedavg"],
        ),
        (["method={name: fedavg, top: 2}"], "method.top", "unknown_key", []),
        (["partition={by: iid, clients: 0}"], "partition.clients", "out_of_range", ["not 0"]),
        (["partition={by: iid, clients: 100}"], "partition.clients", "not_enough_data", ["100"]),
        (["data.synthetic.sites=0"], "data.synthetic.sites", "out_of_range", ["not 0"]),
        (["federation.sample=0.0"], "federation.sample", "out_of_range", ["not 0"]),
        (
            ["model.init=pretrained", "model.config={}", "model.name=./absent"],
            "model.name",
            "wrong_form",
            ["absent"],
        ),
        (["model.config={model_type: lama}"], "model.config.model_type", "unknown_name", ["lama"]),
        (["model.config={model_type: {}}"], "model.config.model_type", "unknown_name", ["{}"]),
        (["federation.metric=2020-02-30"], "federation.metric", "unknown_name", ["'2020-02-30'"]),
        (["seed=2020-13-45"], "seed", "wrong_type", ["whole number", "'2020-13-45'"]),
        (["data.types=[problem, gene]"], "data.types", "not_found", ["gene"]),
        (["device=cuda:7"], "device", "not_found", ["cuda:7"]),
        (
            ["task.name=mt"],
            "task.name",
            "unknown_name",
            ["ner, classify, lm, extract, relations, cloze, summarize", "package.module:Class", "'mt'"],
        ),
        (["task.name=lm"], "task.stride", "unknown_key", ["ner or classify"]),
        (["task={name: classify, treshold: 0.3}"], "task.treshold", "unknown_key", ["'threshold'"]),
        (["task.threshold=0.3"], "task.threshold", "unknown_key", ["classify"]),
    ],
)
def test_a_wrong_configuration_is_named_and_exits_2(
    fedstrata, tmp_path: Path, overrides: list[str], path: str, code: str, values: list[str]
) -> None:
    status, _, err = fedstrata("run", config(tmp_path), *TINY, *overrides)
    assert status == 2
    assert_told(err, code, at=path, values=values, origin="the command line")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(
    ("command", "option", "allowed"),
    [(["score", "gold", "found"], "--level", "0.5 to 0.999"), (["plan", "absent.yaml"], "--seconds", "0 to")],
)
def test_an_option_that_is_no_number_is_named_with_what_is_allowed(
    command: list[str], option: str, allowed: str, value: str
) -> None:
    done = CliRunner().invoke(app, [*command, option, value], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert re.search(rf"'{option}': .* {allowed}.*, not {value}", done.output)


def test_problems_of_different_sections_come_together(fedstrata, tmp_path: Path) -> None:
    overrides = [
        "training.epochs=0",
        "method={name: layer_skipping, top: 9}",
        "data.types=[gene]",
        "nonsense=1",
    ]
    status, _, err = fedstrata("run", config(tmp_path), *TINY, *overrides)
    assert status == 2
    assert "4 problems" in err
    for part in ("training.epochs", "method.top", "data.types", "nonsense"):
        assert part in err


def test_a_missing_configuration_exits_2(fedstrata) -> None:
    status, _, err = fedstrata("run", "absent.yaml")
    assert status == 2
    assert_told(err, "not_found", values=["absent.yaml"])


def test_two_configurations_exit_2(fedstrata) -> None:
    status, _, err = fedstrata("run", "one.yaml", "two.yaml")
    assert status == 2
    assert_told(err, "conflict", values=["one.yaml, two.yaml"])


def test_a_hub_id_that_cannot_be_reached(fedstrata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    overrides = [
        "model.init=pretrained",
        "model.config={}",
        "model.tokenizer=null",
        "model.name=acme/absent-model",
    ]
    status, _, err = fedstrata("run", config(tmp_path), *TINY, *overrides)
    assert status == 2
    values = ["'acme/absent-model'"]
    assert_told(err, "offline", at="model.name", values=values, origin="the command line")
    assert len(err.splitlines()) == 2


def test_one_mistake_is_one_problem_in_plain_words(fedstrata, tmp_path: Path) -> None:
    status, _, err = fedstrata("run", config(tmp_path), *TINY, "method={name: layer_skipping, top: 1.5}")
    assert status == 2
    assert len(err.splitlines()) == 2
    values = ["whole number", "1", "'auto'", "mapping", "1.5"]
    assert_told(err, "wrong_type", at="method.top", values=values, origin="the command line")


def test_a_client_whose_documents_are_blank(fedstrata, tmp_path: Path, notes: Path) -> None:
    blank = [json.dumps({"id": str(number), "text": " \n", "spans": []}) for number in range(9)]
    (notes / "south" / "notes.jsonl").write_text("\n".join(blank))
    status, _, err = fedstrata("run", config(tmp_path), *jsonl(notes))
    assert status == 2
    assert_told(err, "not_enough_data", values=["south"])


def test_windows_longer_than_the_model_knows(fedstrata, tmp_path: Path) -> None:
    status, _, err = fedstrata("run", config(tmp_path), *TINY, "task.max_length=4096")
    assert status == 2
    assert_told(err, "out_of_range", at="task.max_length", values=[2048, 4096])


def test_weights_that_would_train_in_bfloat16(fedstrata, tmp_path: Path) -> None:
    status, _, err = fedstrata("run", config(tmp_path), *TINY, "model.dtype=bfloat16")
    assert status == 2
    assert_told(err, "conflict", at="model.dtype", values=["training.precision"])


def test_another_method_over_a_file_says_how(fedstrata, tmp_path: Path) -> None:
    file = config(tmp_path, "method:\n  name: layer_skipping\n  top: 2\n")
    status, _, err = fedstrata("run", file, *TINY, "method.name=fedavg")
    assert status == 2
    assert_told(err, "unknown_key", at="method.top", values=["method={name: fedavg}"])


def test_a_merge_key_is_no_trouble(fedstrata, tmp_path: Path) -> None:
    file = config(tmp_path, "training: &t {epochs: 0}\nmodel: {<<: *t}\n")
    status, _, err = fedstrata("run", file, *TINY)
    assert status == 2
    assert_told(err, "out_of_range", at="training.epochs")
    assert_told(err, "unknown_key", at="model.epochs")


def test_a_folder_that_cannot_be_made_exits_1(fedstrata, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = fedstrata("run", config(tmp_path), *TINY, "--out", str(tmp_path / "file" / "run"))
    assert status == 1
    assert "file" in err


def test_no_note_text_in_what_a_run_leaves_besides_the_models(fedstrata, tmp_path: Path, notes: Path) -> None:
    assert fedstrata("run", config(tmp_path), *jsonl(notes), "federation.rounds=1", "--out", "run")[0] == 0
    for path in (tmp_path / "run").iterdir():
        if path.is_file():
            assert QUOTED not in path.read_text()


def test_a_client_without_data(fedstrata, tmp_path: Path, notes: Path) -> None:
    (notes / "south" / "notes.jsonl").write_text("")
    (notes / "north" / "train.jsonl").write_text((notes / "north" / "notes.jsonl").read_text())
    (notes / "north" / "notes.jsonl").unlink()
    (notes / "south" / "notes.jsonl").unlink()
    (notes / "south" / "test.jsonl").write_text((notes / "north" / "train.jsonl").read_text())
    status, _, err = fedstrata("run", config(tmp_path), *jsonl(notes))
    assert status == 2
    assert_told(err, "not_enough_data", values=["south", "train"])


def test_a_label_unseen_in_training(fedstrata, tmp_path: Path, notes: Path) -> None:
    for site in ("north", "south"):
        (notes / site / "notes.jsonl").rename(notes / site / "train.jsonl")
    text = {
        "id": "odd",
        "text": f"{QUOTED} took aspirin",
        "spans": [{"start": 16, "end": 23, "label": "drug"}],
    }
    (notes / "north" / "test.jsonl").write_text(json.dumps(text) + "\n")
    status, _, err = fedstrata("run", config(tmp_path), *jsonl(notes))
    assert status == 2
    assert_told(err, "unknown_name", at="data.types", values=["'drug'", "odd", "problem"])


def test_a_malformed_document_is_named_without_its_text(fedstrata, tmp_path: Path, notes: Path) -> None:
    with (notes / "north" / "notes.jsonl").open("a") as file:
        file.write(
            json.dumps({"id": "x", "text": QUOTED, "spans": [{"start": 0, "end": 99, "label": "problem"}]})
            + "\n"
        )
    status, _, err = fedstrata("run", config(tmp_path), *jsonl(notes))
    assert status == 2
    assert_told(err, "out_of_range", at="data.path", values=["notes.jsonl", "line 10"])


def test_a_loss_that_is_not_a_number_exits_1_and_is_recorded(fedstrata, tmp_path: Path) -> None:
    overrides = ["training.optimizer=sgd", "training.learning_rate=1e38", "training.clip_norm=null"]
    status, _, err = fedstrata("run", config(tmp_path), *TINY, *overrides, "--out", "run")
    assert status == 1
    assert_told(err, "clients_lost")
    assert re.search(r"^  - site-\d: TrainingError: .*training\.learning_rate is 1e\+38", err, re.MULTILINE)
    last = json.loads((tmp_path / "run" / "record.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "failed"


def test_a_checkpoint_cut_short_exits_1_and_is_named(fedstrata, tmp_path: Path) -> None:
    arguments = ("run", config(tmp_path), *TINY, "federation.rounds=1", "--out", "run")
    assert fedstrata(*arguments)[0] == 0
    checkpoint = tmp_path / "run" / "checkpoints" / "round-00001.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    status, _, err = fedstrata("run", "--resume", "--out", "run", "federation.rounds=2")
    assert status == 1
    assert_told(err, "unreadable", values=["round-00001.safetensors", "100 bytes"])


def test_an_output_folder_in_use_exits_2(fedstrata, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    status, _, err = fedstrata("run", config(tmp_path), *TINY, "--out", "taken")
    assert status == 2
    assert_told(err, "exists", at="--out", values=["taken"])
    assert "--resume" not in err
    (tmp_path / "taken" / "config.yaml").write_text("{}")
    err = fedstrata("run", config(tmp_path), *TINY, "--out", "taken").err
    assert_told(err, "exists", at="--out", values=["--resume"])


def test_resume_needs_a_run(fedstrata, tmp_path: Path) -> None:
    assert fedstrata("run", "--resume")[0] == 2
    status, _, err = fedstrata("run", "--resume", "--out", str(tmp_path))
    assert status == 2
    assert_told(err, "not_found", values=[tmp_path])


def test_a_bug_shows_its_type_but_not_its_text(
    fedstrata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError(QUOTED)

    monkeypatch.setattr("fedstrata.data.divide.split", broken)
    status, _, err = fedstrata("run", config(tmp_path), *TINY)
    assert status == 1
    assert "KeyError" in err
    assert "--debug" in err


@pytest.mark.parametrize("overrides", [["data.format=jsonl", "data.path=notes"], ["task.name=classify"]])
def test_what_the_demo_says_of_its_own_notes_is_not_said_of_others(overrides: list[str]) -> None:
    """Without a configuration the demo's is taken, whose types other notes do not have."""
    checked = check_settings(configuration(None, overrides))
    assert not checked.problems
    assert checked.settings.data.types is None
    assert checked.settings.federation.rounds == 10
    named = configuration(None, [*overrides, "data.types=[gene]", "data.synthetic.notes=4"]).values["data"]
    assert named["types"] == ["gene"]
    assert named["synthetic"]["notes"] == 4


def test_the_demo_keeps_its_own_settings() -> None:
    data = configuration(None, ["data.synthetic.notes=4"]).values["data"]
    assert data["types"] == ["problem", "test", "treatment", "drug"]
    assert data["synthetic"] == {"sites": 4, "notes": 4}


@pytest.mark.parametrize(
    "said",
    [
        {"format": "brat", "path": "notes", "types": ["drug"]},
        {"synthetic": {"sites": 3}, "types": ["drug"]},
        {"format": "brat", "path": "notes"},
    ],
)
def test_a_section_that_is_given_as_a_whole_is_taken_as_it_is(said: dict[str, object]) -> None:
    assert configuration(None, [f"data={json.dumps(said)}"]).values["data"] == said
    assert configuration(None, [f"data={json.dumps(said)}", "task.name=classify"]).values["data"] == said


def test_a_section_within_one_is_taken_as_it_is() -> None:
    data = configuration(None, ["data.synthetic={sites: 3}", "data.format=brat"]).values["data"]
    assert data == {"format": "brat", "synthetic": {"sites": 3}}
