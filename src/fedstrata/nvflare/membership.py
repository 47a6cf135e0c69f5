"""A client's session over the cells of an NVFlare job, and what the server says before one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import Event, Thread

from fedstrata.core.errors import FedstrataError, FrameError, LineError, RefusedError, SessionOverError
from fedstrata.core.types import JSON, Message
from fedstrata.nvflare.job_cell import SERVER, JobCell, Request, Topic
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.membership import Membership, not_yet, unreachable
from fedstrata.transport.timing import Timing
from fedstrata.wire import frame

_PAUSE = 0.5
"""Seconds between two questions to a server that is not there yet."""
_ANSWER = 30.0
"""Seconds that a server which is there may take to answer a greeting: it may be at work."""
_ADDRESS = "the job's cell"


class CellMembership(Membership):
    """A client's session at the server; a context manager that joins and leaves.

    Args:
        cell: The cell of the job at this site.
        server: The cell of the job at the server.
        client: Who joins.
        agreement: What it takes as agreed; said to the server, which compares.
        greeting: What else the server is told.
        timing: How long to wait.
        warn: Told why the first attempt to join has failed, if it is made again.
    """

    def __init__(
        self,
        cell: JobCell,
        server: str,
        client: str,
        agreement: Agreement,
        *,
        greeting: Mapping[str, JSON],
        timing: Timing,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(_ADDRESS, client, agreement, greeting=greeting, timing=timing, warn=warn)
        self._cell, self._server = cell, server
        self._name, self._number = "", 0  # of the present connection
        self._broken = Event()
        cell.answer(Topic.MESSAGE, self._hear)

    def _close(self) -> None:
        self._broken.set()

    def _converse(self) -> None:
        ask = partial(self._cell.ask, self._server)
        try:
            name, welcome = ask(Topic.HELLO, self._hello(), seconds=_ANSWER)
        except SessionOverError:
            raise
        except LineError as error:
            return self._wait_for_another(str(error))
        self._broken = broken = Event()
        self._name, self._number = name, self._welcomed(welcome)
        sender = Thread(target=self._send, args=(name, self._number, broken), daemon=True)
        sender.start()
        try:
            while not broken.is_set():
                ask(Topic.ALIVE, connection=name, seconds=3 * self.timing.keepalive)
                broken.wait(self.timing.keepalive)
        except SessionOverError:
            raise
        except LineError:
            pass  # there is to be another connection
        finally:
            self._link.disconnect(self._number)

    def _send(self, name: str, number: int, broken: Event) -> None:
        """Sends what is to travel on a connection."""
        try:
            self._cell.send(self._link, number, self._server, name, self.timing.reconnect)
        except RefusedError as error:
            self._link.lose(error)
        except FedstrataError:
            pass  # it is told what has come of the session when it gives the next sign of life
        finally:
            broken.set()

    def _hear(self, request: Request) -> tuple[str, bytes]:
        """Takes in what comes: from the server's process of this job, of the connection that only it knows.

        NVFlare's server passes on whatever carries the token of that process, which all sites get to see.
        """
        if (request.origin, request.name) != (self._server, SERVER):
            raise RefusedError(f"{request.origin!r} is not the server of this job", code="wrong_server")
        if request.connection != self._name:
            raise LineError("the connection is over")
        try:
            self._accept(self._number, request.data)
        except FrameError as error:
            self._link.lose(error)
            self._broken.set()
            raise
        return "", b""


def settings_of(
    cell: JobCell, server: str, timing: Timing, warn: Callable[[str], None], *, refused: bool = False
) -> Mapping[str, JSON]:
    """Returns what a server says of the run to a client that is about to join it.

    Args:
        cell: The cell of the job at this site.
        server: The cell of the job at the server, whose run may begin later.
        timing: How long to wait.
        warn: Told why the first attempt has failed, if it is made again.
        refused: Whether it is told that the client does not join the run, by a rule of its own.

    Raises:
        RefusedError: The server does not know this client.
        LineError: It cannot be reached.
    """
    until, warned = time.monotonic() + timing.reconnect, False
    ask = partial(cell.ask, server, seconds=_ANSWER)
    while True:
        try:
            if refused:
                ask(Topic.REFUSED)
                return {}
            data = ask(Topic.SETTINGS)[1]
            return frame.decode(frame.split(data), Message).values
        except LineError as error:
            if time.monotonic() >= until:
                told = f"the server says nothing of the run for {timing.reconnect:g} s: {error}"
                raise unreachable(told, str(error)) from None
            if not warned:
                warn(not_yet(_ADDRESS, timing, str(error), ""))
            warned = True
        time.sleep(_PAUSE)
