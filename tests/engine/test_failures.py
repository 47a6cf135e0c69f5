"""Clients that fail or drop out: the round goes on with the others, or ends cleanly."""

from __future__ import annotations

import gc
import re
import resource
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from support import TINY, RunTiny, assert_same_tensors, finished, problems_of, refused, silent, watch_training

from fedstrata.client.failures import is_client_failure, release_memory
from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.client import Client
from fedstrata.core.errors import ClientsLostError, ConfigurationError, FrameError, Problem, TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import ClientInfo, Plan, State, Update
from fedstrata.display.run import Display
from fedstrata.engine import cohort
from fedstrata.engine.book import Attendance, Book
from fedstrata.engine.cohort import RoundCohort
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run import Run
from fedstrata.wire import frame

LOCAL_HEAD = "method={name: layer_skipping, top: 1, head: local}"
FEW = ("data.synthetic.notes=6", "federation.floors=false")


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

    def after(plan: Plan, client: Client, update: Update) -> None:
        turns.append(client.id)
        fail(turns.count(client.id), client.id)
        if seen is not None:
            kept = {name: tensor.clone() for name, tensor in update.tensors.items()}
            seen.append((client.id, replace(update, tensors=kept)))

    watch_training(experiment, after)
    folder.mkdir(exist_ok=True)
    return Run(experiment, folder, listen, LocalEngine)


def diverge(*where: tuple[int, str]) -> Callable[[int, str], None]:
    """Fails as training that diverges does, for these clients in these of their turns."""

    def fail(turn: int, client: str) -> None:
        if (turn, client) in where:
            raise TrainingError(f"client {client}: diverged")

    return fail


def test_a_run_that_cannot_be_made_leaves_its_record_to_the_next(tmp_path: Path) -> None:
    experiment = prepare(read_source(None, list(TINY)))
    closed: list[Path] = []

    class Engine(LocalEngine):
        def clients(self) -> Any:
            raise OSError(12, "Cannot allocate memory")

        def close(self) -> None:
            closed.append(tmp_path)

    def none(*args: Any) -> LocalEngine:
        raise OSError(12, "Cannot allocate memory")

    for engine_of in (none, Engine):
        with pytest.raises(OSError, match="allocate"):
            Run(experiment, tmp_path, silent, engine_of)
    assert closed == [tmp_path]
    run = Run(experiment, tmp_path, silent, LocalEngine)
    with pytest.raises(ConfigurationError):
        Run(experiment, tmp_path, silent, LocalEngine)
    run._close()


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
    assert {own["client"]: (own["loss"], own["examples"]) for own in run.of("client")} == losses
    assert round_["loss"] == pytest.approx(sum(loss * weight for loss, weight in losses.values()) / total)
    assert run.summary["failures"] == {"clients": {"site-2": 1}, "abandoned_rounds": 0}
    sent = run.summary["communication"]
    assert sent["bytes_up_per_client_round"] == sent["bytes_up"] / 2
    assert set(run.summary["metrics"]["clients"]) == {"site-1", "site-2", "site-3"}


def test_what_a_failed_client_kept_is_discarded(tmp_path: Path) -> None:
    """Site 2 writes its head in both rounds and then fails in the second: the first head counts."""
    overrides = [LOCAL_HEAD, "federation.min_clients=1", *FEW]
    opened = with_failures(tmp_path / "run", diverge((2, "site-2"), (1, "site-3")), *overrides)
    opened.execute()
    stores = sorted(str(path.relative_to(opened.folder)) for path in opened.folder.rglob("store-*"))
    assert stores == [
        "clients/site-1/store-00001.safetensors",
        "clients/site-1/store-00002.safetensors",
        "clients/site-2/store-00001.safetensors",
        "clients/site-3/store-00002.safetensors",
    ]


