"""What a client of a divided model keeps of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from support import TINY, refused, silent

from fedstrata.client.failures import describe
from fedstrata.client.store import ClientStore, client_folder, home_of
from fedstrata.core.errors import FrameError, TrainingError
from fedstrata.core.handlers import SCORE
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON, Message, Plan
from fedstrata.engine.agreed import SESSION, agreed
from fedstrata.engine.prepare import Experiment, prepare_client
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.engine.simulated_identities import files_of, simulated_identities
from fedstrata.privacy.ledger_verification import LEDGER, read_ledger
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import GrpcMembership
from fedstrata.transport.header import Header, Kind
from fedstrata.transport.timing import Timing
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

TIMING = Timing(answer=60.0, reconnect=30.0, keepalive=20.0)
FIRST, SECOND = "0123456789abcdef", "fedcba9876543210"
CLIENTS = ("site-1", "site-2")


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    """The experiment of a client that keeps its ends, and adds noise to whatever it sends."""
    method = "method={name: fl_llama, average_ends: never, noise: {scale: 0.5, inference: true}}"
    return prepare_client(read_source(None, [*TINY, method]), "site-1")


def store_of(home: Path, run: str, client: str, number: int) -> ClientStore:
    return ClientStore(client_folder(home_of(home, run), client), number)


def kept(home: Path, run: str, client: str) -> float:
    """Returns the number of the last round of which a client still has its ends."""
    return float(store_of(home, run, client, 99).read().tensors["head"])


@contextmanager
def served(remote: RemoteClient, welcome: dict[str, JSON]) -> Iterator[tuple[GrpcHub, GrpcMembership]]:
    """A server that says this when a client begins, and a session of that client."""
    hub = GrpcHub(
        lambda client, greeting: remote.agreement,
        largest=2**24,
        clients=CLIENTS,
        timing=TIMING,
        welcome=lambda client: welcome,
    )
    address = hub.listen("127.0.0.1:0")
    agreed = {"greeting": remote.greeting, "timing": TIMING}
    try:
        with GrpcMembership(address, remote.id, remote.agreement, **agreed) as membership:  # type: ignore[arg-type]
            hub.wait_for([remote.id], 30)
            yield hub, membership
    finally:
        hub.stop(1.0, complete=True)


@contextmanager
def at_work(
    remote: RemoteClient, *ends: type[Exception], **welcome: JSON
) -> Iterator[Callable[..., tuple[Header, Frame]]]:
    """Gives what asks a client that is at work for a turn; it may end with these errors."""

    def serve() -> None:
        with suppress(*ends):
            remote.serve(membership)

    with served(remote, {"counted": 0, "run": FIRST, **welcome}) as (hub, membership):
        thread = Thread(target=serve)
        thread.start()
        turn = 0

        def ask(handler: str, plan: Plan, *, number: int = 1) -> tuple[Header, Frame]:
            nonlocal turn
            give_up()
            turn += 1
            header = Header(Kind.PLAN, turn=turn, round=number, handler=handler, call=1)
            hub.send("site-1", header, frame.encode(plan))
            while (arrival := hub.receive(60)) is not None and arrival.header is not None:
                if arrival.header.turn == turn:
                    break
            assert arrival is not None and arrival.header is not None and arrival.frame is not None
            return arrival.header, frame.split(arrival.frame.tobytes())

        def give_up() -> None:
            if turn:
                hub.send("site-1", Header(Kind.FAILED, turn=turn), frame.encode(Message()))

        yield ask
        give_up()
        hub.stop(1.0, complete=True)
        thread.join()


def test_a_client_that_joins_drops_nothing_but_what_its_own_run_did_not_commit(
    tmp_path: Path, experiment: Experiment
) -> None:
    """A server that begins anew has committed nothing: what was learnt in other runs stays."""
    for client in CLIENTS:
        for number in (1, 2, 3):
            ends = Message({"head": torch.tensor(float(number))})
            store_of(tmp_path, FIRST, client, number).write(ends)
    remote = RemoteClient(experiment, "site-1", tmp_path, silent, runs=2)
    for welcome, left in (
        ({"counted": 0, "run": SECOND}, 3.0),
        ({"counted": 2, "run": FIRST}, 2.0),
        ({"counted": 1, "run": FIRST, "delivered": 2}, 2.0),  # and still goes on
        ({"counted": 1, "run": FIRST}, 1.0),  # round 2 was committed without it, or is not committed
    ):
        with served(remote, welcome) as (hub, membership):
            hub.stop(1.0, complete=True)
            remote.serve(membership)
        assert [kept(tmp_path, FIRST, client) for client in CLIENTS] == [left, 3.0]


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ({"counted": 1}, False),  # the round was broken off, or committed without it
        ({"counted": 1, "delivered": 2}, True),
        ({"counted": 2}, True),
    ],
)
def test_a_turn_whose_end_was_lost_with_the_line_counts_as_the_server_says(
    tmp_path: Path, experiment: Experiment, said: dict[str, JSON], counts: bool
) -> None:
    remote = RemoteClient(experiment, "site-1", tmp_path, silent)
    remote._done, remote._trained = Header(Kind.PLAN, turn=7, round=2, handler="train"), 1
    with served(remote, {"run": FIRST, **said}) as (hub, membership):
        hub.stop(1.0, complete=True)
        if counts:
            remote.serve(membership)
        else:
            with refused(TrainingError, "training_failed", values=["site-1", "the line broke"]):
                remote.serve(membership)


def test_scores_that_fail_cost_a_client_nothing_that_it_has_learnt(
    tmp_path: Path, experiment: Experiment
) -> None:
    store_of(tmp_path, FIRST, "site-1", 2).write(Message({"head": torch.tensor(2.0)}))
    remote = RemoteClient(experiment, "site-1", tmp_path, silent)
    with at_work(remote, counted=2) as ask:
        header, _ = ask(SCORE, Plan({}, {"part": "all of them"}), number=2)
    assert header.kind == Kind.FAILED
    assert kept(tmp_path, FIRST, "site-1") == 2.0


def test_what_is_sent_twice_has_no_noise_in_common(tmp_path: Path, experiment: Experiment) -> None:
    """A server that asks for the same again cannot subtract: both times the states are others."""
    with at_work(RemoteClient(experiment, "site-1", tmp_path, silent)) as ask:
        sent = [
            next(iter(frame.decode(ask(SCORE, Plan({}, {"part": "test"}))[1], Message).tensors.values()))
            for _ in range(2)
        ]
    assert sent[0].shape == sent[1].shape
    noise = (sent[1] - sent[0]).abs().mean() / 2**0.5  # of two independent draws
    assert noise.item() == pytest.approx(0.5, rel=0.05)


def test_whatever_the_server_has_is_on_the_disk_of_the_client(
    tmp_path: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message, why a turn has failed, and before all else what the client says of itself."""
    flushed: list[int] = []
    remote = RemoteClient(experiment, "site-1", tmp_path, silent)
    assert remote._runs.count == 0  # makes the site's database, whose name is flushed too
    monkeypatch.setattr("os.fsync", flushed.append)
    (greeting,) = read_ledger(client_folder(tmp_path, "site-1") / LEDGER)
    assert (greeting["what"], greeting["run"], greeting["round"]) == ("greeting", None, 0)
    assert greeting["values"]["examples"] == remote.greeting["examples"]
    ledger = client_folder(home_of(tmp_path, FIRST), "site-1") / LEDGER
    with at_work(remote, TrainingError) as ask:
        for turn, (handler, what) in enumerate([(SCORE, "message"), ("nothing", "failure")], start=1):
            _, sent = ask(handler, Plan({}, {"part": "test"}))
            line = list(read_ledger(ledger))[-1]
            assert line["frame"] == sent.sha256()
            assert (line["run"], line["handler"], line["what"]) == (FIRST, handler, what)
            assert len(flushed) == 1 + turn, "each line by itself, and the new folder"
    assert line["values"]["message"] == "FrameError"


