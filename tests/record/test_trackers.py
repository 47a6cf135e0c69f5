"""What trackers wrote is read back with their own readers."""

from __future__ import annotations

import json
import shutil
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Finished, RunTiny, opened, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.record.trackers import require_trackers, round_values, score_values

Points = dict[str, list[tuple[int, float]]]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def tensorboard_points(folder: Path) -> Points:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found: Points = {}
    for file in sorted((folder / "tensorboard").iterdir()):
        events = accumulator.EventAccumulator(str(file)).Reload()
        for name in events.Tags()["scalars"]:
            found.setdefault(name, []).extend((item.step, item.value) for item in events.Scalars(name))
    return found


def mlflow_run(folder: Path) -> tuple[Any, Any]:
    """Its client, and the one run that a folder has of it."""
    client = pytest.importorskip("mlflow").MlflowClient((folder / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("fedstrata").experiment_id])
    return client, run


def mlflow_points(folder: Path) -> Points:
    client, run = mlflow_run(folder)
    return {
        name: [(item.step, item.value) for item in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def wandb_frames(data: bytes) -> Iterator[bytes]:
    """Yields the records of a transaction log: LevelDB's log format after a header of 7 bytes.

    A block of 32 KiB holds fragments: checksum (4 bytes), length (2), kind (1: whole, 2: first, 3: middle,
    4: last), content. A block's last bytes are padding where no fragment's header fits.
    """
    place, pieces = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        pieces += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:
            yield pieces
            pieces = b""


def wandb_records(folder: Path) -> Iterator[Any]:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for data in wandb_frames(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            yield record


def wandb_points(folder: Path) -> Points:
    found: Points = {}
    for record in wandb_records(folder):
        items = {item.nested_key[0] if item.nested_key else item.key: item for item in record.history.item}
        for name, item in items.items():
            if not name.startswith("_"):
                found.setdefault(name, []).append((record.history.step.num, json.loads(item.value_json)))
        for item in record.summary.update:
            name = item.nested_key[0] if item.nested_key else item.key
            if name.startswith("test/"):
                found.setdefault(name, []).append((-1, json.loads(item.value_json)))
    return found


READERS = {"tensorboard": tensorboard_points, "mlflow": mlflow_points, "wandb": wandb_points}


def assert_holds(points: Points, run: Finished) -> None:
    """Every round is there once, with the record's numbers, and the final scores."""
    rounds = run.of("round")
    assert [step for step, _ in points["loss"]] == [event["round"] for event in rounds]
    assert [value for _, value in points["loss"]] == pytest.approx([event["loss"] for event in rounds])
    for name in ("f1", "recall", "f1/problem"):
        recorded = [event["global"][name] for event in rounds]
        shown = [value for _, value in points["validation/" + name.replace("/", ".")]]
        assert shown == pytest.approx(recorded)
    sent = run.summary["communication"]
    total = sent["bytes_up"] + sent["bytes_down"]
    assert points["bytes/sent"][-1][1] == pytest.approx(total)
    assert sum(value for _, value in points["bytes/up"]) == pytest.approx(sent["bytes_up"])
    assert points["test/f1"][-1][1] == pytest.approx(run.summary["metrics"]["global"]["f1"])
    lowest = min(scores["f1"] for scores in run.summary["metrics"]["clients"].values())
    assert points["test/lowest_client.f1"][-1][1] == pytest.approx(lowest)


@pytest.mark.parametrize("name", READERS)
def test_a_tracker_holds_what_the_record_holds_also_after_a_resumption(run_tiny: RunTiny, name: str) -> None:
    pytest.importorskip(name)
    run = run_tiny(f"report_to=[{name}]", "federation.rounds=1")
    assert_holds(READERS[name](run.folder), run)
    longer = run_tiny("federation.rounds=2", resume=True)
    points = READERS[name](run.folder)
    if name != "wandb":  # its final scores are a summary without steps
        assert Counter(step for step, _ in points["test/f1"]) == {1: 1, 2: 1}
    assert_holds(points, longer)


def test_a_tracker_that_is_added_late_gets_the_rounds_it_missed(
    run_tiny: RunTiny, run_once: RunTiny, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    shutil.copytree(run_once("federation.rounds=1").folder, tmp_path / "run")
    run = run_tiny("report_to=[tensorboard]", "federation.rounds=2", resume=True)
    assert_holds(tensorboard_points(run.folder), run)


def test_mlflow_knows_the_settings_and_how_the_run_ended(run_tiny: RunTiny) -> None:
    pytest.importorskip("mlflow")
    _, found = mlflow_run(run_tiny("report_to=[mlflow]", "federation.rounds=1").folder)
    assert found.info.status == "FINISHED"
    assert found.data.params["method.name"] == "layer_skipping"
    assert found.data.params["training.learning_rate"] == "0.005"


def test_wandb_gets_no_more_than_settings_and_numbers(run_tiny: RunTiny) -> None:
    pytest.importorskip("wandb")
    run = run_tiny("report_to=[wandb]", "federation.rounds=1")
    kinds = {record.WhichOneof("record_type") for record in wandb_records(run.folder)}
    assert not kinds & {"output", "output_raw", "stats", "artifact"}
    assert not any(
        record.run.git.remote_url or socket.gethostname() in str(record.run.host)
        for record in wandb_records(run.folder)
    )
    assert {path.name for path in run.folder.glob("wandb/*/files/**/*") if path.is_file()} <= {"config.yaml"}


def test_a_tracker_that_fails_is_given_up_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")

    class Failing:
        id = "1"

        def __init__(self, *_: Any) -> None: ...

        def log(self, values: Any, step: int) -> None:
            if step == 1:
                raise OSError("disk full")

        def close(self, scores: Any, step: int) -> None:
            raise AssertionError

    monkeypatch.setattr("fedstrata.record.trackers.TRACKERS", {"tensorboard": Failing})
    said: list[str] = []

    def listen(event: str, facts: Any) -> None:
        said.append(facts.get("message", event))

    run = opened(tmp_path / "run", "report_to=[tensorboard]", listen=listen)
    assert run.execute()["rounds"] == 2
    (message,) = [message for message in said if "tensorboard" in message]
    assert message.endswith(" tensorboard: OSError: disk full")


def test_a_failed_run_ends_its_trackers(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    folder = tmp_path / "run"

    def listen(event: str, facts: Any) -> None:
        if event == "client":
            raise MemoryError

    with pytest.raises(MemoryError):
        opened(folder, "report_to=[mlflow]", listen=listen).execute()
    assert mlflow_run(folder)[1].info.status == "FAILED"


def test_a_missing_package_is_a_problem_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.record.trackers.find_spec", lambda name: None)
    values = ["pip install 'fedstrata[wandb,mlflow]'"]
    with refused(ConfigurationError, "not_installed", at="report_to", values=values):
        require_trackers(["wandb", "mlflow", "wandb"])
    require_trackers([])


def test_an_unknown_tracker_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    with refused(ConfigurationError, "unknown_name", at="report_to.0", values=["'tensorboard'", "'comet'"]):
        opened(tmp_path / "run", "report_to=[comet]")


def test_names_have_one_slash_and_clients_only_their_extremes() -> None:
    event = {
        "loss": None, "seconds": 3.0, "train_seconds": 2.0,
        "exchanges": {"a": {"bytes_up": 1, "bytes_down": 2}, "b": {"bytes_up": 10, "bytes_down": 20}},
        "global": None, "mean_client": {"f1/a/b": 0.5, "f1": 0.5},
        "clients": {"St. Mary": {"f1": 0.2}, "b": {"f1": 0.8}, "c": None},
        "trained": {"validation": {"mean": {"f1": 0.4}, "clients": {}}, "test": {"mean": None}},
    }  # fmt: skip
    assert round_values(event, "f1") == {
        "validation/mean_client.f1.a.b": 0.5, "validation/mean_client.f1": 0.5,
        "validation/lowest_client.f1": 0.2, "validation/highest_client.f1": 0.8,
        "validation/trained.f1": 0.4,
        "bytes/up": 11, "bytes/down": 22, "seconds/round": 3.0, "seconds/train": 2.0,
    }  # fmt: skip
    assert round_values(event | {"serve_seconds": 0.5}, "f1")["seconds/serve"] == 0.5
    assert score_values({"global": {"f1": 0.1}}, "f1", "test") == {"test/f1": 0.1}
