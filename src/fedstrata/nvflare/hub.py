"""The server's end of lines that lie over the cells of an NVFlare job."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event, Thread

from fedstrata.core.errors import FedstrataError, LineError, RefusedError, SessionOverError
from fedstrata.core.types import JSON
from fedstrata.nvflare.job_cell import JobCell, Request, Topic
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.hub import Hub
from fedstrata.transport.members import Greeting, Member, read_greeting
from fedstrata.transport.timing import Timing

_logger = logging.getLogger(__name__)
_SILENCE = 3
"""Signs of life that a client may leave out before its connection counts as broken."""


@dataclass
class _Connection:
    """A client's connection.

    Attributes:
        name: What only its two ends know it by.
        cell: The client's.
        member: Its session.
        number: The connection's number at its link.
        heard: When the client last gave a sign of life, by `time.monotonic`.
        begun: Whether it knows that it is welcome, and may be sent messages.
    """

    name: str
    cell: str
    member: Member
    number: int
    heard: float = field(default_factory=time.monotonic)
    begun: bool = False


class CellHub(Hub):
    """The server's end of all lines.

    Args:
        cell: The cell of the job at the server.
        sites: The cell of the job at each client that may join.
        agree: Returns what is agreed with the client that greets so, or refuses it (`RefusedError`).
        timing: How long to wait.
        welcome: Returns what a client is told when its session begins.
        settings: What is said of the run to a client before it joins.
    """

    def __init__(
        self,
        cell: JobCell,
        sites: Mapping[str, str],
        agree: Callable[[str, Greeting], Agreement],
        *,
        timing: Timing,
        welcome: Callable[[str], Mapping[str, JSON]],
        settings: Mapping[str, JSON],
    ) -> None:
        super().__init__(agree, timing=timing, welcome=welcome, settings=settings)
        self._cell, self._sites = cell, sites
        self._connections: dict[str, _Connection] = {}  # the present one of each client
        self._closed = Event()

    def listen(self) -> None:
        """Begins to accept clients."""
        answers = {
            Topic.SETTINGS: self._tell_settings,
            Topic.REFUSED: self._hear_refusal,
            Topic.HELLO: self._greet,
            Topic.ALIVE: self._hear_sign,
            Topic.MESSAGE: self._hear,
        }
        for topic, respond in answers.items():
            self._cell.answer(topic, respond)
        Thread(target=self._watch, name="signs of life", daemon=True).start()

    def _close(self, seconds: float) -> None:
        self._closed.set()

    def _client(self, request: Request) -> str:
        """Returns who asks: NVFlare's server has held its name and its cell against its token.

        Raises:
            RefusedError: It is nobody who may join.
        """
        for client, cell in self._sites.items():
            if request.origin == cell and request.name == client:
                return client
        raise RefusedError(f"{request.origin!r} is no client of this run", code="unknown_name")

    def _tell_settings(self, request: Request) -> tuple[str, bytes]:
        self._client(request)
        return "", self._settings

    def _hear_refusal(self, request: Request) -> tuple[str, bytes]:
        self._refuses(self._client(request))
        return "", b""

    def _greet(self, request: Request) -> tuple[str, bytes]:
        """Begins a connection."""
        client = self._client(request)
        greeting, session, arrived = read_greeting(client, request.data)
        try:
            member = self._admit(client, greeting, session)
        except LineError as error:
            raise SessionOverError(str(error)) from None
        except RefusedError as error:
            _logger.warning("%s", error)
            raise
        number = member.link.connect(arrived if session else 0)
        connection = _Connection(secrets.token_hex(16), request.origin, member, number)
        with self._changed:
            self._connections[client] = connection
        return connection.name, self._welcome_of(member)

    def _connection(self, request: Request) -> _Connection:
        """Returns the connection that a request is of.

        Raises:
            SessionOverError: It is over.
            FedstrataError: So is the session, for a reason that stays.
        """
        client = self._client(request)
        with self._changed:
            connection = self._connections.get(client)
            if connection is None or connection.name != request.connection:
                raise LineError("the connection is over")
            connection.heard = time.monotonic()
        if (error := connection.member.link.error) is not None:
            raise SessionOverError(str(error)) if isinstance(error, LineError) else error
        return connection

    def _hear_sign(self, request: Request) -> tuple[str, bytes]:
        """Hears that a client is there; the first time it knows that it is welcome, and is sent messages."""
        connection = self._connection(request)
        with self._changed:
            first, connection.begun = not connection.begun, True
        if first:
            Thread(target=self._send, args=(connection,), name="line", daemon=True).start()
        return "", b""

    def _hear(self, request: Request) -> tuple[str, bytes]:
        connection = self._connection(request)
        self._take_in(connection.member, connection.number, request.data)
        return "", b""

    def _send(self, connection: _Connection) -> None:
        """Sends what is to travel on a connection."""
        link, seconds = connection.member.link, self.timing.reconnect
        try:
            self._cell.send(link, connection.number, connection.cell, connection.name, seconds)
        except FedstrataError as error:
            _logger.info("a connection of client %s is over: %s", connection.member.client, error)
        finally:
            link.disconnect(connection.number)

    def _watch(self) -> None:
        """Ends the connections of clients that give no sign of life."""
        while not self._closed.wait(self.timing.keepalive / 2):
            latest = time.monotonic() - _SILENCE * self.timing.keepalive
            with self._changed:
                for connection in self._connections.values():
                    if connection.heard < latest:
                        connection.member.link.disconnect(connection.number)
