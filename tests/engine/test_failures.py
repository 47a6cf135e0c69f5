"""Clients that fail or drop out: the round goes on with the others, or ends cleanly."""

from __future__ import annotations

import gc
import resource
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import binom
from support import TINY, Finished, RunTiny, assert_same_tensors, finished

from fedstrata.cli.display import Display
from fedstrata.core.errors import ClientsLostError, ConfigurationError, FrameError, Problem, TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.sources import read_source
from fedstrata.core.types import ClientInfo, Message, Plan, State, Update
from fedstrata.engine.checkpoint import Checkpoints, ClientStore
from fedstrata.engine.failures import Attendance, drop_outs, is_client_failure, release_memory
from fedstrata.engine.folder import open_run
from fedstrata.engine.rounds import Run
from fedstrata.engine.setup import prepare

LOCAL_HEAD = "method={name: layer_skipping, top: 1, head: local}"


def silent(event: str, facts: Any) -> None:
    """Listens to nothing."""


def with_failures(
    folder: Path,
    fail: Callable[[int, str], None],
    *overrides: str,
    listen: Callable[[str, Any], None] = silent,
    seen: list[tuple[str, Update]] | None = None,
) -> Run:
    """A tiny run whose clients call `fail(round, client)` once they have trained and kept their tensors."""
    experiment = prepare(read_source(None, [*TINY, *overrides]))
    turns: list[str] = []

    class Failing(type(experiment.method)):
        def train(self, plan: Plan, client, rng: Seed) -> Update:
            turns.append(client.id)
            update = super().train(plan, client, rng)
            fail(turns.count(client.id), client.id)
            if seen is not None:
                kept = {name: tensor.clone() for name, tensor in update.tensors.items()}
                seen.append((client.id, replace(update, tensors=kept)))
            return update

    object.__setattr__(experiment, "method", Failing(experiment.method.settings))
    folder.mkdir(exist_ok=True)
    return Run(experiment, folder, listen)


def diverge(*where: tuple[int, str]) -> Callable[[int, str], None]:
    """Fails as training that diverges does, for these clients in these of their turns."""

    def fail(turn: int, client: str) -> None:
        if (turn, client) in where:
            raise TrainingError(f"client {client}: diverged")

    return fail


def test_a_round_goes_on_without_a_client_that_failed(tmp_path: Path) -> None:
    seen: list[tuple[str, Update]] = []
    overrides = ["federation.min_clients=2", "federation.rounds=1"]
    opened = with_failures(tmp_path / "run", diverge((1, "site-2")), *overrides, seen=seen)
    run = finished(opened.folder, opened.execute())
    assert [client for client, _ in seen] == ["site-1", "site-3"]
    total = sum(update.weight for _, update in seen)
    for name, tensor in run.state.tensors.items():  # the mean over those who delivered, by their n_k
        mean = sum(update.weight / total * update.tensors[name].double() for _, update in seen)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)
    (event,) = run.of("client_failed")
    assert (event["round"], event["client"], event["error"]) == (1, "site-2", "TrainingError")
    assert event["message"] == "client site-2: diverged"
    (round_,) = run.of("round")
    assert (round_["failed"], round_["abandoned"]) == (["site-2"], False)
    assert round_["exchanges"]["site-2"] == {"bytes_up": 0, "bytes_down": event["bytes_down"]}
    assert event["bytes_down"] > 0
    losses = {client: (update.values["loss"], update.weight) for client, update in seen}
    assert round_["loss"] == pytest.approx(sum(loss * weight for loss, weight in losses.values()) / total)
    assert run.summary["failures"] == {"clients": {"site-2": 1}, "abandoned_rounds": 0}
    sent = run.summary["communication"]
    assert sent["bytes_up_per_client_round"] == sent["bytes_up"] / 2
    assert set(run.summary["metrics"]["clients"]) == {"site-1", "site-2", "site-3"}


