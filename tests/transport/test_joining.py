"""Who may join, what is compared first, and what of a message is looked at before it is read."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any

import grpc
import pytest
import torch
import trustme
from hypothesis import given
from hypothesis import strategies as st
from support import problems_of, refused

from fedstrata.core.cut import Cut
from fedstrata.core.errors import ConfigurationError, FrameError, LineError, RefusedError, SessionOverError
from fedstrata.core.types import Message
from fedstrata.transport.addresses import require_free
from fedstrata.transport.agreement import Agreement, Conversation
from fedstrata.transport.credentials import Certificates, Tokens
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import GrpcMembership, settings_of
from fedstrata.transport.header import METHOD, PROTOCOL, SERVICE, Header, Kind, pack, unpack
from fedstrata.transport.membership import TurnLine
from fedstrata.transport.timing import Timing
from fedstrata.transport.versions import own_versions
from fedstrata.wire import frame

Pair = tuple[GrpcHub, GrpcMembership]
TIMING = Timing(answer=60.0, reconnect=30.0, keepalive=20.0)
ENDS = {"head": (torch.float32, (4, 8)), "norm": (torch.bfloat16, (8,))}
AGREED = Agreement(
    {"training.learning_rate": 0.01},
    run="demo",
    blocks=4,
    numbers=500,
    trained=ENDS,
    conversation=Conversation(Cut(1, 1), form="bfloat16", hidden=8, rows=4, length=16),
)


def said_of(**changes: int) -> Agreement:
    """Returns what is agreed with other states."""
    return replace(AGREED, conversation=replace(AGREED.conversation, **changes))


def agree(client: str, greeting: Mapping[str, Any]) -> Agreement:
    """Refuses whoever has agreed to anything else."""
    if different := AGREED.differences(greeting["facts"], client):
        raise RefusedError(different, code="conflict")
    return AGREED


@pytest.fixture
def hub() -> Iterator[Callable[..., GrpcHub]]:
    """Makes hubs for the clients `north` and `south`."""
    hubs: list[GrpcHub] = []

    def make(**options: Any) -> GrpcHub:
        hubs.append(
            GrpcHub(agree, **{"largest": 2**20, "clients": ["north", "south"], "timing": TIMING, **options})
        )
        return hubs[-1]

    yield make
    for each in hubs:
        each.stop(1.0)


@contextmanager
def joined(hub: GrpcHub, address: str, client: str = "north", **options: Any) -> Iterator[GrpcMembership]:
    with GrpcMembership(address, client, AGREED, timing=TIMING, **options) as membership:
        hub.wait_for([client], 30)
        yield membership


@pytest.fixture
def north(hub: Callable[..., GrpcHub]) -> Iterator[Pair]:
    """A server, and `north` in a session with it."""
    server = hub()
    with joined(server, server.listen("127.0.0.1:0")) as membership:
        yield server, membership


def states(rows: int = 2, length: int = 5, hidden: int = 8, dtype: torch.dtype = torch.bfloat16) -> Message:
    return Message({"states": torch.ones(rows, length, hidden, dtype=dtype)}, {"kind": "states"})


def test_messages_come_as_they_were_sent(north: Pair) -> None:
    server, membership = north
    line = TurnLine(membership, turn=7)
    server.send("north", Header(Kind.PLAN, turn=7), frame.encode(Message()))
    assert membership.receive()[0].kind == Kind.PLAN
    sent = torch.randn(4, 16, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    line.send(Message({"states": sent}, {"batch": 3}))
    kept = sent.clone()
    sent.zero_()  # what was sent does not change with it
    arrival = server.receive(30)
    assert (arrival.client, arrival.header.turn) == ("north", 7)
    message = frame.decode(arrival.frame, Message)
    assert torch.equal(message.tensors["states"], kept)
    assert message.values == {"batch": 3}
    server.send("north", Header(Kind.SAID, turn=6), frame.encode(Message({}, {"batch": 1})))
    server.send("north", Header(Kind.SAID, turn=7), frame.encode(Message({}, {"batch": 2})))
    assert line.receive().values == {"batch": 2}, "what belongs to a turn that is over is passed over"


@pytest.mark.parametrize(
    ("message", "code", "values"),
    [
        (states(hidden=9), "wrong_shape", ["states", "bfloat16 (2, 5, 9)", "bfloat16 (4, 16, 8)"]),
        (states(rows=5), "wrong_shape", ["states", "bfloat16 (5, 5, 8)"]),
        (states(length=17), "wrong_shape", ["states", "bfloat16 (2, 17, 8)"]),
        (states(dtype=torch.float32), "wrong_shape", ["states", "float32"]),
        (Message({"tokens": torch.ones(2, 5, 8)}), "not_agreed", ["tokens"]),
        (Message({"head": torch.ones(8, 4)}), "wrong_shape", ["'head'", "float32 (8, 4)", "float32 (4, 8)"]),
    ],
)
def test_what_was_not_agreed_is_refused_on_both_sides(
    north: Pair, message: Message, code: str, values: list[str]
) -> None:
    server, membership = north
    TurnLine(membership, 0).send(message)
    with refused(FrameError, code, values=["'north'", *values]):
        raise server.receive(30).lost or AssertionError
    with refused(RefusedError, code, values=values):
        membership.receive()


def test_a_server_that_sends_what_was_not_agreed_is_not_listened_to(
    north: Pair,
) -> None:
    server, membership = north
    server.send("north", Header(Kind.SAID, turn=1), frame.encode(states(hidden=9)))
    with refused(FrameError, "wrong_shape", values=["the server", "bfloat16 (2, 5, 9)"]):
        TurnLine(membership, 1).receive()


def test_a_client_does_not_wait_for_a_server_that_has_stopped_speaking(hub: Callable[..., GrpcHub]) -> None:
    """It has a connection, and nobody behind it: a server gives signs of life while it waits for others."""
    server = hub()
    impatient = replace(TIMING, answer=0.5)
    address = server.listen("127.0.0.1:0")
    with (
        GrpcMembership(address, "north", AGREED, timing=impatient) as membership,
        refused(LineError, "timed_out", values=["0.5 s"]),
    ):
        TurnLine(membership, 1).receive()


def test_a_busy_server_gives_signs_of_life_in_time_for_the_least_patient(hub: Callable[..., GrpcHub]) -> None:
    server = hub()  # whose own deadline would have it speak every quarter of a minute
    address, impatient = server.listen("127.0.0.1:0"), replace(TIMING, answer=2.0)
    with (
        joined(server, address, "south") as busy,
        GrpcMembership(address, "north", AGREED, timing=impatient) as waiting,
    ):
        TurnLine(busy, 0).send(Message({}, {"batch": 1}))
        with server._changed:
            assert server._changed.wait_for(lambda: server._members["south"].link.arrived, 60)
        heard, before = waiting._link.heard, time.monotonic()
        assert server.receive(30) is not None, "it has something else to do at once"
        assert before < server._beat <= time.monotonic() + impatient.answer / 4
        with waiting._link.changed:
            assert waiting._link.changed.wait_for(lambda: waiting._link.heard > heard, 60)


@given(
    rows=st.integers(0, 6),
    length=st.integers(0, 20),
    hidden=st.integers(6, 10),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_states_are_taken_if_and_only_if_they_are_as_agreed(
    rows: int, length: int, hidden: int, dtype: torch.dtype
) -> None:
    fits = 0 < rows <= 4 and 0 < length <= 16 and hidden == 8 and dtype == torch.bfloat16
    content = frame.encode(states(rows, length, hidden, dtype))
    if fits:
        AGREED.check(Kind.SAID, content)
    else:
        with pytest.raises(FrameError):
            AGREED.check(Kind.SAID, content)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"hidden size": 16}, ["hidden size is 16 ", " 8 "]),
        ({"protocol": 9}, ["protocol is 9 ", f" {PROTOCOL} "]),
        ({"training.learning_rate": 0.1}, ["training.learning_rate is 0.1 ", " 0.01 "]),
        ({"front": 2, "back": 0}, ["front is 2 ", "back is 0 "]),
        ({"run": None}, ["run is None ", "'demo'"]),
    ],
)
def test_a_client_that_holds_something_else_is_refused(
    hub: Callable[..., GrpcHub], change: dict[str, Any], values: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    server = hub()
    address = server.listen("127.0.0.1:0")
    theirs = replace(AGREED, settings={**AGREED.settings, **change})
    joining = GrpcMembership(address, "north", theirs, timing=TIMING)
    with refused(RefusedError, "conflict", values=["'north'", *values]), joining:
        pass
    assert all(value in caplog.text for value in values)
    assert server.present == ()


def test_all_batches_in_flight_are_answered_before_the_client_takes_an_answer() -> None:
    """The server does not wait while it sends, so there is room for one to each, of the largest size."""
    agreed = said_of(hidden=4096, in_flight=6)
    server = GrpcHub(lambda client, greeting: agreed, largest=2**20, clients=["north"], timing=TIMING)
    address = server.listen("127.0.0.1:0")
    with GrpcMembership(address, "north", agreed, timing=TIMING) as membership:
        for batch in range(6):
            content = frame.encode(Message(states(4, 16, 4096).tensors, {"batch": batch}))
            server.send("north", Header(Kind.SAID, turn=1), content)
        line = TurnLine(membership, turn=1)
        assert [line.receive().values["batch"] for _ in range(6)] == list(range(6))
    server.stop(1.0)


def test_a_stranger_is_refused(hub: Callable[..., GrpcHub]) -> None:
    server = hub()
    address = server.listen("127.0.0.1:0")
    with refused(RefusedError, "unknown_name", values=["'west'"]), joined(server, address, "west"):
        pass


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def certificates(authority: trustme.CA, folder: Path, name: str, trusted: trustme.CA) -> Certificates:
    issued = authority.issue_cert("localhost", common_name=name)
    paths = [folder / f"{name}.{kind}" for kind in ("pem", "key", "authority")]
    issued.cert_chain_pems[0].write_to_path(paths[0])
    issued.private_key_pem.write_to_path(paths[1])
    trusted.cert_pem.write_to_path(paths[2])
    paths[1].chmod(0o600)
    return Certificates(*paths)


@pytest.mark.claim("security_review#mutual-tls")
@pytest.mark.claim("federation#own-name")
def test_with_tls_a_client_needs_its_own_certificate_and_its_own_token(
    hub: Callable[..., GrpcHub], authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens({"north": "secret-of-north", "south": "secret-of-south"})
    server = hub(tokens=tokens, certificates=certificates(authority, tmp_path, "server", authority))
    address = server.listen("localhost:0")
    north = certificates(authority, tmp_path, "north", authority)
    with joined(server, address, certificates=north, token="secret-of-north") as membership:
        TurnLine(membership, 0).send(states())
        assert server.receive(30) is not None
    for client, token, code, values in (
        ("north", "secret-of-south", "wrong_token", ["'north'"]),
        ("west", "secret-of-north", "wrong_token", ["'west'"]),
        ("south", "secret-of-south", "wrong_certificate", ["north, localhost", "'south'"]),
    ):
        caplog.clear()
        with (
            refused(RefusedError, code, values=values),
            joined(server, address, client, certificates=north, token=token),
        ):
            pass
        assert all(value in caplog.text for value in values)
        assert "secret" not in caplog.text


@pytest.mark.claim("security_review#mutual-tls")
def test_a_certificate_that_nobody_trusts_does_not_connect(
    hub: Callable[..., GrpcHub], authority: trustme.CA, tmp_path: Path
) -> None:
    other = trustme.CA()
    tokens = Tokens({"north": "secret"})
    server = hub(tokens=tokens, certificates=certificates(authority, tmp_path, "server", authority))
    address = server.listen("localhost:0")
    brief = replace(TIMING, reconnect=0.5)
    for wrong in (
        certificates(other, tmp_path, "north", authority),
        certificates(authority, tmp_path, "north", other),
    ):
        warnings: list[str] = []
        own: dict[str, Any] = {"certificates": wrong, "token": "secret", "warn": warnings.append}
        member = GrpcMembership(address, "north", AGREED, timing=brief, **own)
        with refused(LineError, "unreachable", values=["0.5 s"]), member:
            pass
        (warning,) = warnings  # at once, and not at every attempt
        assert address in warning and "0.5 s: " in warning
    assert server.present == ()


def test_where_nobody_listens_certificates_are_not_spoken_of(authority: trustme.CA, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
    own, brief = certificates(authority, tmp_path, "north", authority), replace(TIMING, reconnect=0.5)
    member = GrpcMembership(address, "north", AGREED, timing=brief, token="secret", certificates=own)
    with refused(LineError, "connection_refused", values=["0.5 s"]) as found, member:
        pass
    assert "certificate" not in str(found.value)
    warned: list[str] = []
    with refused(LineError, "connection_refused", values=[address, "0.5 s"]):
        settings_of(address, "north", None, None, brief, warned.append)
    (told,) = warned
    assert address in told


@pytest.mark.claim("security_review#mutual-tls")
def test_who_speaks_plain_text_with_a_server_of_tls_is_told_of_it(
    hub: Callable[..., GrpcHub], authority: trustme.CA, tmp_path: Path
) -> None:
    tokens = Tokens({"north": "secret"})
    server = hub(tokens=tokens, certificates=certificates(authority, tmp_path, "server", authority))
    address = server.listen("localhost:0")
    brief, told = (
        replace(TIMING, reconnect=0.5),
        ["--certificate", "--key", "--authority", "--token", "--insecure"],
    )
    with refused(LineError, "unreachable", values=told):
        settings_of(address, "north", None, None, brief)
    with (
        refused(LineError, "unreachable", values=told),
        GrpcMembership(address, "north", AGREED, timing=brief),
    ):
        pass


def test_plain_text_passes_by_the_proxy_of_the_environment(
    hub: Callable[..., GrpcHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would carry off what is to stay on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        server = hub()
        with joined(server, server.listen("127.0.0.1:0")):
            pass
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has come
            proxy.accept()


def test_files_that_are_no_certificates_are_named_before_anything_is_tried(
    authority: trustme.CA, tmp_path: Path
) -> None:
    good = certificates(authority, tmp_path, "north", authority)
    other = certificates(authority, tmp_path, "south", authority)
    with refused(ConfigurationError, "conflict", at="--certificate", values=[good.certificate, other.key]):
        replace(good, key=other.key)
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(ConfigurationError) as found:
        replace(good, certificate=tmp_path / "text", authority=tmp_path / "text")
    assert problems_of(found.value) == [("--certificate", "wrong_form"), ("--authority", "wrong_form")]


def test_an_address_that_is_taken_is_told_before_anything_is_written(hub: Callable[..., GrpcHub]) -> None:
    address = hub().listen("127.0.0.1:0")
    with refused(LineError, "in_use", values=[address]):
        require_free(address)
    require_free("127.0.0.1:0")


def test_a_second_process_of_a_client_takes_the_place_of_the_first(hub: Callable[..., GrpcHub]) -> None:
    server = hub()
    address = server.listen("127.0.0.1:0")
    with joined(server, address) as first, joined(server, address) as second:
        arrival = server.receive(30)
        assert (arrival.client, arrival.lost.code) == ("north", "replaced")
        assert arrival.session != server.session("north"), "what is under way since is not concerned"
        with refused(RefusedError, "replaced", values=["'north'"]):
            first.receive()
        TurnLine(second, 0).send(states())
        arrival = server.receive(30)
        assert arrival.lost is None


def lost(hub: GrpcHub) -> tuple[str, str] | None:
    """Who is lost next, and by which error."""
    arrival = hub.receive(30)
    return (arrival.client, arrival.lost.code) if arrival.lost else None


def plan_of(hub: GrpcHub, membership: GrpcMembership, turn: int) -> None:
    hub.send("north", Header(Kind.PLAN, turn=turn), frame.encode(Message()))
    assert membership.receive()[0].turn == turn


@pytest.mark.parametrize("other", [0, 99])
@pytest.mark.claim("processes#other-turn")
def test_who_speaks_of_a_turn_that_it_was_not_given_is_lost(north: Pair, other: int) -> None:
    server, membership = north
    plan_of(server, membership, 1)
    TurnLine(membership, other).send(Message())
    with refused(FrameError, "out_of_order", values=["'north'", "SAID", f"turn {other},", "turn 1,"]):
        raise server.receive(30).lost or AssertionError
    with refused(RefusedError, "out_of_order", values=["SAID", f"turn {other},"]):
        membership.receive()


@pytest.mark.claim("processes#other-turn")
def test_nothing_comes_behind_the_end_of_a_turn(north: Pair) -> None:
    server, membership = north
    plan_of(server, membership, 1)
    membership.send(Header(Kind.UPDATE, turn=1), frame.encode(Message()))
    TurnLine(membership, 1).send(Message())
    assert [type(server.receive(30).lost) for _ in range(2)] == [type(None), FrameError]


def test_only_what_is_of_the_turn_that_was_asked_stops_the_clock(
    north: Pair,
) -> None:
    """What was on the way when the server ended the turn before is no fault, and no answer."""
    server, membership = north
    for turn in (1, 2):
        plan_of(server, membership, turn)
    server.timing = replace(TIMING, answer=0.5)
    TurnLine(membership, 1).send(Message())
    while (arrival := server.receive(30)).lost is None:
        assert arrival.header.turn == 1
    assert (arrival.client, arrival.lost.code) == ("north", "timed_out")
    assert "0.5 s" in str(arrival.lost)


def silent(address: str, client: str) -> Iterator[Any]:
    """Opens a connection on which a client says nothing; yields it, and closes it."""
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        said = Event()
        requests = iter(said.wait, True)
        yield channel.stream_stream(f"/{SERVICE}/{METHOD}")(
            requests, metadata=[("client-bin", client.encode()), *own_versions()]
        )
        said.set()


@pytest.mark.claim("processes#silent-connections")
def test_silent_connections_of_one_client_keep_nobody_out(
    hub: Callable[..., GrpcHub], caplog: pytest.LogCaptureFixture
) -> None:
    """They are more than the threads there are, and each could be silent for as long as the test may take."""
    server = hub(timing=replace(TIMING, reconnect=3600.0, greeting=3600.0))
    address = server.listen("127.0.0.1:0")
    with ExitStack() as stack:
        calls = [stack.enter_context(contextmanager(silent)(address, "north")) for _ in range(30)]
        with joined(server, address, "south"):
            pass
        assert all(isinstance(call.exception(30), grpc.RpcError) for call in calls[:1])
        told = [error for each in caplog.records for error in each.args or ()]
        assert "replaced" in [error.code for error in told if isinstance(error, RefusedError)]
        assert "'north'" in caplog.text


def test_connections_of_one_session_that_take_nothing_keep_nobody_out() -> None:
    """Each is stuck in what it was to be sent, behind which nothing can leave it."""
    agreed = said_of(hidden=2**16)
    server = GrpcHub(lambda *_: agreed, largest=2**24, clients=["north", "south"], timing=TIMING)
    address = server.listen("127.0.0.1:0")
    greeting = {"facts": dict(agreed.facts), "arrived": 0}

    def call(channel: grpc.Channel, session: str) -> Any:
        hello = frame.encode(Message({}, {**greeting, "session": session}))
        requests = chain([pack(Header(Kind.HELLO), hello.buffers())], iter(Event().wait, True))
        own = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        return own(requests, metadata=[("client-bin", b"north"), *own_versions()])

    with grpc.insecure_channel(address) as channel:
        calls = [call(channel, "")]
        said = frame.decode(frame.split(unpack(next(calls[0]))[1]), Message)
        server.send("north", Header(Kind.PLAN, turn=1), frame.encode(states(4, 16, 2**16)))
        for _ in range(30):
            calls.append(call(channel, str(said.values["session"])))
            next(calls[-1])  # the welcome; what comes behind it is not taken
        with GrpcMembership(address, "south", agreed, timing=TIMING):
            server.wait_for(["south"], 30)
    server.stop(1.0)


def test_who_connects_must_greet_in_time(hub: Callable[..., GrpcHub]) -> None:
    told: Queue[logging.LogRecord] = Queue()  # by a thread of the server, which the call's end does not await
    handler = QueueHandler(told)
    logging.getLogger("fedstrata").addHandler(handler)
    server = hub(timing=replace(TIMING, reconnect=3600.0, greeting=0.1))
    try:
        with contextmanager(silent)(server.listen("127.0.0.1:0"), "north") as call:
            assert call.code() is not None  # waits for its end
            record = told.get(timeout=60)
        assert "'north'" in record.getMessage() and "0.1 s" in record.getMessage()
    finally:
        logging.getLogger("fedstrata").removeHandler(handler)


def test_a_client_that_leaves_is_lost_at_once(hub: Callable[..., GrpcHub]) -> None:
    server = hub()
    with joined(server, server.listen("127.0.0.1:0")):
        pass
    assert lost(server) == ("north", "left")
    with refused(LineError, "timed_out", values=["0 s: north"]):
        server.wait_for(["north"], 0.0)
    assert server.present == ()


def test_a_client_hears_that_a_restarted_server_does_not_know_it(hub: Callable[..., GrpcHub]) -> None:
    server = hub()
    address = server.listen("127.0.0.1:0")
    with joined(server, address) as membership:
        server._server.stop(None).wait()  # as a server that is killed: no goodbye
        later = hub(welcome=lambda client: {"committed": 3})
        assert later.listen(address) == address
        with refused(SessionOverError, "session_over", values=["'north'"]):
            membership.receive(patient=True)
        with joined(later, address) as again:
            assert again.welcome == {"committed": 3}


def test_the_end_of_a_run_is_heard_behind_all_that_was_said(north: Pair) -> None:
    server, membership = north
    server.send("north", Header(Kind.SAID, turn=1), frame.encode(Message({}, {"number": 1})))
    server.stop()
    assert membership.receive()[0].kind == Kind.SAID
    assert membership.receive()[0].kind == Kind.END
