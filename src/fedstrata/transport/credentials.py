"""Who may speak with whom: addresses, certificates and tokens.

A client is known by two things, and must have both: a certificate, signed by the authority that the server
trusts, which names the client (as common name or as an alternative name); and a token, which only the server
and this client know. Tokens are never logged and never in a message. The server shows a certificate too, so a
client speaks with no other. Without TLS nothing leaves the machine: only loopback addresses are allowed, and
only where it was asked for.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import grpc

from fedstrata.core.errors import (
    ConfigurationError,
    DataError,
    FedstrataError,
    Problem,
    RefusedError,
    refused,
)
from fedstrata.core.files import bytes_in, secret_bytes
from fedstrata.core.settings.kit import is_port
from fedstrata.transport.authority import validities_of

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Certificates:
    """One side's certificate and what it trusts; PEM files.

    Attributes:
        certificate: Its own.
        key: Its private key; no other user may read the file.
        authority: Certificate of the authority that signed those of the other side.

    Raises:
        ConfigurationError: A file cannot be read or is not what it must be, others may read the key, or the
            certificate no longer holds.
    """

    certificate: Path
    key: Path
    authority: Path

    def __post_init__(self) -> None:
        self._read()  # for what is wrong to be told before anything is written

    @property
    def days_left(self) -> float:
        """For how many days the certificate still holds."""
        return _days_until(validities_of(self.certificate)[0][1])

    def for_server(self) -> grpc.ServerCredentials:
        """Returns what gRPC takes; every client must show a certificate.

        Raises:
            ConfigurationError: A file is no longer what it must be.
        """
        chain, key, authority = self._read()
        return grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)

    def for_client(self) -> grpc.ChannelCredentials:
        """Returns what gRPC takes.

        Raises:
            ConfigurationError: As for `for_server`.
        """
        chain, key, authority = self._read()
        return grpc.ssl_channel_credentials(authority, key, chain)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        contents = bytes_in(self.certificate), secret_bytes(self.key), bytes_in(self.authority)
        # gRPC would say of a file that is no PEM only that the other side cannot be reached.
        context, problems = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), []
        try:
            context.load_cert_chain(self.certificate, self.key, password="")
        except (ssl.SSLError, ValueError) as error:
            message = f"{self.certificate} and {self.key} are no certificate and its key, unencrypted PEM"
            mismatch = getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
            code = "conflict" if mismatch else "wrong_form"
            problems.append(Problem("--certificate", f"{message}{_reason(error)}", code=code))
        try:
            context.load_verify_locations(self.authority)
        except ssl.SSLError as error:
            message = f"{self.authority} is no certificate, PEM{_reason(error)}"
            problems.append(Problem("--authority", message, code="wrong_form"))
        if not problems:
            own, signers = validities_of(self.certificate)[:1], validities_of(self.authority)
            problems += _out_of_time("--certificate", self.certificate, own, "renew")
            problems += _out_of_time("--authority", self.authority, signers, "init")
        if problems:
            raise ConfigurationError(problems)
        return contents


def _out_of_time(
    setting: str, file: Path, validities: Sequence[tuple[datetime, datetime]], renewed_by: str
) -> list[Problem]:
    """Returns what is wrong with a file of certificates of which none holds now."""
    begins, ends = max(validities, key=lambda validity: validity[1])
    if any(_days_until(begin) <= 0 < _days_until(end) for begin, end in validities):
        return []
    message = f"held until {ends:%Y-%m-%d %H:%M} UTC; ask for a new one (fedstrata federation {renewed_by})"
    if early := _days_until(begins) > 0:
        message = f"holds from {begins:%Y-%m-%d %H:%M} UTC on; is the clock of this machine right?"
    return [Problem(setting, f"{file} {message}", code="not_yet_valid" if early else "expired")]


def _days_until(moment: datetime) -> float:
    return (moment - datetime.now(UTC)).total_seconds() / 86400


class Tokens:
    """The tokens of all clients, as the server knows them: by their hashes.

    Args:
        tokens: The token of each client.
        path: The file that they were read from, which is followed: whose token is no longer there is revoked.
    """

    def __init__(self, tokens: Mapping[str, str], path: Path | None = None) -> None:
        self._path, self._hashes, self._lock = path, _hashes(tokens), Lock()
        self._seen: tuple[int, ...] | None = None  # the file may be another by now than that of the tokens
        self._wrong = ""

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Reads a file of tokens; raises as `read_tokens`."""
        return cls(read_tokens(path), path)

    @property
    def clients(self) -> tuple[str, ...]:
        """Who has a token."""
        self._follow()
        return tuple(self._hashes)

    def accept(self, client: str, token: str) -> bool:
        """Whether a token is this client's; takes the same time whatever is wrong with it."""
        self._follow()
        hashes = self._hashes
        expected = hashes.get(client, bytes(32))
        return hmac.compare_digest(expected, _hash(token)) and client in hashes

    def no_longer(self, shown: Mapping[str, bytes]) -> set[str]:
        """Returns which clients have shown what is no longer their token.

        Args:
            shown: What `shown` returned of the token of each, by client.
        """
        self._follow()  # once for all of them: this is asked at every look at the lines
        hashes = self._hashes
        return {
            client for client, own in shown.items() if not hmac.compare_digest(hashes.get(client, b""), own)
        }

    @staticmethod
    def shown(token: str) -> bytes:
        """Returns what is kept of a token that a client has shown."""
        return _hash(token)

    def _follow(self) -> None:
        """Reads the file anew if there is another; one that cannot be followed leaves all as it was.

        It is read again until it can, since a disk may fail for a moment.
        """
        with self._lock:  # or a slow reader would put back what a faster one has found to be of before
            mark = _mark_of(self._path)
            if self._path is None or mark == self._seen:
                return
            try:
                tokens = read_tokens(self._path)
                if self._hashes and tokens and not tokens.keys() & self._hashes.keys():
                    sites = f"one of {', '.join(sorted(self._hashes))}"
                    raise DataError(self._path, "it is of other sites alone", expected=sites, code="conflict")
                self._hashes, self._seen, self._wrong = _hashes(tokens), mark, ""
            except (FedstrataError, OSError) as error:
                if str(error) != self._wrong:
                    self._wrong = str(error)
                    _logger.error("who may join stays as it was: %s", error)


