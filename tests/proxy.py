"""A TCP proxy that cuts connections."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Lock, Thread


class CuttingProxy:
    """Passes bytes on, and cuts each of its first connections after so many.

    Args:
        address: Where to, `HOST:PORT`.
        allowed: Bytes that may pass on a connection, both ways together.
        cuts: How many connections are cut; those that come later stay.
    """

    def __init__(self, address: str, *, allowed: int, cuts: int) -> None:
        host, _, port = address.rpartition(":")
        self._target, self._allowed, self._left = (host, int(port)), allowed, cuts
        self._lock = Lock()
        self.cuts = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accepts no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listening.accept()[0]
            except OSError:
                return
            server = socket.create_connection(self._target)
            with self._lock:
                budget = [self._allowed if self._left > 0 else None]
                self._left -= 1
            for one, other in ((client, server), (server, client)):
                Thread(target=self._pass, args=(one, other, budget), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, budget: list[int | None]) -> None:
        try:
            while data := one.recv(4096):
                if budget[0] is not None:
                    budget[0] -= len(data)
                    if budget[0] <= 0:
                        other.sendall(data[: len(data) // 2])  # in the middle of a message
                        with self._lock:
                            self.cuts += 1
                        break
                other.sendall(data)
        except OSError:
            pass
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
