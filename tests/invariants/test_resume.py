"""A resumed run is the uninterrupted one, to the last bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from support import TINY, Call, RunTiny, assert_same_tensors, executed, finished, problems_of, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.check import check_settings
from fedstrata.engine.run_folder import SETTINGS, open_run, require_free_folder, resumable, write_settings

METHODS = [
    "{name: layer_skipping, top: 1, head: local}",
    "{name: fedtlu, portion: 0.34, selection: sketched}",
]
"""They keep the most unlike things between two rounds: of clients, and of the server."""
OTHER_METHODS = [
    "{name: fl_llama, mode: client_batch, average_ends: never, noise: {scale: 0.1}}",
    "{name: droppeft}",
    "{name: fedavg}",
    "{name: local_only}",
    "{name: fedtlu, portion: {portions: [0.67, 0.34], patience: 1, threshold: 0.9}}",
    "{name: hetlora, prune: {penalty: 1.0}}",
    "{name: fedadaopt}",
    "{name: fedpeptao}",
    "{name: fedmedlora_plus, cap: 0.6}",
    "{name: fedsa_lora}",
    "{name: flora, ranks: [2, 5]}",
]


BRIEF = ("federation.floors=false", "federation.evaluate_every=2")


class StoppedError(Exception):
    """Stands for whatever ends a process."""


def interrupt(folder: Path, overrides: list[str], *, after: int, resume: bool = False) -> None:
    """Runs until a client of the round after `after` has finished, then breaks off."""

    def listen(event: str, facts) -> None:
        if event == "client" and facts["round"] == after + 1:
            raise StoppedError

    source = resumable(folder, None, []) if resume else read_source(None, [*TINY, *overrides])
    with pytest.raises(StoppedError):
        open_run(source, folder, listen, resume=resume).execute(resume=resume)


@pytest.mark.parametrize(
    "method", [*METHODS, *(pytest.param(method, marks=pytest.mark.slow) for method in OTHER_METHODS)]
)
def test_resumed_is_uninterrupted(run_tiny: RunTiny, run_once: RunTiny, tmp_path: Path, method: str) -> None:
    """Stopped twice: before a round is committed, and after two of them."""
    share = 1.0 if "fedadaopt" in method else 0.67  # which needs three clients in a round
    server = ["data.split.server=2"] if "plus" in method else []
    overrides = [f"method={method}", "federation.rounds=3", f"federation.sample={share}", *server, *BRIEF]
    whole = run_once(*overrides)
    interrupt(tmp_path / "broken", overrides, after=0)
    interrupt(tmp_path / "broken", overrides, after=2, resume=True)
    resumed = run_tiny(out="broken", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert resumed.summary["metrics"] == whole.summary["metrics"]
    assert resumed.summary["communication"] == whole.summary["communication"]
    assert resumed.rounds_but_for_machine()[-2:] == whole.rounds_but_for_machine()[-2:]


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(signal.SIGKILL, id="kill -9", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, id="Ctrl-C", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_process_loses_at_most_the_round_under_way(
    run_tiny: RunTiny, call: Call, tmp_path: Path, ending: signal.Signals
) -> None:
    overrides = ["federation.rounds=4", "threads=1"]
    whole = run_tiny(*overrides, out="whole")
    folder, empty = tmp_path / "stopped", tmp_path / "empty.yaml"
    empty.write_text("{}\n")  # nothing but defaults, in place of the demo
    command = [sys.executable, "-m", "fedstrata", "run", str(empty), *TINY, *overrides, "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("round 2:"):
                process.send_signal(ending)
                break
        rest = process.stdout.read()
    if ending == signal.SIGINT:
        assert process.returncode == 130
        assert f"fedstrata run --resume --out {folder}" in " ".join(rest.split())
    else:
        assert process.returncode == -signal.SIGKILL
        with (folder / "record.jsonl").open("a") as record:
            record.write('{"event": "round", "round": 3, "los')  # what a crash of the machine may leave
    done = call("run", "--resume", "--out", folder)
    assert done.status == 0
    assert "after round" in done.out
    resumed = finished(folder, json.loads((folder / "summary.json").read_text()))
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert resumed.summary["metrics"] == whole.summary["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "damaged"),  # cut short, or with another byte
    [(b"", "clients/site-2"), (b"\0", "checkpoints")],
)
def test_a_newest_file_that_is_damaged_costs_one_round(
    run_tiny: RunTiny, run_once: RunTiny, damaged: str, change: bytes
) -> None:
    whole = run_once("federation.rounds=3", "method={name: fedper}")
    broken = run_tiny("federation.rounds=2", "method={name: fedper}", out="broken")
    newest = max((broken.folder / damaged).glob("*-00002.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1] + change)
    resumed = run_tiny("federation.rounds=3", out="broken", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    for store in whole.folder.glob("clients/*/store-*"):
        assert store.read_bytes() == (resumed.folder / store.relative_to(whole.folder)).read_bytes()


def test_a_setting_that_would_change_committed_rounds_is_refused(run_once: RunTiny) -> None:
    with refused(ConfigurationError, "changed", at="training.learning_rate") as caught:
        resumable(run_once("federation.rounds=1").folder, None, ["training.learning_rate=0.1"])
    (problem,) = caught.value.problems
    assert problem.origin == "the command line"


def test_each_setting_that_differs_is_said_once_as_yaml_has_it(tmp_path: Path) -> None:
    """And so is what may change."""
    write_settings(check_settings(read_source(None, TINY)).settings, tmp_path / SETTINGS)
    private = (
        "privacy={mechanism: local, unit: document, units: {site-1: 12, site-2: 12, site-3: 12}, sigma: 1, "
        "expected_batch: 4, delta: 0.001, steps: 2, budget: {path: b.db, epsilon: 8, delta: 0.001}}"
    )
    with pytest.raises(ConfigurationError) as caught:
        resumable(tmp_path, None, [private, "task.whole_words=false", "task.types=[drug]"])
    assert {code for _, code in problems_of(caught.value)} == {"changed"}
    told = {problem.path: problem.message.partition(", the run has ") for problem in caught.value.problems}
    assert told["privacy.units"][0] == "is {site-1: 12, site-2: 12, site-3: 12}"
    assert told["privacy.units"][2].startswith("null;")
    assert told["privacy.budget"][0].startswith("is {delta: 0.001, ")
    assert told["privacy.budget"][2].startswith("null;")
    assert told["task.whole_words"][0] == "is false"
    assert told["task.whole_words"][2].startswith("true;")
    assert str(caught.value).count("method.aggregation.memory_gigabytes") == 1
    assert "None" not in str(caught.value)


def test_fewer_rounds_than_are_committed_are_refused(run_once: RunTiny) -> None:
    with refused(ConfigurationError, "out_of_range", at="federation.rounds", values=["least 2"]):
        executed(run_once().folder, ["federation.rounds=1"], resume=True)


def test_a_run_goes_on_from_another_folder_and_not_with_other_documents(
    run_tiny: RunTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(generate(seed=1, sites=2, notes=8), tmp_path / "notes", "jsonl")
    monkeypatch.chdir(tmp_path)
    data = "data={format: jsonl, path: notes, types: [problem, test, treatment, drug]}"
    run_tiny(data, "federation.rounds=1", *BRIEF)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_tiny("federation.rounds=2", resume=True).summary["rounds"] == 2
    file = next((tmp_path / "notes").rglob("*.jsonl"))
    file.write_text("\n".join(file.read_text().splitlines()[1:]) + "\n")
    with refused(ConfigurationError, "changed", at="data"):
        run_tiny("federation.rounds=3", resume=True)


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with refused(ConfigurationError, "not_found", at="--out"):
        resumable(tmp_path, None, [])
    (tmp_path / "tokenizer").mkdir()  # as a killed run could once leave it
    with refused(ConfigurationError, "exists", at="--out") as caught:
        require_free_folder(tmp_path)
    assert "--resume" not in str(caught.value)


@pytest.mark.parametrize("name", ["write_settings", "new_folder", "write_documents", "Run"])
def test_a_run_that_was_killed_before_it_began_goes_on_or_begins_anew(
    run_tiny: RunTiny, tmp_path: Path, name: str
) -> None:
    """Whatever it was about to write: its settings, its tokenizer, its documents, its record."""
    rebuilt = ("model.tokenizer={train: words, vocabulary: 60}", "data.synthetic.notes=6", *BRIEF)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(f"fedstrata.engine.run_folder.{name}", Mock(side_effect=KeyboardInterrupt))
        run_tiny(*rebuilt, "federation.rounds=1")
    (tmp_path / "run" / ".config.yaml.1234.tmp").touch()  # and what it was writing
    try:
        done = run_tiny(*rebuilt, "federation.rounds=1")
    except ConfigurationError as error:
        assert problems_of(error) == [("--out", "exists")]
        assert "--resume" in str(error)
        done = run_tiny(resume=True)
    assert done.summary["rounds"] == 1
