"""Options and helpers of the verbs that speak with other processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from fedstrata.core.types import JSON
    from fedstrata.engine.agreeing import Agreements
    from fedstrata.transport.credentials import Certificates, Tokens
    from fedstrata.transport.hub import Hub
    from fedstrata.transport.membership import Membership
    from fedstrata.transport.timing import Timing

LOOPBACK = "127.0.0.1:7447"
CACHE_MEGABYTES = 1024
_TLS = "certificate, key and authority"

Certificate = Annotated[Path | None, typer.Option(help="This side's certificate, PEM.", metavar="FILE")]
Key = Annotated[
    Path | None, typer.Option(help="Its private key, PEM; readable by you alone.", metavar="FILE")
]
Authority = Annotated[
    Path | None, typer.Option(help="Certificate that signed those of the other side, PEM.", metavar="FILE")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS; only between processes of one machine.")
]
Listen = Annotated[str, typer.Option(help="Address to listen on.", metavar="HOST:PORT")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="A client and its token in each line; readable by you alone.", metavar="FILE"),
]
Clients = Annotated[
    str | None,
    typer.Option(help="Who takes part, if not all that have a token.", metavar="ID,ID", show_default=False),
]
Client = Annotated[str, typer.Option(help="This client's name.", metavar="ID", show_default=False)]
Server = Annotated[str, typer.Option(help="The server's address.", metavar="HOST:PORT")]
Token = Annotated[Path | None, typer.Option(help="A file with this client's token alone.", metavar="FILE")]
Megabytes = Annotated[int, typer.Option(help="Size of a message at most.", min=1, max=2047)]
Deadline = Annotated[
    float, typer.Option(help="Seconds to wait for an answer before the other side is given up.", min=1.0)
]
Reconnect = Annotated[
    float, typer.Option(help="Seconds for the other side to come back after a connection broke.", min=0.1)
]
Keepalive = Annotated[
    float, typer.Option(help="Seconds between signs of life of an idle connection.", min=0.1)
]
Delay = Annotated[
    float, typer.Option(help="Seconds to hold back every message, as a slow network would.", min=0.0)
]
CacheMegabytes = Annotated[
    float, typer.Option(help="Memory for keys and values of all clients together.", min=0.001)
]


def certificates_of(
    certificate: Path | None, key: Path | None, authority: Path | None, *, insecure: bool
) -> Certificates | None:
    """Returns the certificates; none where plain text was asked for.

    Raises:
        ConfigurationError: Some are missing, or both or neither were asked for.
    """
    from fedstrata.transport.credentials import Certificates  # noqa: PLC0415 - heavy

    if insecure:
        if certificate or key or authority:
            raise ConfigurationError([Problem("--insecure", f"has no use for {_TLS}")])
        return None
    if not (certificate and key and authority):
        message = f"needed: {_TLS}; or --insecure, between processes of one machine"
        raise ConfigurationError([Problem("--certificate", message)])
    return Certificates(certificate, key, authority)


@dataclass(frozen=True)
class Guests:
    """Who may join a server, and how they show who they are.

    Attributes:
        names: Their names.
        tokens: Their tokens; none where there is no TLS.
        certificates: The server's certificate and whom it trusts; none without TLS.
    """

    names: tuple[str, ...]
    tokens: Tokens | None
    certificates: Certificates | None

    def hub(
        self,
        agreements: Agreements,
        timing: Timing,
        welcome: Callable[[str], Mapping[str, JSON]],
        settings: Mapping[str, JSON] | None = None,
    ) -> Hub:
        """Returns the server's end of their lines.

        Args:
            agreements: What is agreed with each of them.
            timing: How long to wait.
            welcome: Returns what a client is told when its session begins.
            settings: What is said of the run to a client before it joins.
        """
        from fedstrata.transport.hub import Hub  # noqa: PLC0415 - heavy

        return Hub(
            agreements,
            largest=agreements.largest,
            clients=self.names,
            tokens=self.tokens,
            certificates=self.certificates,
            timing=timing,
            welcome=welcome,
            settings=settings,
        )


def guests_of(
    listen: str,
    tokens: Path | None,
    clients: str | None,
    certificate: Path | None,
    key: Path | None,
    authority: Path | None,
    *,
    insecure: bool,
) -> Guests:
    """Returns who may join a server that listens on an address, by the options of these names.

    Raises:
        ConfigurationError: Something would leave the machine in plain text, certificates are missing, no
            client is named, a name comes twice or has no token, or there is TLS without tokens.
    """
    from fedstrata.transport.credentials import Tokens, require_safe  # noqa: PLC0415 - heavy

    require_safe(listen, insecure=insecure, setting="--listen")
    certificates = certificates_of(certificate, key, authority, insecure=insecure)
    known = Tokens.read(tokens) if tokens is not None else None
    if certificates is not None and known is None:
        raise ConfigurationError([Problem("--tokens", "must be given: every client has a token of its own")])
    names = tuple(map(str.strip, clients.split(","))) if clients else known.clients if known else ()
    if not all(names) or not names:
        raise ConfigurationError([Problem("--clients", "must name those who may join, with commas between")])
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ConfigurationError([Problem("--clients", f"names {twice[0]!r} twice")])
    if known and (without := [name for name in names if name not in known.clients]):
        message = f"{without[0]!r} has no token there; {', '.join(known.clients)} have"
        raise ConfigurationError([Problem("--tokens", message)])
    return Guests(names, known, certificates)


def secret_of(token: Path | None, certificates: Certificates | None) -> str | None:
    """Returns a client's token; none if it needs none.

    Raises:
        ConfigurationError: There is TLS without a token, or the token cannot be read.
    """
    from fedstrata.transport.credentials import read_token  # noqa: PLC0415 - heavy

    if certificates is not None and token is None:
        raise ConfigurationError([Problem("--token", "must be given: the file with this client's token")])
    return read_token(token) if token is not None else None


def sessions_of(
    server: str, client: str, secret: str | None, certificates: Certificates | None, timing: Timing
) -> Callable[[Any], Membership]:
    """Returns what makes a client's sessions at a server, given who has the agreement and the greeting."""
    from fedstrata.transport.membership import Membership  # noqa: PLC0415 - heavy

    return lambda own: Membership(
        server,
        client,
        own.agreement,
        greeting=own.greeting,
        token=secret,
        certificates=certificates,
        timing=timing,
        warn=lambda message: typer.echo(message, err=True),
    )


def timing_of(deadline: float, reconnect: float, keepalive: float, delay: float) -> Timing:
    """Returns how long to wait."""
    from fedstrata.transport.timing import Timing  # noqa: PLC0415 - heavy

    return Timing(answer=deadline, reconnect=reconnect, keepalive=keepalive, delay=delay)
