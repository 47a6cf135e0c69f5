"""Every engine gives what one process gives: the same tensors to the last bit, scores, bytes and record."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from private_client import JOINT, PRIVATE
from remote_run import RELATIONS, Clients, give_identities, home_of, kept_by, served
from support import TINY, Finished, RunTiny, assert_same_tensors, refused

from fedstrata.client.turn import Order
from fedstrata.core.errors import ClientsLostError, ConfigurationError, FedstrataError
from fedstrata.core.handlers import SCORE
from fedstrata.core.settings.source import read_source
from fedstrata.engine.remote.engine import RemoteEngine
from fedstrata.engine.remote.turns import RemoteTurns
from fedstrata.engine.run_folder import open_run
from fedstrata.privacy.ledger_verification import LEDGER, read_ledger

SLOW_RAY = pytest.param("ray", marks=[pytest.mark.engines, pytest.mark.slow])
ENGINES = ("workers", "remote")
"""All of ours but the local one, which they are held against, and those that need an extra."""
WORKERS = ("workers", SLOW_RAY)
"""Several at once, in processes of this machine or of a cluster."""
SERVED = ("remote", "nvflare")
"""Those whose clients join a run that is served."""
FAST = (
    ("method={name: layer_skipping, top: 1, head: local}", "training.cache=on", "training.epochs=2"),
    ("method={name: fedtlu, portion: 0.34, selection: sketched}", "federation.sample=0.67"),
)
METHODS_OF_RUNS = (
    *FAST,
    ("method={name: droppeft}", "federation.score_clients=true"),
    ("method={name: layer_skipping, top: auto}",),
    ("method={name: fedavg, aggregation: median}", "federation.corrupt={share: 0.3, kind: sign_flip}"),
    ("method={name: hetlora, prune: {penalty: 1.0}}",),
    ("method={name: flora, ranks: [2, 5]}",),
    ("method={name: fedmedlora_plus, cap: 0.6}", "data.split.server=2"),
    ("method={name: fedpeptao}",),
    ("method={name: fedadaopt}",),
    ("method={name: fedsa_lora}", "federation.dropout=0.4", "federation.min_clients=1"),
    ("method={name: droppeft}", "devices={}"),
    ("method={name: droppeft}",),
    ("method={name: fedper}", *PRIVATE, "privacy.scores=summed"),
)
DIVIDED = (
    ("method={name: fl_llama}",),
    ("method={name: fl_llama, mode: client_batch}",),
    ("method={name: fl_llama, mode: hierarchical}",),
)
"""Their clients are at work one after the other but where they are processes of their own."""
SIMULATED = ("corrupt", "dropout", "devices", "score_clients")
"""What only a simulation does."""
SECURE = ("privacy.secure_aggregation=true",)
WEEKLY = [pytest.mark.slow, pytest.mark.weekly]
OF_EXTRA = (pytest.mark.engines, pytest.mark.slow)


def marks_of(engine: str, number: int) -> Collection[pytest.MarkDecorator]:
    """A landing has every run on one of the two engines, and some on both; all are run every week."""
    if engine == "workers" and number == 0:
        return ()
    elsewhere = only_simulated(METHODS_OF_RUNS[number], SIMULATED)
    return [pytest.mark.slow] if elsewhere or number % 2 == (engine == "remote") else WEEKLY


def only_simulated(run: tuple[str, ...], settings: Collection[str]) -> bool:
    return any(setting in " ".join(run[1:]) for setting in settings)


SHARED = "method={name: layer_skipping, top: 1}"
OWN_HEADS = "method={name: layer_skipping, top: 1, head: local}"
ON_RAY = {
    (OWN_HEADS, "training.cache=on", *PRIVATE): False,
    ("method={name: fedper}",): False,
    ("method={name: fedper}", *SECURE): False,
    (OWN_HEADS, "training.cache=on"): True,
    (OWN_HEADS, "training.cache=on", *SECURE): True,
    **dict.fromkeys(METHODS_OF_RUNS, True),
}
"""On a cluster of two nodes, and whether it is slow."""
NVFLARE = (FAST[0], DIVIDED[0], (SHARED, *PRIVATE, "privacy.scores=summed"))
"""Of the runs on NVFlare's federation those that are not slow. The divided method goes with no privacy, and a
secure sum of the other one is below. Documents that a simulation gives its server stay with sites of their
own, so that the numbers are others."""
EVERY = [
    *(
        pytest.param(engine, run, marks=marks_of(engine, number), id=f"{engine}-{run[0]}")
        for engine in ENGINES
        for number, run in enumerate(METHODS_OF_RUNS)
        if engine != "remote" or not only_simulated(run, SIMULATED)
    ),
    *(pytest.param("remote", run, marks=pytest.mark.slow, id=f"remote-{run[0]}") for run in DIVIDED),
    *(
        pytest.param("ray", run, marks=OF_EXTRA[: 1 + slow], id=f"ray-{number}-{run[0]}")
        for number, (run, slow) in enumerate(ON_RAY.items())
    ),
    *(
        pytest.param(
            "nvflare", run, marks=OF_EXTRA[: 1 + (run not in NVFLARE)], id=f"nvflare-{number}-{run[0]}"
        )
        for number, run in enumerate(dict.fromkeys((*NVFLARE, *METHODS_OF_RUNS, *DIVIDED)))
        if not only_simulated(run, (*SIMULATED, "split.server"))
    ),
]


@pytest.fixture(autouse=True, scope="module")
def _nobody_is_left() -> Iterator[None]:
    """No process outlasts the run that started it, but for the server they are forked from."""
    yield
    commands = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended, and nobody has asked how
            commands.append(" ".join(child.cmdline()))
    at_work = [command for command in commands if "fedstrata.engine.workers.turns" not in command]
    assert not [command for command in at_work if "forkserver" in command]


RunBy = Callable[..., Finished]


@pytest.fixture
def run_by(run_tiny: RunTiny, tmp_path: Path, request: pytest.FixtureRequest) -> RunBy:
    def run(engine: str, *overrides: str) -> Finished:
        if engine == "nvflare":
            return request.getfixturevalue("nvflare").run(tmp_path / "served", *overrides)
        if engine == "remote":
            return served(tmp_path / "served", request.getfixturevalue("clients"), *overrides)
        if engine == "ray":
            request.getfixturevalue("ray_nodes")
        workers = {"workers": ["workers=2"], "ray": ["workers=ray"]}.get(engine, [])
        return run_tiny(*overrides, *workers, out="other")

    return run


def assert_same_ledgers(one: Finished, other: Finished, *, served: bool) -> None:
    """The same bytes left every client; a simulation hashes no frame unless a sum has signed its ledger."""
    for client in one.of("round")[0]["exchanges"]:
        paths = [home_of(run, client) / LEDGER for run in (one, other)]
        there = [path for path in paths if path.exists()]  # who always drops out has sent nothing
        if not served:
            assert len(there) in (0, 2)
            assert len({path.read_bytes() for path in there}) <= 1
        apart = {"before", "hash", "number", "run"}
        trained = [
            [
                {key: line[key] for key in line.keys() - apart}
                for line in (read_ledger(path) if path in there else ())
                if line["handler"] != SCORE
            ]
            for path in paths
        ]
        for ours, theirs in zip(*trained, strict=True):
            assert ours == (theirs if ours["frame"] else {**theirs, "frame": None})


SCORES = {"global", "clients", "mean_client", "external", "best"}


def assert_same(
    one: Finished, other: Finished, *, ends_there: bool = False, scores: Collection[str] = SCORES
) -> None:
    """Two runs are the same but for time and memory.

    With `ends_there` clients of one of them have the ends of a divided model already in the first round.
    """
    assert_same_tensors(one.state.tensors, other.state.tensors)
    assert one.state.values == other.state.values
    untold = SCORES - set(scores)

    def told(facts: Mapping[str, Any]) -> Mapping[str, Any]:
        return {key: value for key, value in facts.items() if key not in untold}

    for key in ("trainable_parameters", "failures", *(() if ends_there else ("communication",))):
        assert one.summary[key] == other.summary[key]
    assert told(one.summary["metrics"]) == told(other.summary["metrics"])
    first = int(ends_there)
    rounds = [[told(event) for event in run.rounds_but_for_machine()[first:]] for run in (one, other)]
    for event in (event for own in rounds for event in own if "privacy" in event):
        event["privacy"] = event["privacy"]["clients"]  # how much was clipped is told by no site
    assert rounds[0] == rounds[1]
    clients = [
        [
            {key: event[key] for key in event if key not in {"time", "seconds"}}
            for event in run.of("client")
            if event["round"] > first
        ]
        for run in (one, other)
    ]
    assert clients[0] == clients[1]


@pytest.mark.parametrize(("engine", "overrides"), EVERY)
def test_it_is_the_local_one(
    run_by: RunBy, run_once: RunTiny, engine: str, overrides: tuple[str, ...]
) -> None:
    own = "federation.score_everywhere=false"  # which needs all documents in one place
    local, other = run_once(*overrides, own, "threads=1"), run_by(engine, *overrides, own, "threads=1")
    assert_same(local, other, ends_there=overrides in DIVIDED)
    if SECURE[0] not in overrides:  # whose keys are drawn anew
        assert_same_ledgers(local, other, served=engine in SERVED)
    if engine in ("workers", "ray"):
        assert other.of("run")[0]["workers"] == 2


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_the_sessions_of_its_clients_alone(
    run_tiny: RunTiny, tmp_path: Path
) -> None:
    """Two of six were at it, and five have to be left; the next round has all of them again."""
    sites = ("data.synthetic.sites=6", "privacy.secure_aggregation=true")
    run = run_tiny(*troubled("is killed", tmp_path), *sites, "workers=3")
    first, second = (event["secure_aggregation"] for event in run.of("round"))
    lost = {event["client"]: event["error"] for event in run.of("client_failed")}
    assert lost.pop("site-2") == "WorkerLostError"
    assert list(lost.values()) == ["SessionLost"], "of the other client of that worker"
    assert (first["refused"], second["refused"]) == ("TooFewSites", None)
    assert len(second["survivors"]) == 6


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["remote", pytest.param("nvflare", marks=pytest.mark.engines)])
@pytest.mark.parametrize(
    ("overrides", "scores"),
    [
        ((*SECURE, SHARED, *RELATIONS, "privacy.range=16", "privacy.scores=summed"), True),
        ((*SECURE, OWN_HEADS), False),
        ((*JOINT, SHARED, "privacy.scores=summed"), True),
    ],
    ids=["plain", "personal", "joint"],
)
def test_a_secure_sum_between_processes_is_that_of_a_simulation(
    run_by: RunBy, run_once: RunTiny, tmp_path: Path, engine: str, overrides: tuple[str, ...], scores: bool
) -> None:
    """Scores are the sum of what all have counted, and of a single client there are none."""
    own = ("federation.score_everywhere=false", "threads=1")
    local = run_once(*overrides, *own)
    give_identities(tmp_path / "served")
    remote = run_by(engine, *overrides, *own)
    assert_same(local, remote, scores=())
    told, known = ([run.summary["metrics"], *run.of("round")] for run in (remote, local))
    for theirs, ours in zip(told, known, strict=True):
        assert not any((theirs.get("clients") or {}).values())
        assert theirs.get("mean_client") is None
        summed = theirs.get("global") or {}
        assert summed == (ours["global"] if scores else {})
        assert any(summed.values()) == scores
    assert not remote.of("warning")
    assert not any(event["abandoned"] for event in remote.of("round"))
    for client in local.of("round")[0]["exchanges"]:
        lines = read_ledger(home_of(remote, client) / LEDGER)
        sent = [(line["what"], line["protection"], line["values"].get("tally")) for line in lines]
        assert sum(what == "scores" and "secure" in how for what, how, _ in sent) == 3 * scores
        assert not any(tally and "secure" not in how for _, how, tally in sent)


@pytest.mark.slow
def test_a_resumed_run_may_have_another(run_tiny: RunTiny, run_once: RunTiny) -> None:
    """The threads of a client stay what they were, though nobody says so."""
    run_tiny(OWN_HEADS, "federation.rounds=1", "workers=2", out="part")
    resumed = run_tiny("workers=1", "federation.rounds=2", out="part", resume=True)
    whole = run_once(OWN_HEADS, "threads=1")
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert whole.summary["metrics"] == resumed.summary["metrics"]
    (began,), (went_on,) = resumed.of("run"), resumed.of("resumed")
    assert (began["workers"], went_on["workers"]) == (2, 1)


@pytest.mark.parametrize("overrides", ["workers=1", pytest.param("workers=2", marks=pytest.mark.slow)])
def test_a_client_whose_states_cannot_be_stored_is_told_of_once(run_once: RunTiny, overrides: str) -> None:
    """The two of a round are shared out anew each time."""
    cache = ("training.cache=on", "training.cache_gigabytes=1e-9", SHARED)
    federation = "federation={sample: 0.67, rounds: 4, evaluate_every: 4, floors: false}"
    run = run_once(*cache, federation, "data.synthetic.notes=6", "threads=1", overrides)
    sampled = {tuple(event["exchanges"]) for event in run.of("round")}
    assert len(sampled) > 1
    assert sorted(event["client"] for event in run.of("cache")) == ["site-1", "site-2", "site-3"]


BRIEF = ("data.synthetic.notes=6", "federation.floors=false", "threads=1")


def troubled(trouble: str, marks: Path) -> tuple[str, ...]:
    method = f"method={{name: 'troubled:Troubled', client: site-2, trouble: {trouble}, marks: {marks}}}"
    return (method, "federation.min_clients=1", *BRIEF)


@pytest.mark.parametrize("engine", [*ENGINES, SLOW_RAY])
def test_a_client_that_fails_is_lost(run_by: RunBy, run_tiny: RunTiny, tmp_path: Path, engine: str) -> None:
    overrides = troubled("fails", tmp_path)
    local = run_tiny(*overrides, out="local")
    other = run_by(engine, *overrides)
    assert_same(local, other)
    assert other.summary["failures"]["clients"] == {"site-2": 2}
    assert kept_by(other, "site-1").tensors
    assert not kept_by(other, "site-2").tensors


def test_a_server_holds_two_plans_and_two_updates_at_a_time(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many clients have trained and could send theirs: here all have before the first is fetched."""
    fetch, receive, held, sent = RemoteTurns._fetch, RemoteTurns._receive, [0], [0]

    def fetch_late(turns: RemoteTurns, ahead: Iterable[Order]) -> None:
        if all(turn.ready is not None for turn in turns._turns.values()):
            fetch(turns, ahead)

    def watched(turns: RemoteTurns, *, more: bool) -> None:
        plans = [client for client, turn in turns._turns.items() if turn.ready is None]
        sent[0] = max(sent[0], sum(not turns.hub.has_taken(client) for client in plans))
        receive(turns, more=more)
        on_the_way = sum(turn.fetched for turn in turns._turns.values())
        held[0] = max(held[0], on_the_way + len(turns._done))

    monkeypatch.setattr(RemoteTurns, "_fetch", fetch_late)
    monkeypatch.setattr(RemoteTurns, "_receive", watched)
    run = served(tmp_path / "served", clients, "method={name: fedavg}", "federation.rounds=1", *BRIEF)
    assert {event["client"] for event in run.of("client")} == {"site-1", "site-2", "site-3"}
    assert held == [2]
    assert sent[0] <= 2