@pytest.mark.claim("security_review#in-the-clear")
def test_a_site_with_a_lock_sends_no_update_in_the_clear(tmp_path: Path) -> None:
    simulated_identities(tmp_path, CLIENTS)
    identity, lock = files_of(tmp_path, "site-1")
    own = prepare_client(read_source(None, [*TINY, "privacy.secure_aggregation=true"]), "site-1")
    home = tmp_path / "home"
    remote = RemoteClient(own, "site-1", home, silent, identity=identity, lock=lock)
    session = {path: value for path, value in agreed(own).items() if path in SESSION}
    with at_work(remote, TrainingError, settings=session) as ask:  # it has failed whenever it was to train
        header, _ = ask("train", Plan(own.method.start(own.model).tensors))
    assert header.kind == Kind.FAILED
    ledger = client_folder(home_of(home, FIRST), "site-1") / LEDGER
    assert not ledger.exists() or all(line["what"] != "update" for line in read_ledger(ledger))


@pytest.mark.claim("security_review#failed-turn")
@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (FileNotFoundError(2, "No such file", "/notes/jane_doe.txt"), "FileNotFoundError ENOENT"),
        (OSError(28, "No space left on device"), "OSError ENOSPC"),
        (OSError("/notes/jane_doe.txt"), "OSError"),
        (OSError("/notes/jane_doe.txt", "cannot be decoded"), "OSError"),
        (OSError(10**6, "/notes/jane_doe.txt"), "OSError"),
        (FrameError("/notes/jane_doe/store-00001.safetensors: cut short"), "FrameError"),
        (TrainingError("the loss of jane_doe is nan"), "TrainingError"),
        (KeyError("jane_doe"), "KeyError"),
    ],
)
def test_a_failed_turn_sends_the_kind_of_its_error_and_no_text(
    tmp_path: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, error: Exception, sent: str
) -> None:
    """Paths and messages may name patients; they are for the site's own people."""
    heard: list[str] = []

    def listen(event: str, facts: Mapping[str, Any]) -> None:
        heard.extend([facts["message"]] if event == "turn_failed" else [])

    def fail(*args: Any) -> None:
        raise error

    remote = RemoteClient(experiment, "site-1", tmp_path, listen)
    monkeypatch.setattr(remote._scoring, "score", fail)
    with at_work(remote, KeyError) as ask:  # a bug ends the site's process, after the server was told
        header, said = ask(SCORE, Plan({}, {"part": "test"}))
    assert header.kind == Kind.FAILED
    assert frame.decode(said, Message).values == {"message": sent}
    assert b"jane" not in said.tobytes()
    ledger = client_folder(home_of(tmp_path, FIRST), "site-1") / LEDGER
    assert b"jane" not in ledger.read_bytes()
    assert heard == ([describe(error)] if sent != "KeyError" else []), "the site's people see all of it"


@pytest.mark.parametrize("said", ["../..", "", 7, f"{FIRST}/.."])
def test_a_server_does_not_choose_where_a_client_writes(tmp_path: Path, said: JSON) -> None:
    with refused(FrameError, "wrong_form", values=[repr(said)]):
        home_of(tmp_path, said)
