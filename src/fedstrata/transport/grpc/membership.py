"""A client's session over a gRPC stream, and what a server says before one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc

from fedstrata.core.errors import RefusedError, SessionOverError, printable
from fedstrata.core.types import JSON, Message
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.credentials import Certificates, require_safe
from fedstrata.transport.grpc.ending import code_of
from fedstrata.transport.header import METHOD, REFUSED, SERVICE, SETTINGS
from fedstrata.transport.membership import Membership, cause_of, not_yet, unreachable
from fedstrata.transport.timing import Timing
from fedstrata.transport.versions import own_versions, require_same_versions
from fedstrata.wire import frame

_SETTINGS_BYTES = 2**20
"""Bytes of what a server says of the run."""


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
                    raise RefusedError(f"the server refuses: {details}", code=code_of(error)) from None
                if code == grpc.StatusCode.UNIMPLEMENTED:
                    message = f"what listens at {address} is no server of fedstrata"
                    raise RefusedError(message, code="wrong_server") from None
                if code != grpc.StatusCode.DEADLINE_EXCEEDED or not cause:  # it says how long, and not why
                    cause = details
                if waits or code != grpc.StatusCode.UNAVAILABLE:
                    break
                warn(not_yet(address, timing, details, hint))
    why = cause_of(cause, hint)
    message = f"the server at {address} says nothing of the run for {timing.reconnect:g} s: {why}"
    raise unreachable(message, cause)


def _channel(address: str, certificates: Certificates | None, options: list[tuple[str, int]]) -> grpc.Channel:
    if certificates is None:
        # A proxy of the environment would carry plain text off this machine.
        return grpc.insecure_channel(address, [*options, ("grpc.enable_http_proxy", 0)])
    return grpc.secure_channel(address, certificates.for_client(), options)


def _metadata(client: str, token: str | None) -> list[tuple[str, str | bytes]]:
    shown: list[tuple[str, str | bytes]] = [("authorization", f"Bearer {token}")] if token else []
    return [("client-bin", client.encode()), *own_versions(), *shown]


class GrpcMembership(Membership):
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
        hint = _PLAIN if certificates is None else _REFUSED
        super().__init__(address, client, agreement, greeting=greeting, hint=hint, timing=timing, warn=warn)
        options = self.timing.options(agreement.largest + 2**16)
        self._channel = _channel(address, certificates, options)
        self._metadata = _metadata(client, token)

    def _close(self) -> None:
        self._channel.close()

    def _converse(self) -> None:
        try:
            self._hold_stream()
        except grpc.RpcError as error:
            self._judge(error)

    def _judge(self, error: Any) -> None:
        """Raises what the end of a connection means, if it means more than that there is to be another."""
        code, details = error.code(), printable(error.details() or "")
        if code == grpc.StatusCode.FAILED_PRECONDITION:
            raise RefusedError(f"the server refuses: {details}", code=code_of(error))
        if code == grpc.StatusCode.ABORTED:
            raise SessionOverError(f"the server has ended the session: {details}")
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise RefusedError(f"a message is too large: {details}", code="too_large")
        self._wait_for_another(details)

    def _hold_stream(self) -> None:
        """Holds one stream, until it ends.

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
                else:
                    self._accept(connection, data)
                del data  # or it is kept until there is another
        finally:
            connections.put(0)
            if connection:
                self._link.disconnect(connection)
            call.cancel()

    def _outgoing(self, connections: SimpleQueue[int]) -> Iterator[list[bytes]]:
        yield [self._hello()]
        if connection := connections.get():
            yield from self._link.outgoing(connection)