def test_too_few_clients_stop_the_run_and_it_can_go_on(
    run_tiny: RunTiny, run_once: RunTiny, tmp_path: Path
) -> None:
    """A file stands where a client's folder belongs: the operating system's own error."""
    whole = run_once(LOCAL_HEAD, *FEW)
    obstacle = tmp_path / "broken/clients/site-2"

    def listen(event: str, facts: Any) -> None:
        if event == "round" and facts["round"] == 1:
            obstacle.rename(tmp_path / "aside")
            obstacle.write_text("")

    values = ["round 2", "1 of 3", "site-2", "FileExistsError", obstacle]
    ways_out = [f"--resume --out {tmp_path / 'broken'}", "federation.min_clients=2"]
    with refused(ClientsLostError, "clients_lost", values=values + ways_out) as stopped:
        run_tiny(LOCAL_HEAD, *FEW, out="broken", listen=listen)
    assert isinstance(stopped.value.__cause__, FileExistsError)
    obstacle.unlink()
    (tmp_path / "aside").rename(obstacle)
    resumed = run_tiny(out="broken", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert resumed.summary["metrics"] == whole.summary["metrics"]
    assert resumed.summary["communication"] == whole.summary["communication"]
    assert resumed.summary["failures"] == {"clients": {}, "abandoned_rounds": 0}


def test_a_stopped_run_can_go_on_with_fewer_clients(
    run_tiny: RunTiny, run_once: RunTiny, tmp_path: Path
) -> None:
    opened = with_failures(tmp_path / "run", diverge((1, "site-1")), "federation.rounds=1")
    shutil.copy(run_once("federation.rounds=1").folder / "config.yaml", opened.folder)
    with pytest.raises(ClientsLostError):
        opened.execute()
    assert run_tiny("federation.min_clients=2", resume=True).summary["rounds"] == 1


def test_a_store_that_does_not_fit_on_the_disk_leaves_nothing_half_written(
    run_tiny: RunTiny, tmp_path: Path
) -> None:
    leftovers: list[Path] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def listen(event: str, facts: Any) -> None:
        """Lets no file of a client grow beyond a fifth of the tiny model, as on a full disk."""
        if event == "client_progress" and (facts["round"], facts["client"]) == (1, "site-2"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        if event == "client_failed":
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            leftovers.extend((tmp_path / "run" / "clients" / "site-2").iterdir())

    run = run_tiny("method={name: local_only}", "federation.min_clients=2", *FEW, listen=listen)
    assert [event["error"] for event in run.of("client_failed")] == ["OSError"]
    assert run.of("client_failed")[0]["message"] is None
    assert [event["failed"] for event in run.of("round")] == [["site-2"], []]
    assert not leftovers


@pytest.mark.parametrize("error", [RuntimeError("shape"), KeyboardInterrupt()])
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
    for error in (
        ConfigurationError([Problem("a", "b", code="invalid")]),
        RuntimeError("CUDA error"),
        *(ValueError(), KeyError("a"), TypeError()),
    ):
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
        with_failures(
            tmp_path / "run", exhaust, "federation.min_clients=2", "federation.rounds=1", *FEW
        ).execute()
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
    experiment = prepare(read_source(None, [*TINY, "federation.min_clients=2", "federation.rounds=1", *FEW]))
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

    object.__setattr__(experiment, "method", TwoCalls(**dict(experiment.method)))
    Run(experiment, tmp_path, silent, LocalEngine).execute()
    assert [client for handler, client in calls if handler == "train"] == ["site-1", "site-2"]


def test_more_clients_than_a_round_has_are_a_problem_of_the_configuration() -> None:
    few, values = ("federation.sample=0.67", "federation.min_clients=3"), ["at most 2", "3 clients", "0.67"]
    with refused(ConfigurationError, "out_of_range", at="federation.min_clients", values=values) as caught:
        prepare(read_source(None, [*TINY, *few, "method={name: layer_skipping, top: 9}"]))
    assert ("method.top", "out_of_range") in problems_of(caught.value)  # with every other problem


def test_failures_are_shown(run_tiny: RunTiny, tmp_path: Path) -> None:
    out = StringIO()
    display = Display(Console(file=out, width=200))
    run = run_tiny("federation.rounds=1", *FEW, listen=display)
    display.show(run.summary, run.folder, personal=False)
    assert "lost" not in out.getvalue()
    overrides = ["federation.min_clients=1", "federation.rounds=2", *FEW]
    opened = with_failures(tmp_path / "failing", diverge((1, "site-3")), *overrides, listen=display)
    display.show(opened.execute(), opened.folder, personal=False)
    assert re.search(r"\bsite-3\b.*\bTrainingError\b.*\bsite-3\b", out.getvalue())
    assert re.search(r"\b1 update\b.*\b1\b.*\bsite-3; 0 of 2\b", out.getvalue())


@pytest.mark.parametrize(
    ("pauses", "seconds", "worked"),
    [
        ((10.0, 10.0), (8.0, 9.0), 17.0),  # one after the other, each put into its place by the engine first
        ((10.0, 1.0), (9.0, 9.5), 11.0),  # at once: the second has nearly ended when the first has
        ((3.0, 1.0), (0.0, 2.0), 2.0),  # the first is lost
    ],
)
def test_time_in_which_clients_work_at_once_counts_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pauses: tuple[float, ...],
    seconds: tuple[float, ...],
    worked: float,
) -> None:
    now = 0.0

    def turns(orders: Iterable[Order]) -> Iterator[tuple[Order, Done | Failed]]:
        nonlocal now
        begun = list(orders)
        for order, pause, own in zip(begun, pauses, seconds, strict=True):
            now += pause
            sent = frame.encode(Update({"x": torch.ones(1)}, weight=1.0))
            yield order, Done(sent, own) if own else Failed(TrainingError("lost"))

    monkeypatch.setattr(cohort, "time", SimpleNamespace(perf_counter=lambda: now))
    infos = [ClientInfo("a", 1), ClientInfo("b", 1)]
    book = Book(1, tmp_path, lambda event, facts: None, Attendance(["a", "b"], min_clients=1), "run")
    none: Any = None
    engine: Any = SimpleNamespace(turns=turns)
    round_ = RoundCohort(none, none, engine, infos, none, book)
    for _ in round_.each("train", lambda info: Plan({})):
        now += 100.0  # what the server makes of an update is nobody's work but its own
    assert round_.train_seconds == sum(seconds)
    assert round_.worked_seconds == worked