def read_tokens(path: Path) -> dict[str, str]:
    """Reads a file with a client and its token in each line, parted by a blank.

    Raises:
        ConfigurationError: It cannot be read, or others may read it.
        DataError: A line is not of this form, a client is there twice, or there is nothing in it at all.
    """
    tokens: dict[str, str] = {}
    if not (text := _secret_text(path, "--tokens")).strip():  # as a file is that is being copied
        raise DataError(path, "it is empty", expected="CLIENT TOKEN", code="missing")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        client, _, token = line.strip().rpartition(" ")
        if not client.strip() or client.strip() in tokens or not _is_token(token):
            raise DataError(path, "no client and token of its own", line=number, expected="CLIENT TOKEN")
        tokens[client.strip()] = token
    return tokens


def _mark_of(path: Path | None) -> tuple[int, ...]:
    """Returns what tells a file from another of its name, or of another mode; nothing if there is none."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return ()
    return (found.st_ino, found.st_ctime_ns, found.st_size) if found else ()


def _hashes(tokens: Mapping[str, str]) -> dict[str, bytes]:
    return {client: _hash(token) for client, token in tokens.items()}


def read_token(path: Path) -> str:
    """Returns a client's own token.

    Raises:
        ConfigurationError: The file cannot be read or holds no token, or others may read it.
    """
    token = _secret_text(path, "--token").strip()
    if not _is_token(token):
        message = (
            f"{path} holds no token; it must have one alone: ASCII letters, digits and signs, without blanks"
        )
        raise refused("--token", message, "wrong_form")
    return token


def _secret_text(path: Path, setting: str) -> str:
    try:
        return secret_bytes(path).decode()
    except UnicodeDecodeError:
        raise refused(setting, f"{path} is no text", "not_utf8") from None


def _is_token(text: str) -> bool:
    """Whether a text may stand in the header of a request."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _reason(error: Exception) -> str:
    """Returns what OpenSSL calls an error, where it has a name for it."""
    reason = getattr(error, "reason", None)
    return f" ({str(reason).replace('_', ' ').lower()})" if reason else ""


def require_named(client: str, properties: Mapping[str, Any]) -> None:
    """Checks that a certificate is this client's.

    Args:
        client: Who it is said to be.
        properties: What gRPC knows of the other side of a connection (`auth_context`).

    Raises:
        RefusedError: It is somebody else's.
    """
    found = [
        name.decode(errors="replace")
        for key in ("x509_common_name", "x509_subject_alternative_name")
        for name in properties.get(key, ())
    ]
    if client not in found:
        named = ", ".join(dict.fromkeys(found)) or "nobody"
        raise RefusedError(f"the certificate names {named}, not client {client!r}", code="wrong_certificate")


def require_safe(address: str, *, insecure: bool, setting: str) -> None:
    """Checks that nothing leaves the machine in plain text.

    Args:
        address: `HOST:PORT`; a host that is no number is only safe if it is `localhost`.
        insecure: Whether there is to be no TLS.
        setting: Where the address was set.

    Raises:
        ConfigurationError: It would, or the address is none.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not is_port(port):
        raise refused(setting, f"must be HOST:PORT, a port up to 65535, not {address!r}", "wrong_form")
    if insecure and not is_loopback(host):
        message = f"{host} is not on this machine, and without TLS only loopback addresses are allowed"
        raise refused(setting, message, "not_local")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, without asking anybody."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
