"""Addresses and secrets: what is refused before anybody is spoken with."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support import refused

from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.transport.credentials import Tokens, read_token, require_safe


@pytest.mark.claim("security_review#plain-text")
def test_without_tls_nothing_leaves_the_machine() -> None:
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        require_safe(address, insecure=True, setting="--listen")
    for address in ("0.0.0.0:1", "10.0.0.1:1", "example.org:1", "[::]:1"):
        require_safe(address, insecure=False, setting="--listen")
        with refused(ConfigurationError, "not_local", at="--listen", values=[address.rpartition(":")[0]]):
            require_safe(address, insecure=True, setting="--listen")
    for address in ("localhost", "localhost:99999", "localhost:x"):
        with refused(
            ConfigurationError, "wrong_form", at="--listen", values=["HOST:PORT", 65535, repr(address)]
        ):
            require_safe(address, insecure=True, setting="--listen")


@pytest.mark.parametrize("port", ["65536", "9" * 5000, "-1", "+1", "\u0661", ""])
def test_a_port_is_a_number_that_there_is(port: str) -> None:
    with refused(ConfigurationError, "wrong_form", at="--listen", values=["HOST:PORT", 65535]):
        require_safe(f"127.0.0.1:{port}", insecure=False, setting="--listen")


@pytest.mark.claim("SECURITY#readable-credentials")
def test_files_of_secrets_that_others_may_read_are_not_read(tmp_path: Path) -> None:
    tokens, own = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text("# all\nnorth one\nsouth side two\n")
    own.write_text("one\n")
    for path in (tokens, own):
        path.chmod(0o600)
    known = Tokens.read(tokens)
    assert known.clients == ("north", "south side")
    assert known.accept("south side", "two")
    assert not known.accept("south", "two")
    assert not known.accept("north", "two")
    assert read_token(own) == "one"
    own.chmod(0o640)
    with refused(ConfigurationError, "not_secret", values=[own, "(mode 640)"]):
        read_token(own)
    tokens.write_text("north\n")
    with refused(DataError, "malformed_data", at="tokens", values=["line 1"]):
        Tokens.read(tokens)


@pytest.mark.claim("federation#wrong-tokens")
def test_tokens_that_cannot_be_read_change_nothing_until_they_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a file that is being copied, or that was copied and may be read by all."""
    tokens = tmp_path / "tokens"
    tokens.write_text("north one\nsouth two\n")
    tokens.chmod(0o600)
    known = Tokens.read(tokens)
    for nothing in ("", "\n"):
        tokens.write_text(nothing)
        assert known.clients == ("north", "south")
    tokens.write_text("no token\nin\nthis\n")
    assert known.clients == ("north", "south")
    tokens.write_text("south two\n")
    tokens.chmod(0o644)
    assert known.clients == ("north", "south")
    empty, wrong, open_to_all = [error for each in caplog.records for error in each.args or ()]
    assert isinstance(empty, DataError) and isinstance(wrong, DataError)
    assert (empty.code, empty.line) == ("missing", None)
    assert (wrong.code, wrong.line) == ("malformed_data", 2)
    assert isinstance(open_to_all, ConfigurationError)
    assert open_to_all.code == "not_secret"
    assert "chmod 600" in str(open_to_all)
    tokens.chmod(0o600)
    assert known.clients == ("south",)
    assert not known.accept("north", "one")


@pytest.mark.claim("federation#tokens-read-again")
def test_a_file_that_a_disk_fails_to_give_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else who was revoked in it would stay until it is written once more."""
    tokens = tmp_path / "tokens"
    tokens.write_text("north one\nsouth two\n")
    tokens.chmod(0o600)
    known = Tokens.read(tokens)
    tokens.write_text("south two\n")

    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(Path, "read_bytes", fail)
        assert [known.clients, known.clients] == [("north", "south")] * 2
    assert known.clients == ("south",)
    (told,) = caplog.records
    (error,) = told.args or ()
    assert isinstance(error, ConfigurationError) and error.code == "unreadable"
    assert os.strerror(errno.EIO) in str(error)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "wrong_form"),
        (b"one\ntwo\n", "wrong_form"),
        ("pass\u00e9".encode(), "wrong_form"),
        (bytes(range(128, 160)), "not_utf8"),
    ],
)
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with refused(ConfigurationError, code, at="--token", values=[path]):
        read_token(path)
