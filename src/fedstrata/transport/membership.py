"""The client's end: one session at the server, kept over connections that break.

What carries the line is said by the kinds of membership: a gRPC stream (`grpc.membership`), or whatever else.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Thread

from fedstrata.core.errors import FedstrataError, FrameError, LineError, SessionOverError
from fedstrata.core.types import JSON, Message
from fedstrata.transport.agreement import Agreement, accept
from fedstrata.transport.header import Header, Kind, pack, unpack
from fedstrata.transport.link import Link
from fedstrata.transport.timing import Timing
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds between attempts to connect: the first pause, and the longest; each is twice the one before."""

_GOODBYE = 5.0
"""Seconds for what was sent last to leave."""


def not_yet(address: str, timing: Timing, details: str, hint: str) -> str:
    """Says why a first attempt has failed: a wrong port or certificate will not get better."""
    limit = f"trying again for {timing.reconnect:g} s"
    return f"the server at {address} cannot be reached yet, {limit}: {cause_of(details, hint)}"


def cause_of(details: str, hint: str) -> str:
    """Says why there is no connection; what else may be wrong has no place where nobody listens."""
    return "nobody listens there" if _nobody_listens(details) else f"{details}{hint}"


def unreachable(message: str, details: str) -> LineError:
    """Returns the error that says that there is no connection.

    Args:
        message: What it says.
        details: Why, as for `cause_of`.
    """
    return LineError(message, code="connection_refused" if _nobody_listens(details) else "unreachable")


def _nobody_listens(details: str) -> bool:
    return details.endswith("Connection refused")


