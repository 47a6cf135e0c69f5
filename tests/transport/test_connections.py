"""Connections that break without being closed, and pings: real sockets, and a proxy that freezes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from proxy import Proxy

from fedstrata.core.types import Message
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import GrpcMembership
from fedstrata.transport.header import Header, Kind
from fedstrata.transport.membership import Membership
from fedstrata.transport.timing import Timing
from fedstrata.wire import frame

AGREED = Agreement({}, run="demo", blocks=1, numbers=10, trained={})
TIMING = Timing(answer=600.0, reconnect=600.0, keepalive=1.0)
BOUND = 40.0
"""Seconds in which a connection must be found broken: many keepalives, and less than gRPC's own 60 s."""
PINGS = 100
"""A client that floods a server stops after so many."""
_SETTINGS, _PING, _GOAWAY, _TOO_MUCH = 4, 6, 7, 11
"""Types of frames of HTTP/2, and the reason of a connection's end."""


@pytest.fixture
def hub() -> Iterator[GrpcHub]:
    made = GrpcHub(lambda *_: AGREED, largest=2**24, clients=["north"], timing=TIMING)
    yield made
    made.stop(1.0)


def say(server: GrpcHub, membership: Membership, number: int) -> None:
    """Sends a number to the server, which has to arrive in the session that there is, and back."""
    said = Header(Kind.SAID, turn=0), frame.encode(Message({}, {"number": number}))
    membership.send(*said)
    arrival = server.receive(BOUND)
    assert arrival is not None, f"nothing has arrived within {BOUND:g} s"
    assert arrival.frame is not None, arrival.lost
    server.tell("north", *said)
    for content in (arrival.frame, membership.receive()[1]):
        assert frame.decode(content, Message).values == {"number": number}


@pytest.mark.claim("processes#half-open")
def test_a_site_finds_that_its_connection_is_half_open_and_joins_again(hub: GrpcHub) -> None:
    """A router forgets the connection: nothing passes and neither end is closed."""
    proxy = Proxy(hub.listen("127.0.0.1:0"))
    with closing(proxy), GrpcMembership(proxy.address, "north", AGREED, timing=TIMING) as membership:
        session = hub.session("north")
        for number in range(3):  # so that a ping that measures the line is on its way
            say(hub, membership, number)
        proxy.freeze()
        say(hub, membership, 3)
        assert (hub.session("north"), proxy.connections) == (session, 2)


@pytest.mark.claim("processes#half-open")
def test_a_server_finds_that_a_connection_is_half_open(hub: GrpcHub) -> None:
    proxy = Proxy(hub.listen("127.0.0.1:0"))
    with closing(proxy), GrpcMembership(proxy.address, "north", AGREED, timing=TIMING) as membership:
        for number in range(3):
            say(hub, membership, number)
        (member,) = hub.members
        proxy.freeze(later=True)
        with hub._changed:
            assert hub._changed.wait_for(lambda: member.link.down_since is not None, BOUND)


@pytest.mark.claim("processes#honest-pings")
def test_pings_of_an_honest_site_leave_its_connection_alone(hub: GrpcHub) -> None:
    """Nothing but pings passes on an idle connection: 17 bytes, and as many for the answer."""
    proxy = Proxy(hub.listen("127.0.0.1:0"))
    with closing(proxy), GrpcMembership(proxy.address, "north", AGREED, timing=TIMING) as membership:
        for number in range(3):
            say(hub, membership, number)
        before = proxy.passed
        while proxy.passed < before + 6 * 2 * 17:
            time.sleep(0.05)
        say(hub, membership, 3)
        assert proxy.connections == 1


def test_a_slow_connection_that_is_full_is_not_taken_for_a_broken_one(hub: GrpcHub) -> None:
    """What the kernel holds of a message takes longer to pass than a ping may take."""
    agreed = replace(AGREED, numbers=2**20)
    hub._agree, proxy = (lambda *_: agreed), Proxy(hub.listen("127.0.0.1:0"), megabits=8.0)
    content = frame.encode(Message({"tensor": torch.zeros(agreed.numbers)}))
    with closing(proxy), GrpcMembership(proxy.address, "north", agreed, timing=TIMING) as membership:
        membership.send(Header(Kind.UPDATE, turn=0), content)
        assert hub.receive(2 * BOUND).lost is None
        assert proxy.connections == 1


def pinged(connection: socket.socket) -> Iterator[bytes]:
    """Sends pings, each when the one before is answered; yields what the server says when it ends this."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    connection.sendall(preface + bytes([0, 0, 0, _SETTINGS, 0, *bytes(4)]))
    with connection.makefile("rb") as stream:
        for _ in range(PINGS):
            connection.sendall(bytes([0, 0, 8, _PING, 0, *bytes(4), *bytes(8)]))
            kind = 0
            while kind != _PING:
                head = stream.read(9)
                kind, content = head[3], stream.read(int.from_bytes(head[:3]))
                if kind == _GOAWAY:
                    yield content
                    return


@pytest.mark.claim("processes#ping-flood")
def test_a_client_that_floods_a_server_with_pings_is_disconnected(hub: GrpcHub) -> None:
    host, _, port = (address := hub.listen("127.0.0.1:0")).rpartition(":")
    with GrpcMembership(address, "north", AGREED, timing=TIMING) as honest:
        say(hub, honest, 0)
        with socket.create_connection((host, int(port)), timeout=BOUND) as flooding:
            (ended,) = pinged(flooding)
        assert (int.from_bytes(ended[4:8]), ended[8:]) == (_TOO_MUCH, b"too_many_pings")
        say(hub, honest, 1)
        assert honest._link._connections == 1