@pytest.mark.slow  # what the client makes of it is fast (test_joining)
def test_a_client_that_comes_again_is_told_what_of_a_round_of_two_handlers_counts(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has delivered does not while it is at work again: with its line that turn would be lost."""
    turns, told = RemoteEngine._turns, []

    def watched(engine: RemoteEngine, orders: Any, service: Any, meter: Any) -> Iterator[Any]:
        for order, result in turns(engine, orders, service, meter):
            if order.handler == "again":
                told.append(engine.welcome("site-3")["delivered"])
            yield order, result

    monkeypatch.setattr(RemoteEngine, "_turns", watched)
    handlers = "method={name: 'troubled:TwoHandlers'}"
    served(tmp_path / "served", clients, handlers, "federation.rounds=1", *BRIEF)
    assert (told[0], told[-1]) == (None, 1)


@pytest.mark.parametrize(
    ("engine", "trouble"),
    [
        ("workers", "is killed"),
        *(pytest.param("ray", how, marks=pytest.mark.engines) for how in ("is killed", "loses its machine")),
    ],
)
def test_a_process_that_is_killed_costs_a_turn_that_is_run_again(
    run_by: RunBy, run_once: RunTiny, tmp_path: Path, engine: str, trouble: str
) -> None:
    """It is killed when the client has trained, and has kept something of it."""
    once = run_by(engine, *troubled(trouble, tmp_path))
    assert (tmp_path / "site-2").exists()
    never = run_once("method={name: fedavg}", *BRIEF)
    assert_same_tensors(once.state.tensors, never.state.tensors)
    assert once.summary["metrics"] == never.summary["metrics"]
    assert once.summary["failures"]["clients"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("engine", WORKERS)
def test_a_client_whose_process_is_killed_whenever_it_works_is_lost(
    run_by: RunBy, tmp_path: Path, engine: str
) -> None:
    run = run_by(engine, *troubled("is always killed", tmp_path))
    assert [(event["client"], event["error"]) for event in run.of("client_failed")] == [
        ("site-2", "WorkerLostError")
    ] * 2
    assert set(run.of("round")[-1]["exchanges"]) == {"site-1", "site-2", "site-3"}


@pytest.mark.slow  # one that is killed in its turn costs no more than that
def test_a_process_that_ends_between_turns_costs_nothing(run_tiny: RunTiny, run_once: RunTiny) -> None:
    def listen(event: str, facts: Any) -> None:
        if event == "round" and facts["round"] == 1:
            server = next(
                one for one in psutil.Process().children() if "forkserver" in " ".join(one.cmdline())
            )
            for worker in server.children():
                worker.kill()

    killed = run_tiny("method={name: fedavg}", "threads=1", "workers=2", listen=listen)
    assert_same(run_once("method={name: fedavg}", "threads=1"), killed)


def test_a_model_that_cannot_be_loaded_again_is_no_failure_of_a_client(
    run_tiny: RunTiny, tmp_path: Path
) -> None:
    """Whatever `federation.min_clients` is: nobody would ever deliver."""
    model = run_tiny("federation.rounds=0", *BRIEF, out="first").folder / "model"
    asked = (f"model.name={model}", "model.init=pretrained", "model.config={}", "model.tokenizer=null")
    source = read_source(None, [*TINY, *asked, *BRIEF, "federation.min_clients=1", "workers=2"])
    opened = open_run(source, tmp_path / "run", lambda event, facts: None, resume=False)
    shutil.rmtree(model)
    with refused(ConfigurationError, "wrong_form", at="model.name", values=[model]):
        opened.execute()


def test_an_update_that_shared_memory_has_no_room_for_is_named(run_tiny: RunTiny, tmp_path: Path) -> None:
    with refused(FedstrataError, "too_large", values=[" MB ", "workers=1"]):
        run_tiny(*troubled("has no room", tmp_path), "workers=2")


@pytest.mark.parametrize("engine", WORKERS)
def test_a_mistake_in_the_program_stops_the_run(run_by: RunBy, tmp_path: Path, engine: str) -> None:
    with pytest.raises(KeyError):
        run_by(engine, *troubled("breaks", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "workers", "remote", SLOW_RAY])
def test_a_client_that_fails_late_in_a_round_keeps_nothing_of_it(run_by: RunBy, engine: str) -> None:
    """What it kept when it trained goes too: the store is that of the round before."""
    run = run_by(engine, "method={name: 'troubled:TwoHandlers'}", "federation.min_clients=1", *BRIEF)
    assert [kept_by(run, f"site-{site}").values["turns"] for site in (1, 2, 3)] == [2, 1, 2]


def test_what_nobody_takes_leaves_no_trace(run_tiny: RunTiny, tmp_path: Path) -> None:
    """The round cannot do without the client that fails; others were ahead of it."""
    method = f"method={{name: 'troubled:Troubled', client: site-1, trouble: fails, marks: {tmp_path}}}"
    with pytest.raises(ClientsLostError):
        run_tiny(method, "workers=2", *BRIEF)
    stores = [path for path in (tmp_path / "run" / "clients").rglob("store-*") if path.is_file()]
    assert not stores


@pytest.mark.parametrize("method", ["centralized", "fl_llama"])
@pytest.mark.parametrize("workers", ["2", "ray"])
def test_clients_that_cannot_work_at_once_refuse_workers(
    run_tiny: RunTiny, method: str, workers: str
) -> None:
    values = ["1 or auto", f"not {workers}", method]
    with refused(ConfigurationError, "out_of_range", at="workers", values=values):
        run_tiny(f"method={{name: {method}}}", f"workers={workers}")


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Killed in the middle of a round, which its workers cannot be told."""
    context: Any = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    run = context.Process(target=run_and_tell, args=(tmp_path / "run", writer))
    run.start()
    assert reader.recv() == "at work"
    workers = psutil.Process(run.pid).children(recursive=True)
    assert len(workers) >= 3  # the server they are forked from, and two of them
    os.kill(run.pid, signal.SIGKILL)
    run.join()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


def run_and_tell(folder: Path, writer: Any) -> None:
    def listen(event: str, facts: Any) -> None:
        if event == "client":
            writer.send("at work")
            signal.pause()

    source = read_source(None, [*TINY, "workers=2", "federation.rounds=50"])
    open_run(source, folder, listen, resume=False).execute()
