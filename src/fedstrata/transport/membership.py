"""The client's end: one session at the server, kept over connections that break."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import grpc

from fedstrata.core.errors import (
    FedstrataError,
    FrameError,
    LineError,
    RefusedError,
    SessionOverError,
    printable,
)
from fedstrata.core.types import JSON, Message
from fedstrata.transport.agreement import Agreement, accept
from fedstrata.transport.credentials import Certificates, require_safe
from fedstrata.transport.header import METHOD, REFUSED, SERVICE, SETTINGS, Header, Kind, pack, unpack
from fedstrata.transport.link import Link
from fedstrata.transport.timing import Timing
from fedstrata.transport.versions import own_versions, require_same_versions
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds between attempts to connect: the first pause, and the longest; each is twice the one before."""

_SETTINGS_BYTES = 2**20
"""Bytes of what a server says of the run."""
_GOODBYE = 5.0
"""Seconds for what was sent last to leave."""


_REFUSED = (
    " (a server that is there may have refused this client's certificate, or the client the server's: "
    "expired, not for this address, or signed by another authority)"
)


_PLAIN = (
    " (a server that is there may speak TLS alone: give --certificate, --key, --authority and --token "
    "in place of --insecure)"
)


def settings_of(
    address: str,
    client: str,
    token: str | None,
    certificates: Certificates | None,
    timing: Timing,
    warn: Callable[[str], None] = lambda message: None,
    *,
    refused: bool = False,
) -> Mapping[str, JSON]:
    """Returns what a server says of the run to a client that is about to join it.

    Args:
        address: The server's `HOST:PORT`; it may be started later.
        client: Who asks.
        token: The client's token.
        certificates: The client's certificate and whom it trusts; none for plain text on this machine.
        timing: How long to wait.
        warn: Told why the first attempt has failed, if it is made again.
        refused: Whether it is told that the client does not join the run, by a rule of its own.

    Raises:
        RefusedError: The server does not know this client, is of another version, or is none that trains.
        LineError: It cannot be reached.
    """
    require_safe(address, insecure=certificates is None, setting="--server")
    hint, cause = _PLAIN if certificates is None else _REFUSED, ""
    with _channel(address, certificates, timing.options(_SETTINGS_BYTES)) as channel:
        said, asked = REFUSED if refused else b"", channel.unary_unary(f"/{SERVICE}/{SETTINGS}")
        ask = partial(asked.with_call, said, metadata=_metadata(client, token))
        for waits in (False, True):
            try:
                data, call = ask(timeout=timing.reconnect, wait_for_ready=waits)
                require_same_versions(call.initial_metadata(), "the server", f"client {client!r}")
                return frame.decode(frame.split(data), Message).values
            except grpc.RpcError as error:
                code, details = error.code(), printable(error.details() or "")
                if code == grpc.StatusCode.FAILED_PRECONDITION:
                    raise RefusedError(f"the server refuses: {details}") from None
                if code == grpc.StatusCode.UNIMPLEMENTED:
                    raise RefusedError(f"what listens at {address} is no server of fedstrata") from None
                if code != grpc.StatusCode.DEADLINE_EXCEEDED or not cause:  # it says how long, and not why
                    cause = details
                if waits or code != grpc.StatusCode.UNAVAILABLE:
                    break
                warn(_not_yet(address, timing, details, hint))
    raise LineError(
        f"the server at {address} says nothing of the run for {timing.reconnect:g} s: {cause}{hint}"
    )


def _not_yet(address: str, timing: Timing, details: str, hint: str) -> str:
    """Says why a first attempt has failed: a wrong port or certificate will not get better."""
    limit = f"trying again for {timing.reconnect:g} s"
    why = "nobody listens there" if details.endswith("Connection refused") else f"{details}{hint}"
    return f"the server at {address} cannot be reached yet, {limit}: {why}"


def _channel(address: str, certificates: Certificates | None, options: list[tuple[str, int]]) -> grpc.Channel:
    if certificates is None:
        # A proxy of the environment would carry plain text off this machine.
        return grpc.insecure_channel(address, [*options, ("grpc.enable_http_proxy", 0)])
    return grpc.secure_channel(address, certificates.for_client(), options)


def _metadata(client: str, token: str | None) -> list[tuple[str, str | bytes]]:
    shown: list[tuple[str, str | bytes]] = [("authorization", f"Bearer {token}")] if token else []
    return [("client-bin", client.encode()), *own_versions(), *shown]


