"""Who may look at what a run tells on this machine, asked over real connections."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_requests import ask
from support import refused

from fedstrata.core.errors import ConfigurationError, LineError
from fedstrata.operations.local_server import HTML, Answer, LocalServer


def fails(headers: Mapping[str, str]) -> Answer:
    raise ValueError("a secret")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    secret = {"": lambda headers: Answer(b"the page", HTML), "wrong": fails}
    public = {"/open": lambda headers: Answer(b"for all", HTML)}
    with LocalServer("127.0.0.1:0", secret, public, setting="--port") as running:
        yield running


def test_who_knows_the_token_gets_the_page_and_nobody_keeps_it(server: LocalServer) -> None:
    heard = ask(server.url)
    headers = heard.headers
    assert (heard.status, heard.text) == (200, "the page")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert "Python" not in headers["Server"]
    head = ask(server.url, "HEAD")
    assert (head.status, head.text, head.headers["Content-Length"]) == (200, "", "8")
    assert ask(f"{server.url}?one=1").status == 200


@given(st.text(alphabet=st.characters(codec="latin-1", exclude_categories=["Cc", "Zs"]), max_size=60))
def test_nothing_is_told_without_the_token(server: LocalServer, guess: str) -> None:
    path = "/" + "".join(each if each.isascii() else f"%{ord(each):02X}" for each in guess)
    assert ask(f"http://{server.place}{path}").status == (200 if path.partition("?")[0] == "/open" else 404)


def test_what_is_near_the_token_is_not_enough(server: LocalServer) -> None:
    right, here = server.url, f"http://{server.place}"
    for url in (right[:-2], right[:-1], f"{right}another", f"{here}/", f"{here}/open/"):
        assert ask(url).status == 404, url
    assert ask(here + right.removeprefix(here).swapcase()).status == 404


@pytest.mark.claim("security_review#loopback")
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "", "[", "[::1"],
)
def test_a_name_that_is_not_this_machines_is_not_answered(server: LocalServer, host: str) -> None:
    """Else a stranger's page could have its own name lead here, and read what comes (DNS rebinding)."""
    assert ask(server.url, Host=host).status == 404
    assert ask(f"http://{server.place}/open", Host=host).status == 404


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "[::1]:8080", "127.0.0.1:9"])
def test_every_name_of_this_machine_is_answered(server: LocalServer, host: str) -> None:
    heard = ask(f"http://{server.place}/open", Host=host)
    assert (heard.status, heard.text) == (200, "for all")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_can_be_changed(server: LocalServer, method: str) -> None:
    heard = ask(server.url, method)
    assert heard.status == 501
    assert "the page" not in heard.text
    assert "Content-Security-Policy" in heard.headers


def test_a_page_that_fails_says_nothing_of_why(
    server: LocalServer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    heard = ask(f"{server.url}wrong")
    assert heard.status == 500
    assert "secret" not in heard.text
    (told,) = caplog.messages
    assert "(ValueError)" in told and "secret" not in told
    with socket.create_connection(("127.0.0.1", int(server.place.rpartition(":")[2]))) as connection:
        connection.sendall(b"\0\xff no HTTP\r\n\r\n")
        connection.recv(1)
    assert capfd.readouterr().err == ""


@pytest.fixture
def begun(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], socket.socket]]:
    """Returns connections on which a request has begun and does not end; none is silent for too long."""
    monkeypatch.setattr("fedstrata.operations.local_server._Handler.timeout", 3600.0)
    place = ("127.0.0.1", int(server.place.rpartition(":")[2]))
    with ExitStack() as stack:

        def begin() -> socket.socket:
            connection = stack.enter_context(socket.create_connection(place, timeout=20))
            connection.sendall(b"GET /open HTTP/1.0\r\nA: ")
            return connection

        yield begin


def test_who_holds_connections_keeps_nobody_out(
    server: LocalServer, begun: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And costs no thread for each: the oldest are ended."""
    monkeypatch.setattr("fedstrata.operations.local_server._MOST", 2)
    held = [begun() for _ in range(3)]
    assert held[0].recv(1) == b""
    assert ask(f"http://{server.place}/open").text == "for all"


def test_a_request_that_does_not_end_is_ended(
    begun: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.operations.local_server._LONGEST", 0.0)
    assert begun().recv(1) == b""


@pytest.mark.claim("security_review#loopback")
@pytest.mark.claim("SECURITY#beyond-loopback")
def test_an_address_that_others_could_reach_is_refused() -> None:
    for address, code in (
        ("0.0.0.0:0", "not_local"),
        ("10.0.0.1:9000", "not_local"),
        ("example.org:80", "not_local"),
        ("127.0.0.1", "wrong_form"),
    ):
        with refused(ConfigurationError, code, at="--operations"):
            LocalServer(address, {}, setting="--operations")


def test_an_address_that_is_taken_is_named(server: LocalServer) -> None:
    with refused(LineError, "in_use", values=[server.place]):
        LocalServer(server.place, {}, setting="--operations")