class Membership(ABC):
    """A client's session at the server; a context manager that joins and leaves.

    Args:
        address: Where the server is, for messages.
        client: Who joins.
        agreement: What it takes as agreed; said to the server, which compares.
        greeting: What else the server is told.
        hint: What else may be wrong if the server cannot be reached, for messages.
        timing: How long to wait.
        warn: Told why the first attempt to join has failed, if it is made again.

    Attributes:
        welcome: What the server said when the session began.
    """

    def __init__(
        self,
        address: str,
        client: str,
        agreement: Agreement,
        *,
        greeting: Mapping[str, JSON] | None = None,
        hint: str = "",
        timing: Timing | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.timing = timing or Timing()
        self.welcome: Mapping[str, JSON] = {}
        self._client, self._agreement = client, agreement
        self._greeting = {
            **(greeting or {}),
            "facts": dict(agreement.facts),
            "patience": self.timing.answer,
        }
        self._session = ""
        self._address, self._warn, self._warned = address, warn, False
        self._link = Link(agreement.largest, ahead=agreement.ahead, delay=self.timing.delay)
        self._hint = hint
        self._joined, self._left = Event(), Event()
        self._thread = Thread(target=self._stay, name=f"line of {client}", daemon=True)

    def __enter__(self) -> Membership:
        """Joins.

        Raises:
            RefusedError: The server does not take this client.
            LineError: It cannot be reached.
        """
        self._thread.start()
        self._joined.wait()
        if self._link.error is not None and not self._session:  # one that is over already has been heard out
            self._close()
            raise self._link.error
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(FedstrataError):
            self._link.send(Header(Kind.END), frame.encode(Message()))
            self._link.flush(_GOODBYE)
        self._left.set()
        self._link.lose(
            SessionOverError("the client has left")
        )  # which ends the stream, behind what was sent
        self._thread.join(_GOODBYE)
        self._close()
        self._thread.join()

    @property
    def bytes_sent(self) -> int:
        """Bytes of all that was sent, headers and what was sent again with them."""
        return self._link.bytes_sent

    def send(self, header: Header, content: Frame) -> None:
        """Sends a message, now or once there is a connection again.

        Raises:
            LineError: The session is over, or the server takes nothing any more.
        """
        self._link.send(header, content, wait=self.timing.answer)

    def receive(self, *, patient: bool = False) -> tuple[Header, Frame]:
        """Waits for the next message.

        Args:
            patient: Whether to wait as long as there is a connection; if not, as long as the server gives
                signs of life.

        Raises:
            LineError: None will come.
        """
        while (found := self._link.receive(self.timing.answer)) is None:
            if not patient:
                message = f"the server has given no sign of life for {self.timing.answer:g} s"
                raise LineError(message, code="timed_out")
        if found[0].kind == Kind.PLAN:  # the server keeps it, and others wait for theirs, until it hears so
            self._link.beat()
        return found

    def _stay(self) -> None:
        """Connects, and connects again, until the session is over."""
        pause = _FIRST_PAUSE
        try:
            while not self._left.is_set():
                down = self._link.down_since
                self._converse()
                if self._link.error is not None:
                    return
                pause = _FIRST_PAUSE if self._link.down_since != down else min(2 * pause, _LONGEST_PAUSE)
                self._left.wait(pause)
        except FedstrataError as error:
            self._link.lose(error)
        except BaseException as error:
            self._link.lose(LineError(f"the line failed ({type(error).__name__})"))
            raise
        finally:
            self._joined.set()

    @abstractmethod
    def _converse(self) -> None:
        """Holds one connection, until it ends; says `_joined` once it is welcome.

        Raises:
            FedstrataError: There is to be no other connection.
        """

    @abstractmethod
    def _close(self) -> None:
        """Ends what is left of all connections."""

    def _wait_for_another(self, details: str) -> None:
        """Hears why there is no connection.

        Raises:
            LineError: There has been none for too long.
        """
        since = self._link.down_since
        if since is not None and time.monotonic() - since >= self.timing.reconnect:
            why = cause_of(details, self._hint)
            message = f"the server cannot be reached for {self.timing.reconnect:g} s: {why}"
            raise unreachable(message, details)
        if not self._session and not self._warned:
            self._warned = True
            self._warn(not_yet(self._address, self.timing, details, self._hint))

    def _hello(self) -> bytes:
        """Returns the message with which a connection begins."""
        said: dict[str, JSON] = {
            **self._greeting,
            "session": self._session,
            "arrived": self._link.arrived,
        }
        return pack(Header(Kind.HELLO), frame.encode(Message({}, said)).buffers())

    def _welcomed(self, data: bytes) -> int:
        """Takes the server's answer to a greeting, and returns the number of the connection.

        Raises:
            FrameError: It is no welcome.
        """
        header, body = unpack(data)
        values = dict(frame.decode(frame.split(body), Message).values)
        session, arrived = values.pop("session", None), values.pop("arrived", None)
        if header.kind != Kind.WELCOME or not isinstance(session, str) or not isinstance(arrived, int):
            raise FrameError("the server does not begin with a welcome")
        if not self._session:
            self._session, self.welcome = session, values
        connection = self._link.connect(arrived)
        self._joined.set()
        return connection

    def _accept(self, connection: int, data: bytes) -> None:
        """Takes in what came on a connection.

        Raises:
            FrameError: It is not what was agreed.
        """
        try:
            accept(self._link, connection, data, self._agreement)
        except FrameError as error:
            raise FrameError(f"the server sent what was not agreed: {error}", code=error.code) from None


class TurnLine:
    """The line of one turn; implements `core.client.Line`.

    Args:
        membership: The client's session.
        turn: The turn's number.

    Attributes:
        waited: Seconds in which not the client was at work but the network, the server or other clients.
    """

    def __init__(self, membership: Membership, turn: int) -> None:
        self._membership, self._turn = membership, turn
        self.waited = 0.0

    def send(self, message: Message) -> None:
        """Sends a message; the tensors in it may change when this returns."""
        self._membership.send(Header(Kind.SAID, turn=self._turn), frame.encode(message))

    def receive(self) -> Message:
        """Waits for the next message.

        Raises:
            LineError: None will come: the server has ended, or the turn or the session, or is silent.
        """
        started = time.perf_counter()
        header, content = self._membership.receive()
        while header.turn != self._turn:  # of a turn that is over
            header, content = self._membership.receive()
        self.waited += time.perf_counter() - started
        message = frame.decode(content, Message)
        if header.kind == Kind.SAID:
            return message
        if header.kind == Kind.END:
            raise SessionOverError("the server has ended")
        if header.kind == Kind.FAILED:
            raise TurnOverError(f"the server has ended the turn: {message.values.get('message')}")
        raise FrameError(f"the server says {header.kind.name} in the middle of a turn", code="out_of_order")


class TurnOverError(LineError):
    """The server has ended a client's turn, and expects nothing more of it."""

    code = "turn_over"
