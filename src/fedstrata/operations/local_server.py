"""A small HTTP server for this machine alone: who knows its token may look, and nobody may change anything.

Its address has a random token in it, since whoever has an account on a machine may connect to its loopback
addresses. What is asked under another name than the machine's own is not answered either: the page of a
stranger could otherwise have its name point here, and have a browser ask for it.
"""

import hmac
import logging
import secrets
import socket
import socketserver
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import monotonic
from types import MappingProxyType
from typing import Any, Self

from fedstrata.transport.addresses import place_of, taken
from fedstrata.transport.credentials import is_loopback, require_safe

_logger = logging.getLogger(__name__)
_SILENT = 10.0
"""Seconds for which a connection may be silent."""
_LONGEST = 30.0
"""Seconds for which there may be a connection, whatever is sent on it."""
_MOST = 64
"""Connections that there may be at a time."""
_CHECK = 0.1
"""Seconds that it takes at most to end."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer: nothing is kept, nothing is loaded from elsewhere, and nobody is told the address."""

HTML, JSON_TEXT, SCRIPT = "text/html; charset=utf-8", "application/json", "text/javascript; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """What is answered to a request.

    Attributes:
        body: Its content.
        kind: The content's type.
        status: The status of HTTP.
        headers: Further headers.
    """

    body: bytes
    kind: str
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


Route = Callable[[Mapping[str, str]], Answer]
"""Answers a request, given its headers by their names in small letters."""


class LocalServer:
    """Answers on a loopback address; a context manager within which it does so, on threads of its own.

    Args:
        address: `HOST:PORT`, loopback; port 0 for any that is free.
        secret: What is answered behind the token, by the path behind it.
        public: What is answered without a token, by path: to everybody on this machine.
        setting: Where the address was set, for messages.

    Attributes:
        url: The address with the token; ends with a slash.
        place: `HOST:PORT`, with the port that was taken.

    Raises:
        ConfigurationError: The address is not of this machine alone, or none.
        LineError: It is taken.
    """

    def __init__(
        self,
        address: str,
        secret: Mapping[str, Route],
        public: Mapping[str, Route] = MappingProxyType({}),
        *,
        setting: str,
    ) -> None:
        require_safe(address, insecure=True, setting=setting)
        token = secrets.token_urlsafe(32)
        routes = _Routes(token, dict(secret), dict(public))
        try:
            family, place = place_of(address)
            self._server = _Server(family, place, type("_Routed", (_Handler,), {"routes": routes}))
        except OSError:
            raise taken(address) from None
        self.place = f"{address.rpartition(':')[0]}:{self._server.server_address[1]}"
        self.url = f"http://{self.place}/{token}/"
        self._thread = Thread(
            target=self._server.serve_forever, args=(_CHECK,), name="local server", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self) -> None:
        """Waits until it has ended, which it does not by itself."""
        self._thread.join()


@dataclass(frozen=True)
class _Routes:
    """What is answered where."""

    token: str
    secret: Mapping[str, Route]
    public: Mapping[str, Route]

    def find(self, path: str) -> Route | None:
        """Returns what answers for a path; the token is compared in constant time."""
        first, slash, rest = path.removeprefix("/").partition("/")
        if hmac.compare_digest((first + slash).encode(), f"{self.token}/".encode()):
            return self.secret.get(rest)
        return self.public.get(path)


class _Server(ThreadingHTTPServer):
    """A server of IPv4 or IPv6 whose threads end with the process."""

    daemon_threads = True

    def __init__(
        self, family: socket.AddressFamily, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]
    ) -> None:
        self.address_family = family
        self._begun: dict[Any, float] = {}  # when each connection was, oldest first
        super().__init__(place, handler)

    def server_bind(self) -> None:
        """Takes the address, and asks no name server what this machine is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Takes a connection; the oldest ones end that are too many, so that none keeps others out."""
        self._begun[request] = monotonic()
        for oldest in list(self._begun)[:-_MOST]:
            self._end(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Ends connections that have been there for too long."""
        for request, begun in list(self._begun.items()):
            if monotonic() - begun >= _LONGEST:
                self._end(request)

    def _end(self, request: Any) -> None:
        self._begun.pop(request, None)
        with suppress(OSError):  # it has just ended by itself
            request.shutdown(socket.SHUT_RDWR)  # of which its thread hears, and closes it

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        self._begun.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a connection that has ended before its answer."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    routes: _Routes
    timeout = _SILENT
    server_version, sys_version = "fedstrata", ""

    def do_GET(self) -> None:
        """Answers a request."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answers a request for headers."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        route = self.routes.find(self.path.partition("?")[0]) if self._is_for_this_machine() else None
        if route is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            answer = route({name.lower(): value for name, value in self.headers.items()})
        except Exception as error:  # whatever it is: its text may hold what is not for here
            _logger.warning("a request could not be answered (%s)", type(error).__name__)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(answer.body)

    def _is_for_this_machine(self) -> bool:
        host, _, port = self.headers.get("Host", "").rpartition(":")
        return is_loopback(host if host and port.isdigit() else self.headers.get("Host", ""))

    def end_headers(self) -> None:
        """Ends the headers, also of an error, with those that every answer has."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the address of a request has the token in it."""