class Membership:
    """A client's session at the server; a context manager that joins and leaves.

    Args:
        address: The server's `HOST:PORT`.
        client: Who joins.
        agreement: What it takes as agreed; said to the server, which compares.
        greeting: What else the server is told.
        token: The client's token; none is only allowed without TLS.
        certificates: The client's certificate and whom it trusts; none for plain text on this machine.
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
        token: str | None = None,
        certificates: Certificates | None = None,
        timing: Timing | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        require_safe(address, insecure=certificates is None, setting="--server")
        if certificates is not None and not token:
            raise ValueError("with TLS a client has a token too")
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
        options = self.timing.options(agreement.largest + 2**16)
        self._hint = _PLAIN if certificates is None else _REFUSED
        self._channel = _channel(address, certificates, options)
        self._metadata = _metadata(client, token)
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
            self._channel.close()
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
        self._channel.close()
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
                raise LineError(f"the server has given no sign of life for {self.timing.answer:g} s")
        if found[0].kind == Kind.PLAN:  # the server keeps it, and others wait for theirs, until it hears so
            self._link.beat()
        return found

    def _stay(self) -> None:
        """Connects, and connects again, until the session is over."""
        pause = _FIRST_PAUSE
        try:
            while not self._left.is_set():
                down = self._link.down_since
                try:
                    self._converse()
                except grpc.RpcError as error:
                    self._judge(error)
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

    def _judge(self, error: Any) -> None:
        """Raises what the end of a connection means, if it means more than that there is to be another."""
        code, details = error.code(), printable(error.details() or "")
        if code == grpc.StatusCode.FAILED_PRECONDITION:
            raise RefusedError(f"the server refuses: {details}")
        if code == grpc.StatusCode.ABORTED:
            raise SessionOverError(f"the server has ended the session: {details}")
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise RefusedError(f"a message is too large: {details}")
        since = self._link.down_since
        if since is not None and time.monotonic() - since >= self.timing.reconnect:
            told = f"the server cannot be reached for {self.timing.reconnect:g} s: {details}"
            raise LineError(told + self._hint)
        if not self._session and not self._warned:
            self._warned = True
            self._warn(_not_yet(self._address, self.timing, details, self._hint))

    def _converse(self) -> None:
        """Holds one connection, until it ends.

        Raises:
            grpc.RpcError: How it ended.
            FrameError: The server sent what was not agreed.
        """
        connections: SimpleQueue[int] = SimpleQueue()  # a number once welcome, 0 if it never comes to it
        converse = self._channel.stream_stream(f"/{SERVICE}/{METHOD}", request_serializer=list.pop)
        call = converse(self._outgoing(connections), metadata=self._metadata)
        connection = 0
        try:
            for data in call:
                if not connection:
                    connection = self._welcomed(data)
                    connections.put(connection)
                    self._joined.set()
                else:
                    self._accept(connection, data)
                del data  # or it is kept until there is another
        finally:
            connections.put(0)
            if connection:
                self._link.disconnect(connection)
            call.cancel()

    def _accept(self, connection: int, data: bytes) -> None:
        try:
            accept(self._link, connection, data, self._agreement)
        except FrameError as error:
            raise FrameError(f"the server sent what was not agreed: {error}") from None

    def _outgoing(self, connections: SimpleQueue[int]) -> Iterator[list[bytes]]:
        said: dict[str, JSON] = {
            **self._greeting,
            "session": self._session,
            "arrived": self._link.arrived,
        }
        yield [pack(Header(Kind.HELLO), frame.encode(Message({}, said)).buffers())]
        if connection := connections.get():
            yield from self._link.outgoing(connection)

    def _welcomed(self, data: bytes) -> int:
        header, body = unpack(data)
        values = dict(frame.decode(frame.split(body), Message).values)
        session, arrived = values.pop("session", None), values.pop("arrived", None)
        if header.kind != Kind.WELCOME or not isinstance(session, str) or not isinstance(arrived, int):
            raise FrameError("the server does not begin with a welcome")
        if not self._session:
            self._session, self.welcome = session, values
        return self._link.connect(arrived)


class GrpcLine:
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
        raise FrameError(f"the server says {header.kind.name} in the middle of a turn")


class TurnOverError(LineError):
    """The server has ended a client's turn, and expects nothing more of it."""
