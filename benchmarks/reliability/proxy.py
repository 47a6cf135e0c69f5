"""A TCP proxy that is a poor line: it holds bytes back, passes few at a time, and cuts connections."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from contextlib import suppress
from threading import Event, Thread

_PIECE = 4096
_UNDER_WAY = 64
"""Pieces that wait on a connection, one way; then the sender waits, as at the buffer of a router."""


class Proxy:
    """Passes bytes on, to one address.

    Args:
        address: Where to, `HOST:PORT`.
        lives: For each connection, in their order, how many bytes may pass before it is cut, both ways
            together; those that come later stay.
        delay: Seconds that a byte is on its way.
        megabits: That pass in a second, on each connection and each way; as many as there are if none.

    Attributes:
        address: Where it listens.
        connections: How many it has accepted.
        cuts: How many connections it has cut.
        passed: Bytes that have passed, both ways together.
    """

    def __init__(
        self,
        address: str,
        *,
        lives: Iterable[int] = (),
        delay: float = 0.0,
        megabits: float | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._target, self._lives, self._delay = (host, int(port)), iter(lives), delay
        self._piece_seconds = 0.0 if megabits is None else _PIECE * 8 / (megabits * 1e6)
        self.address, self.connections, self.cuts, self.passed = "", 0, 0, 0
        self._frozen = 0.0  # up to which connection nothing passes
        self._listening, self._over = Event(), asyncio.Event()
        self._thread = Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._listening.wait()

    def close(self) -> None:
        """Ends all connections, and accepts no more."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def freeze(self, *, later: bool = False) -> None:
        """Stops to pass bytes on the connections that there are, and closes none of them.

        Args:
            later: Whether those that come later are frozen as well.
        """
        self._frozen = math.inf if later else self.connections

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listening.set()
        await self._over.wait()
        server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes on what comes on a connection, both ways, until either end or the proxy ends it."""
        self.connections += 1
        number, writers = self.connections, [writer]
        with suppress(OSError):
            onward = await asyncio.open_connection(*self._target)
            writers.append(onward[1])
            life = _Life(next(self._lives, None))
            ways = ((reader, onward[1]), (onward[0], writer))
            tasks = [asyncio.ensure_future(self._pass(*way, life, number)) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for each in writers:
            each.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, life: _Life, number: int
    ) -> None:
        """Passes on what comes one way."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY)
        arriving = asyncio.ensure_future(self._read(reader, waiting))
        try:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(due - self._loop.time())
                if number <= self._frozen:
                    await self._over.wait()
                if life.spend(len(data)):
                    writer.write(data)
                    self.passed += len(data)
                elif data:  # in the middle of a message
                    writer.write(data[: len(data) // 2])
                    self.cuts += 1
                await writer.drain()
                if not data or life.spent:
                    return
        finally:
            arriving.cancel()

    async def _read(self, reader: asyncio.StreamReader, waiting: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Reads what comes one way, and says when it is at the other end; nothing at all when it is over."""
        free, data = 0.0, b"-"
        while data:
            try:
                data = await reader.read(_PIECE)
            except OSError:
                data = b""
            free = max(free, self._loop.time()) + self._piece_seconds * len(data) / _PIECE
            await waiting.put((free + self._delay, data))


class _Life:
    """How many bytes may yet pass on a connection.

    Args:
        allowed: So many; none for any number.
    """

    def __init__(self, allowed: int | None) -> None:
        self._left = allowed

    @property
    def spent(self) -> bool:
        """Whether the connection is to be cut."""
        return self._left is not None and self._left <= 0

    def spend(self, number: int) -> bool:
        """Whether so many may pass; counts them."""
        if self._left is not None:
            self._left -= number
        return not self.spent
