"""A line over connections that break, without a network: each message once, in order, whatever happens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.errors import FrameError, LineError
from fedstrata.core.types import Message
from fedstrata.transport.header import Header, Kind, unpack
from fedstrata.transport.link import WINDOW, Link
from fedstrata.wire import frame


def say(link: Link, number: int) -> None:
    link.send(Header(Kind.SAID), frame.encode(Message({}, {"number": number})))


def number_in(content: frame.Frame) -> int:
    return int(frame.decode(content, Message).values["number"])  # type: ignore[arg-type]


class Ends:
    """Two ends and what is on the way between them."""

    def __init__(self) -> None:
        self.ends = (Link(10_000), Link(10_000))
        self.sent, self.taken = [0, 0], ([], [])
        self.connect()

    def connect(self) -> None:
        """Begins a connection; what was on the way of the one before is gone."""
        one, other = self.ends
        self.connections = (one.connect(other.arrived), other.connect(one.arrived))
        self.streams = [end.outgoing(each) for end, each in zip(self.ends, self.connections, strict=True)]
        self.way: tuple[list[bytes], list[bytes]] = ([], [])

    def step(self, kind: str, end: int) -> None:
        link = self.ends[end]
        if kind == "say" and link._has_room(100):
            self.sent[end] += 1
            say(link, self.sent[end])
        elif kind == "leave" and link._position < link._sent:
            self.way[end].extend(next(self.streams[end]))
        elif kind == "arrive" and self.way[end]:
            self.deliver(end, self.way[end].pop(0))
        elif kind == "repeat" and self.way[end]:
            self.deliver(end, self.way[end][0])
        elif kind == "take" and (item := link.take()) is not None:
            self.taken[end].append(number_in(item[1]))
        elif kind == "cut":
            self.connect()

    def deliver(self, end: int, data: bytes) -> None:
        header, body = unpack(data)
        content = frame.split(body) if header.sequence else None
        self.ends[1 - end].come(self.connections[1 - end], header, content, len(data))


@given(
    st.lists(
        st.tuples(st.sampled_from(["say", "leave", "arrive", "repeat", "take", "cut"]), st.integers(0, 1))
    )
)
def test_each_message_comes_once_and_in_order(events: list[tuple[str, int]]) -> None:
    line = Ends()
    for kind, end in events:
        line.step(kind, end)
    line.connect()
    for end in (0, 1):
        while line.ends[end]._position < line.ends[end]._sent:
            line.step("leave", end)
            line.step("arrive", end)
        while line.ends[1 - end].holds(lambda header: True):
            line.step("take", 1 - end)
    assert line.taken[1] == list(range(1, line.sent[0] + 1))
    assert line.taken[0] == list(range(1, line.sent[1] + 1))


def test_what_was_taken_is_said_and_then_kept_no_longer() -> None:
    line = Ends()
    for _ in range(20):
        for event in ("say", "leave", "arrive"):
            line.step(event, 0)
        line.step("take", 1)
    line.deliver(1, next(line.streams[1]).pop())
    assert not line.ends[0]._outgoing


def test_nobody_is_sent_more_than_a_window_holds() -> None:
    link = Link(10_000)
    for number in range(WINDOW):
        say(link, number)
    with refused(LineError, "not_taken", values=[f" {WINDOW} "]):
        say(link, WINDOW)


def test_more_batches_in_flight_have_a_wider_window() -> None:
    """All answers to them may be on the way at once, of the largest size."""
    large = frame.encode(Message({"states": torch.zeros(2250)}, {}))
    for ahead in (2, 8):
        link = Link(large.nbytes, ahead=ahead)
        link.send(Header(Kind.SAID), large)
        with refused(LineError, "not_taken", values=[f" {ahead - 1} "]):
            for _ in range(ahead):
                link.send(Header(Kind.SAID), large)


def test_an_end_that_is_sent_more_than_its_window_gives_the_line_up() -> None:
    """Whoever sends on without waiting for what is taken cannot fill the memory."""
    link, content = Link(10_000), frame.encode(Message())
    connection = link.connect(0)
    for sequence in range(1, 4):
        link.come(connection, Header(Kind.SAID, sequence=sequence), content, 10_000)
    with refused(FrameError, "not_taken", values=["3 messages", 30000]):
        link.come(connection, Header(Kind.SAID, sequence=4), content, 10_000)
    link.take()
    link.come(connection, Header(Kind.SAID, sequence=4), content, 10_000)


def test_what_is_sent_before_there_is_a_connection_is_waited_for() -> None:
    link = Link(100)
    say(link, 1)
    assert not link.idle, "it is yet to come"
    connection = link.connect(0)
    next(link.outgoing(connection))
    assert link.idle
    say(link, 2)
    assert not link.idle
    link.disconnect(connection)
    assert link.idle, "nobody may come again"


def test_a_message_behind_a_gap_is_refused() -> None:
    link = Link(10_000)
    connection = link.connect(0)
    with refused(FrameError, "out_of_order", values=["message 2", "behind 0"]):
        link.come(connection, Header(Kind.SAID, sequence=2), frame.encode(Message()), 0)


def test_a_message_larger_than_agreed_is_not_sent() -> None:
    with refused(LineError, "too_large", values=[" 50 "]):
        say(Link(50), 1)


def test_who_sends_over_a_slow_line_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages leave when the delay has passed since they were sent, and none before."""

    class WaitsError(Exception):
        """The line waits."""

    def wait(seconds: float | None) -> None:
        raise WaitsError

    now = 5.0
    monkeypatch.setattr("fedstrata.transport.link.time.monotonic", lambda: now)
    link = Link(10_000, delay=1000.0)
    monkeypatch.setattr(link.changed, "wait", wait)
    connection = link.connect(0)
    for number in range(3):
        say(link, number)
    now = 1004.0
    with pytest.raises(WaitsError):
        next(link.outgoing(connection))
    now = 1005.0
    leaving = link.outgoing(connection)
    assert [unpack(next(leaving).pop())[0].sequence for _ in range(3)] == [1, 2, 3]
