"""Each kind of bad input: one clear message, the right exit status, no traceback, and never the text of a
note."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from scored import QUOTED
from support import TINY, Call, RunTiny, Told
from told import assert_told
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.cli.options import configuration
from fedstrata.engine.check import check_settings


def line(text: str, start: int, end: int, label: str, name: str) -> str:
    """A document of one mention."""
    return json.dumps({"id": name, "text": text, "spans": [{"start": start, "end": end, "label": label}]})


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Two sites as JSONL, nine short notes each."""
    folder = tmp_path / "notes"
    for site in ("north", "south"):
        (folder / site).mkdir(parents=True)
        lines = [line(f"{QUOTED} has fever {n}.", 15, 20, "problem", f"{n}") for n in range(9)]
        (folder / site / "notes.jsonl").write_text("\n".join(lines) + "\n")
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


def test_problems_of_all_sections_come_together_and_exit_2(fedstrata: Call, tmp_path: Path) -> None:
    """Each by its setting, with where that was set."""
    file = config(tmp_path, "training: &t {epochs: 0}\nfederation: {<<: *t}\n")  # a merge key is no trouble
    wrong = {
        "training.epoch=3": ("training.epoch", "unknown_key", ["'epochs'"]),
        "method={name: layer_skipping, top: 1.5}": ("method.top", "wrong_type", ["'auto'", "1.5"]),
        "federation.sample=0.0": ("federation.sample", "out_of_range", ["not 0"]),
        "seed=2020-13-45": ("seed", "wrong_type", ["whole number", "'2020-13-45'"]),
        "nonsense=1": ("nonsense", "unknown_key", []),
    }
    for command in (("run",), ("plan", "--seconds", "0")):
        told = fedstrata(*command, file, *TINY, *wrong)
        assert told.status == 2
        for path, code, values in wrong.values():
            assert_told(told.err, code, at=path, values=values, origin="the command line")
        for path, code in (("training.epochs", "out_of_range"), ("federation.epochs", "unknown_key")):
            assert_told(told.err, code, at=path)
    assert [path.name for path in tmp_path.iterdir()] == ["site.yaml"]


@pytest.mark.parametrize(
    ("override", "path", "code", "values"),
    [
        ("data={format: brat, path: nowhere}", "data.path", "not_found", ["nowhere"]),
        ("method={name: layer_skipping, top: 0}", "method.top", "out_of_range", ["not 0"]),
        ("method.name=fedmagic", "method.name", "unknown_name", ["fedmagic", "layer_skipping", "fedavg"]),
        ("method.name=fedavg", "method.top", "unknown_key", ["method={name: fedavg}"]),
        ("federation.metric=2020-02-30", "federation.metric", "unknown_name", ["'2020-02-30'"]),
        ("partition={by: iid, clients: 0}", "partition.clients", "out_of_range", ["not 0"]),
        ("task.max_length=4096", "task.max_length", "out_of_range", [2048, 4096]),
        ("model.dtype=bfloat16", "model.dtype", "conflict", ["training.precision"]),
    ],
)
def test_one_mistake_is_one_problem(
    fedstrata: Call, tmp_path: Path, override: str, path: str, code: str, values: list[object]
) -> None:
    file = config(tmp_path, "method: {name: layer_skipping, top: 2}\n")
    told = fedstrata("run", file, *TINY, override)
    assert told.status == 2
    assert len(told.err.splitlines()) == 2
    assert_told(told.err, code, at=path, values=values)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("command", "option", "allowed"),
    [
        ("score gold found", "--level", "0.5 to 0.999"),
        ("plan absent.yaml", "--seconds", "0 to 2000000"),
        ("split generate --client a --out x", "--temperature", "0 to 1000000"),
        *(
            ("serve", f"--{name}", r"[\d.]+ to \d+")
            for name in ("patience", "deadline", "reconnect", "keepalive", "delay", "cache-megabytes")
        ),
    ],
)
def test_an_option_that_is_no_number_is_named_with_what_is_allowed(
    command: str, option: str, allowed: str
) -> None:
    for value in ("nan", "inf", "-1", "1e+300"):
        done = CliRunner().invoke(app, [*command.split(), option, value], env={"COLUMNS": "200"})
        assert done.exit_code == 2
        assert re.search(rf"'{option}': .* {allowed}.*, not {re.escape(value)}", done.output)


def test_a_configuration_that_is_missing_or_one_of_two_exits_2(fedstrata: Call) -> None:
    missing, two = fedstrata("run", "absent.yaml"), fedstrata("run", "one.yaml", "two.yaml")
    assert missing.status == two.status == 2
    assert_told(missing.err, "not_found", values=["absent.yaml"])
    assert_told(two.err, "conflict", values=["one.yaml, two.yaml"])


