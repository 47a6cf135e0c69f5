"""Who is at the server's end of the lines, and what comes from there."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fedstrata.core.errors import FedstrataError, FrameError, LineError, RefusedError
from fedstrata.core.types import JSON, Message
from fedstrata.split.messages import MOST, is_number
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.header import Header, Kind, unpack
from fedstrata.transport.link import Link
from fedstrata.transport.timing import Timing
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

_LEAST_PATIENCE = 0.5
"""Seconds; for who says less the server does not hurry more."""
GREETING_BYTES = 2**20
"""Bytes that a greeting may have: nothing is known of its sender's model yet."""
Greeting: TypeAlias = Mapping[str, JSON]
"""What a client says of itself when it joins."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came from a client, or that nothing more will.

    Attributes:
        client: Who it is.
        session: Its session, of which it may have begun another since.
        header: The message's header; none if the client is lost.
        frame: Its content.
        lost: Why nothing more will come.
    """

    client: str
    session: str
    header: Header | None = None
    frame: Frame | None = None
    lost: FedstrataError | None = None


@dataclass
class Member:
    """One client's session.

    Attributes:
        shown: What is kept of the token with which it began.
        turn: The last turn in which the client was asked something; 0 before the first.
        asked: Since when it is expected to say something in it; none if it waits for the server.
        task: The plan that it works at, or the request for the update that it sends; none if it waits.
        first: The first turn of which it may still speak: what it says comes in order, and nothing comes
            behind the end of a turn.
    """

    client: str
    session: str
    greeting: Greeting
    agreement: Agreement
    link: Link
    shown: bytes = b""
    turn: int = 0
    asked: float | None = None
    task: Header | None = None
    first: int = 0

    @property
    def patience(self) -> float:
        """Seconds without a sign of life after which the client gives up, as far as it says so."""
        said = self.greeting.get("patience")
        return max(float(said), _LEAST_PATIENCE) if is_number(said, MOST) else float("inf")

    def ask(self, header: Header) -> None:
        """Notes that the client was sent something of a turn, in which it is expected to say something."""
        self.turn, self.asked = header.turn, time.monotonic()
        if header.kind != Kind.SAID:  # which belongs to a plan
            self.task = header

    def hear(self, header: Header) -> None:
        """Notes that the client has said something; of the turn in which it was asked, it is in time.

        Raises:
            LineError: It leaves.
            FrameError: What it says is of no turn that goes on, or has just been ended by the server.
        """
        if header.kind == Kind.END:
            raise LineError(f"client {self.client!r} has left", code="left")
        first = max(self.first, min(self.turn, 1))  # 0 is no turn, once there are turns
        if not first <= header.turn <= self.turn:
            message = f"client {self.client!r} sent {header.kind.name} of turn {header.turn}"
            raise FrameError(
                f"{message}, and is in none but turn {self.turn}, which may have ended", code="out_of_order"
            )
        self.first = header.turn + (header.kind in (Kind.UPDATE, Kind.FAILED))
        if header.turn == self.turn:
            self.asked = None
            if header.kind != Kind.SAID:
                self.task = None

    def is_late(self, timing: Timing, now: float) -> bool:
        """Whether the client has been asked something and has been silent of it for too long."""
        if self.asked is None or now - self.asked < timing.answer:
            return False
        return not self.link.holds(lambda header: header.turn == self.turn)

    def expiry(self, timing: Timing) -> float:
        """Returns when the client is given up if nothing happens."""
        times = ((self.link.down_since, timing.reconnect), (self.asked, timing.answer))
        return min((since + allowed for since, allowed in times if since is not None), default=float("inf"))


def read_greeting(client: str, data: bytes) -> tuple[Greeting, str, int]:
    """Returns how a client greets; its session, empty for none, and the last message that arrived there.

    Raises:
        FrameError: It is no greeting.
        RefusedError: It is too large, or says nothing of session and number.
    """
    header, body = unpack(data)
    if body.nbytes > GREETING_BYTES:
        raise RefusedError(
            f"a greeting may have {GREETING_BYTES} bytes, and not {body.nbytes}", code="too_large"
        )
    if header.kind != Kind.HELLO:
        raise FrameError("no greeting")
    greeting = frame.decode(frame.split(body), Message).values
    session, arrived = greeting.get("session"), greeting.get("arrived")
    if not isinstance(session, str) or not isinstance(arrived, int):
        raise RefusedError(f"client {client!r} greets without session and number", code="malformed_frame")
    return greeting, session, arrived