def test_what_a_failed_client_kept_is_discarded(tmp_path: Path) -> None:
    """Site 2 writes its head in both rounds and then fails in the second: the first head counts."""
    overrides = [LOCAL_HEAD, "federation.min_clients=1"]
    opened = with_failures(tmp_path / "run", diverge((2, "site-2"), (1, "site-3")), *overrides)
    opened.execute()
    stores = sorted(str(path.relative_to(opened.folder)) for path in opened.folder.rglob("store-*"))
    assert stores == [
        "clients/site-1/store-00001.safetensors",
        "clients/site-1/store-00002.safetensors",
        "clients/site-2/store-00001.safetensors",
        "clients/site-3/store-00002.safetensors",
    ]


def test_too_few_clients_stop_the_run_and_it_can_go_on(run_tiny: RunTiny, tmp_path: Path) -> None:
    """A file stands where a client's folder belongs: the operating system's own error."""
    whole = run_tiny(LOCAL_HEAD, "federation.rounds=3", out="whole")
    source = read_source(None, [*TINY, LOCAL_HEAD, "federation.rounds=3"])
    obstacle = tmp_path / "broken/clients/site-2"

    def listen(event: str, facts: Any) -> None:
        if event == "round" and facts["round"] == 1:
            obstacle.rename(tmp_path / "aside")
            obstacle.write_text("")

    with pytest.raises(ClientsLostError) as stopped:
        open_run(source, tmp_path / "broken", listen, resume=False).execute()
    message = str(stopped.value)
    assert "round 2: 1 of 3 clients lost" in message
    assert f"site-2: FileExistsError: File exists: {obstacle}" in message
    assert f"fedstrata run --resume --out {tmp_path / 'broken'}" in message
    assert "federation.min_clients=2" in message
    assert isinstance(stopped.value.__cause__, FileExistsError)
    obstacle.unlink()
    (tmp_path / "aside").rename(obstacle)
    resumed = run_tiny(out="broken", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert resumed.summary["metrics"] == whole.summary["metrics"]
    assert resumed.summary["communication"] == whole.summary["communication"]
    assert resumed.summary["failures"] == {"clients": {}, "abandoned_rounds": 0}


def test_a_stopped_run_can_go_on_with_fewer_clients(run_tiny: RunTiny, tmp_path: Path) -> None:
    fail = diverge((1, "site-1"))
    opened = with_failures(tmp_path / "run", fail, "federation.rounds=1")
    (opened.folder / "config.yaml").write_text((run_tiny(out="plain").folder / "config.yaml").read_text())
    with pytest.raises(ClientsLostError):
        opened.execute()
    assert run_tiny("federation.min_clients=2", resume=True).summary["rounds"] == 2


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """No file may grow beyond this many bytes: writing fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_store_that_does_not_fit_on_the_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    source = read_source(None, [*TINY, "method={name: local_only}", "federation.min_clients=2"])
    leftovers: list[Path] = []
    limits: list[Any] = []

    def listen(event: str, facts: Any) -> None:
        if event == "client_progress" and (facts["round"], facts["client"]) == (1, "site-2") and not limits:
            limits.append(file_size_limit(100_000))  # the whole tiny model has half a megabyte
            limits[0].__enter__()
        if event == "client_failed":
            limits[0].__exit__(None, None, None)
            leftovers.extend((tmp_path / "run" / "clients" / "site-2").iterdir())

    opened = open_run(source, tmp_path / "run", listen, resume=False)
    run = finished(opened.folder, opened.execute())
    assert [event["error"] for event in run.of("client_failed")] == ["OSError"]
    assert run.of("client_failed")[0]["message"] is None
    assert [event["failed"] for event in run.of("round")] == [["site-2"], []]
    assert not leftovers


@pytest.mark.parametrize("error", [KeyError("a"), TypeError(), RuntimeError("shape"), KeyboardInterrupt()])
def test_a_bug_or_an_interruption_is_no_clients_failure(tmp_path: Path, error: BaseException) -> None:
    def fail(turn: int, client: str) -> None:
        raise error

    opened = with_failures(tmp_path / "run", fail, "federation.min_clients=1")
    with pytest.raises(type(error)):
        opened.execute()


def test_which_errors_are_a_clients_own() -> None:
    try:
        torch.empty(2**60)
    except RuntimeError as error:
        assert is_client_failure(error)  # torch has no class of its own for this on the CPU
    for error in (TrainingError(), FrameError(), TimeoutError(), MemoryError(), torch.OutOfMemoryError()):
        assert is_client_failure(error)
    for error in (ConfigurationError([Problem("a", "b")]), RuntimeError("CUDA error"), ValueError()):
        assert not is_client_failure(error)


def test_a_client_out_of_memory_leaves_its_memory_to_the_next(tmp_path: Path) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    gone: list[bool] = []

    def exhaust(turn: int, client: str) -> None:
        if client == "site-1":
            activations = torch.zeros(1000)
            held.append(weakref.ref(activations))
            cycle = [activations]
            cycle.append(cycle)  # type: ignore[arg-type]
            torch.empty(2**60)
        else:
            gone.append(held[-1]() is None)

    gc.disable()  # so that nothing but the engine frees the cycle
    try:
        with_failures(tmp_path / "run", exhaust, "federation.min_clients=2", "federation.rounds=1").execute()
    finally:
        gc.enable()
    assert gone == [True, True]


def test_frames_of_every_linked_error_are_cleared() -> None:
    held = []

    def inner() -> None:
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        raise ValueError

    def outer() -> None:
        try:
            inner()
        except ValueError as error:
            raise OSError from error

    try:
        outer()
    except OSError as error:
        assert held[0]() is not None
        release_memory(error)
        assert held[0]() is None


def test_a_client_that_is_lost_is_not_asked_again_in_the_round(tmp_path: Path) -> None:
    experiment = prepare(read_source(None, [*TINY, "federation.min_clients=2", "federation.rounds=1"]))
    calls: list[tuple[str, str]] = []

    class TwoCalls(type(experiment.method)):
        def probe(self, plan: Plan, client, rng: Seed) -> Update:
            calls.append(("probe", client.id))
            if client.id == "site-3":
                raise TrainingError("diverged")
            return Update()

        def train(self, plan: Plan, client, rng: Seed) -> Update:
            calls.append(("train", client.id))
            return super().train(plan, client, rng)

        def round(self, state: State, cohort, rng: Seed) -> State:
            asked: list[ClientInfo] = []
            probed = [info.id for info, _ in cohort.each("probe", lambda info: asked.append(info) or Plan())]
            assert len(asked) == 3
            assert probed == ["site-1", "site-2"]
            return super().round(state, cohort, rng)

    object.__setattr__(experiment, "method", TwoCalls(experiment.method.settings))
    Run(experiment, tmp_path, silent).execute()
    assert [client for handler, client in calls if handler == "train"] == ["site-1", "site-2"]


# ---- simulated drop-out --------------------------------------------------------------------------------
def test_drop_outs_get_the_plan_and_send_nothing(run_tiny: RunTiny) -> None:
    run = run_tiny("federation.dropout=0.4", "federation.rounds=6", "federation.evaluate_every=6")
    lost = {(event["round"], event["client"]) for event in run.of("client_failed")}
    worked = {(event["round"], event["client"]) for event in run.of("client")}
    assert lost
    assert not lost & worked
    assert {event["error"] for event in run.of("client_failed")} == {"DroppedOut"}
    for event in run.of("round"):
        for client, sent in event["exchanges"].items():
            assert sent["bytes_down"] > 0
            assert (sent["bytes_up"] == 0) == (client in event["failed"])
    whole = len(lost) + len(worked)
    assert whole == 6 * 3
    assert sum(run.summary["failures"]["clients"].values()) == len(lost)


def test_a_round_that_drop_outs_leave_too_small_changes_nothing(tmp_path: Path) -> None:
    overrides = ["federation.dropout=0.3", "federation.min_clients=3", "federation.rounds=8"]
    source = read_source(None, [*TINY, *overrides, "federation.evaluate_every=8"])
    states: dict[int, State] = {}

    def listen(event: str, facts: Any) -> None:
        if event == "round":
            states[facts["round"]] = Checkpoints(tmp_path / "run/checkpoints").load(facts["round"])[1]

    opened = open_run(source, tmp_path / "run", listen, resume=False)
    run = finished(opened.folder, opened.execute())
    abandoned = [event["round"] for event in run.of("round") if event["abandoned"]]
    assert 0 < len(abandoned) < 8
    assert run.summary["failures"]["abandoned_rounds"] == len(abandoned)
    for event in run.of("round"):
        number = event["round"]
        up = sum(sent["bytes_up"] for sent in event["exchanges"].values())
        assert (up == 0) == (number in abandoned) == bool(event["failed"])
        assert all(sent["bytes_down"] > 0 for sent in event["exchanges"].values())
        if number in abandoned:
            assert event["loss"] is None
            if number > 1:
                assert_same_tensors(states[number].tensors, states[number - 1].tensors)
        elif number > 1:
            assert any(
                not torch.equal(tensor, states[number - 1].tensors[name])
                for name, tensor in states[number].tensors.items()
            )


def test_every_client_may_drop_out_of_a_round(run_tiny: RunTiny) -> None:
    run = run_tiny("federation.dropout=0.999999", "federation.rounds=1")
    assert run.of("round")[0]["failed"] == ["site-1", "site-2", "site-3"]
    assert run.of("round")[0]["abandoned"]
    sent = run.summary["communication"]
    assert sent["bytes_up"] == 0 < sent["bytes_down"]
    assert sent["bytes_up_per_client_round"] == 0
    assert run.summary["time"]["seconds_per_client_round"] is None


def test_pooled_training_loses_nobody(run_tiny: RunTiny) -> None:
    overrides = ["method={name: centralized}", "federation.rounds=1"]
    plain = run_tiny(*overrides, out="plain")
    run = run_tiny(*overrides, "federation.dropout=0.9", "federation.min_clients=3", out="with")
    assert_same_tensors(plain.state.tensors, run.state.tensors)
    assert run.summary["failures"] == {"clients": None, "abandoned_rounds": None}


@given(
    st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=20, unique=True),
    st.floats(0, 0.99),
    st.floats(0, 0.99),
    st.integers(0, 9),
)
def test_a_greater_chance_takes_more_clients_and_each_by_itself(
    clients: list[str], one: float, other: float, seed: int
) -> None:
    low, high = sorted((one, other))
    assert drop_outs(clients, low, Seed(seed)) <= drop_outs(clients, high, Seed(seed))
    assert not drop_outs(clients, 0.0, Seed(seed))
    alone = {client for client in clients if drop_outs([client], high, Seed(seed))}
    assert drop_outs(clients, high, Seed(seed)) == alone


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.8])
def test_clients_drop_out_as_often_as_asked(chance: float) -> None:
    clients = [f"site-{number}" for number in range(100)]
    rounds = [drop_outs(clients, chance, Seed(0).child("round", number, "dropout")) for number in range(50)]
    low, high = binom.interval(0.9999, 5000, chance)
    assert low <= sum(map(len, rounds)) <= high
    low, high = binom.interval(1 - 1e-6, 50, chance)
    assert all(low <= sum(client in lost for lost in rounds) <= high for client in clients)


@given(
    st.integers(1, 12),
    st.sets(st.integers(0, 11)),
    st.sets(st.integers(0, 11)),
    st.none() | st.integers(1, 12),
)
def test_attendance_counts_those_who_are_left(
    clients: int, dropped: set[int], failed: set[int], least: int | None
) -> None:
    names = [str(number) for number in range(clients)]
    gone = frozenset(names[number] for number in dropped if number < clients)
    attendance = Attendance(names, gone, least)
    attendance.lost.update({names[number]: "OSError" for number in failed if number < clients})
    left = [name for name in names if name not in gone and name not in attendance.lost]
    if least is None:
        assert attendance.suffices == (bool(left) and set(attendance.lost) <= gone)
    else:
        assert attendance.suffices == (len(left) >= least)


# ---- what a user sees ----------------------------------------------------------------------------------
def test_more_clients_than_a_round_has_are_a_problem_of_the_configuration() -> None:
    overrides = [
        "federation.sample=0.67",
        "federation.min_clients=3",
        "method={name: layer_skipping, top: 9}",
    ]
    with pytest.raises(ConfigurationError) as refused:
        prepare(read_source(None, [*TINY, *overrides]))
    text = str(refused.value)
    assert "federation.min_clients: must be at most 2" in text
    assert "3 clients, of which federation.sample takes 0.67" in text
    assert "the command line" in text
    assert "method.top" in text  # with every other problem


@pytest.mark.parametrize("value", ["1.0", "-0.1", "high"])
def test_a_chance_outside_its_range_is_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"federation\.dropout"):
        prepare(read_source(None, [*TINY, f"federation.dropout={value}"]))


def shown(run: Callable[[Display], Any]) -> str:
    out = StringIO()
    run(Display(Console(file=out, width=200)))
    return out.getvalue()


def test_failures_are_shown(tmp_path: Path) -> None:
    overrides = ["federation.min_clients=1", "federation.rounds=2"]

    def run(display: Display) -> None:
        opened = with_failures(tmp_path / "run", diverge((1, "site-3")), *overrides, listen=display)
        display.show(opened.execute(), opened.folder, personal=False)

    text = shown(run)
    assert "site-3 failed: TrainingError: client site-3: diverged" in text
    assert "1 of 3 clients lost" in text
    assert "1 updates were lost, 1 of them by site-3; 0 of 2 rounds were abandoned" in text


def test_drop_outs_are_counted_and_not_shown_one_by_one(tmp_path: Path) -> None:
    def run(display: Display) -> None:
        source = read_source(None, [*TINY, "federation.dropout=0.5", "federation.min_clients=3"])
        opened = open_run(source, tmp_path / "run", display, resume=False)
        display.show(opened.execute(), opened.folder, personal=False)

    text = shown(run)
    assert "DroppedOut" not in text
    assert "of 3 clients lost, abandoned" in text
    assert "rounds were abandoned" in text


def test_a_run_that_loses_nobody_says_nothing_of_it(tmp_path: Path) -> None:
    def run(display: Display) -> None:
        opened = open_run(read_source(None, TINY), tmp_path / "run", display, resume=False)
        display.show(opened.execute(), opened.folder, personal=False)

    assert "lost" not in shown(run)


def test_a_version_that_is_discarded_gives_way_to_the_one_before(tmp_path: Path) -> None:
    for number in (1, 2):
        ClientStore(tmp_path, number).write(Message({"head": torch.full((2,), float(number))}))
    ClientStore(tmp_path, 2).discard()
    ClientStore(tmp_path, 2).discard()  # nothing there any more
    assert ClientStore(tmp_path, 3).read().tensors["head"][0] == 1.0
    ClientStore(tmp_path / "nobody", 1).discard()


def rounds_of(run: Finished) -> list[dict[str, Any]]:
    ignored = {"time", "seconds", "train_seconds", "evaluate_seconds"}
    return [{key: value for key, value in event.items() if key not in ignored} for event in run.of("round")]


def test_with_nobody_lost_the_settings_change_nothing(run_tiny: RunTiny) -> None:
    plain = run_tiny(LOCAL_HEAD, out="plain")
    guarded = run_tiny(LOCAL_HEAD, "federation={rounds: 2, min_clients: 2, dropout: 0.0}", out="guarded")
    assert_same_tensors(plain.state.tensors, guarded.state.tensors)
    assert rounds_of(plain) == rounds_of(guarded)
    assert plain.summary["metrics"] == guarded.summary["metrics"]


def test_resumed_is_uninterrupted_with_drop_outs(run_tiny: RunTiny, tmp_path: Path) -> None:
    overrides = [LOCAL_HEAD, "federation.rounds=5", "federation.dropout=0.3", "federation.min_clients=2"]
    whole = run_tiny(*overrides, out="whole")
    assert any(event["failed"] and not event["abandoned"] for event in whole.of("round"))

    def listen(event: str, facts: Any) -> None:
        if event == "client" and facts["round"] > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_run(read_source(None, [*TINY, *overrides]), tmp_path / "broken", listen, resume=False).execute()
    resumed = run_tiny(out="broken", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert rounds_of(resumed) == rounds_of(whole)
    assert resumed.summary["metrics"] == whole.summary["metrics"]
    assert resumed.summary["failures"] == whole.summary["failures"]