def test_a_folder_that_cannot_be_made_exits_1(fedstrata: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = fedstrata("run", config(tmp_path), *TINY, "--out", str(tmp_path / "file" / "run"))
    assert status == 1
    assert "file" in err


def test_no_note_text_in_what_a_run_leaves_besides_the_models(
    fedstrata: Call, tmp_path: Path, notes: Path
) -> None:
    assert fedstrata("run", config(tmp_path), *jsonl(notes), "federation.rounds=1", "--out", "run")[0] == 0
    for path in (tmp_path / "run").iterdir():
        if path.is_file():
            assert QUOTED not in path.read_text()


def test_notes_that_cannot_be_used_are_named_without_their_text(
    fedstrata: Call, tmp_path: Path, notes: Path
) -> None:
    def refused(code: str, path: str, values: list[object]) -> None:
        status, _, err = fedstrata("run", config(tmp_path), *jsonl(notes))
        assert status == 2
        assert_told(err, code, at=path, values=values)

    north, south = (notes / site / "notes.jsonl" for site in ("north", "south"))
    sound = north.read_text()
    north.write_text(sound + line(QUOTED, 0, 99, "problem", "x") + "\n")
    refused("out_of_range", "data.path", ["notes.jsonl", "line 10"])
    north.write_text(sound)
    south.write_text("\n".join(json.dumps({"id": str(n), "text": " \n", "spans": []}) for n in range(9)))
    refused("not_enough_data", "", ["south"])  # blank notes
    north.rename(north.with_name("train.jsonl"))
    south.unlink()
    south.with_name("test.jsonl").write_text(sound)
    refused("not_enough_data", "", ["south", "train"])  # nothing to train on
    south.with_name("train.jsonl").write_text(sound)
    south.with_name("test.jsonl").write_text(line(f"{QUOTED} took aspirin", 16, 23, "drug", "odd") + "\n")
    refused("unknown_name", "data.types", ["'drug'", "odd", "problem"])


def test_a_loss_that_is_not_a_number_exits_1_and_is_recorded(fedstrata: Call, tmp_path: Path) -> None:
    overrides = ["training.optimizer=sgd", "training.learning_rate=1e38", "training.clip_norm=null"]
    status, _, err = fedstrata("run", config(tmp_path), *TINY, *overrides, "--out", "run")
    assert status == 1
    assert_told(err, "clients_lost")
    assert re.search(r"^  - site-\d: TrainingError: .*training\.learning_rate is 1e\+38", err, re.MULTILINE)
    last = json.loads((tmp_path / "run" / "record.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "failed"


def test_a_checkpoint_cut_short_exits_1_and_is_named(
    fedstrata: Call, tmp_path: Path, run_once: RunTiny
) -> None:
    shutil.copytree(run_once("federation.rounds=1").folder, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "round-00001.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    status, _, err = fedstrata("run", "--resume", "--out", "run", "federation.rounds=2")
    assert status == 1
    assert_told(err, "unreadable", values=["round-00001.safetensors", "100 bytes"])


def test_an_output_folder_in_use_and_a_resumed_one_without_a_run_exit_2(
    fedstrata: Call, tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    status, _, err = fedstrata("run", config(tmp_path), *TINY, "--out", "taken")
    assert status == 2
    assert_told(err, "exists", at="--out", values=["taken"])
    assert "--resume" not in err
    assert fedstrata("run", "--resume").status == 2
    status, _, err = fedstrata("run", "--resume", "--out", "taken")
    assert status == 2
    assert_told(err, "not_found", values=["taken"])
    (tmp_path / "taken" / "config.yaml").write_text("{}")
    err = fedstrata("run", config(tmp_path), *TINY, "--out", "taken").err
    assert_told(err, "exists", at="--out", values=["--resume"])


def test_a_bug_shows_its_type_but_not_its_text(
    fedstrata: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_the_demo_keeps_its_own_settings_and_a_section_that_is_given_as_a_whole_is_taken_as_it_is() -> None:
    data = configuration(None, ["data.synthetic.notes=4"]).values["data"]
    assert data["types"] == ["problem", "test", "treatment", "drug"]
    assert data["synthetic"] == {"sites": 4, "notes": 4}
    for said in (
        {"format": "brat", "path": "notes", "types": ["drug"]},
        {"synthetic": {"sites": 3}, "types": ["drug"]},
        {"format": "brat", "path": "notes"},
    ):
        for task in ((), ("task.name=classify",)):
            assert configuration(None, [f"data={json.dumps(said)}", *task]).values["data"] == said
    data = configuration(None, ["data.synthetic={sites: 3}", "data.format=brat"]).values["data"]
    assert data == {"format": "brat", "synthetic": {"sites": 3}}
