"""Options and helpers of the verbs that speak with other processes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from fedstrata.cli.options import configuration, number, on_command_line, seconds, sort_arguments
from fedstrata.core.errors import ConfigurationError, Problem, refused
from fedstrata.display import log
from fedstrata.transport.timing import MOST_MEGABYTES

if TYPE_CHECKING:
    from fedstrata.core.settings.source import Source
    from fedstrata.core.types import JSON
    from fedstrata.engine.remote.agreeing import Agreements
    from fedstrata.engine.remote.serving import Serving
    from fedstrata.transport.credentials import Certificates, Tokens
    from fedstrata.transport.grpc.hub import GrpcHub
    from fedstrata.transport.grpc.membership import GrpcMembership
    from fedstrata.transport.kit import Kit
    from fedstrata.transport.timing import Timing

LOOPBACK = "127.0.0.1:7447"
_SOON = 30
"""Days before its end at which a certificate is spoken of."""
_PEM = ("certificate", "key", "authority")
_TLS = "certificate, key and authority"


def _file(told: str) -> Any:
    return typer.Option(help=told, metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class Line:
    """The options of either side of a line between processes."""

    certificate: Annotated[Path | None, _file("This side's certificate, PEM.")] = None
    key: Annotated[Path | None, _file("Its private key, PEM; readable by you alone.")] = None
    authority: Annotated[Path | None, _file("Certificate that signed those of the other side, PEM.")] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS; only between processes of one machine.")
    ] = False
    deadline: Annotated[float, seconds("to wait for an answer before the other side is given up.", 1.0)] = 600
    reconnect: Annotated[float, seconds("for the other side to come back after a connection broke.")] = 60
    keepalive: Annotated[float, seconds("between signs of life of an idle connection.")] = 20
    delay: Annotated[float, seconds("to hold back every message, as a slow network would.", 0.0)] = 0
    kit: Any = None  # a `Kit`, whose module is heavy
    configuration: ClassVar[str] = ""

    @classmethod
    def of_kit(cls, kit: Kit) -> dict[str, Any]:
        """Returns the options that a kit gives; those of the command line go before them.

        Raises:
            ConfigurationError: It is the other side's.
        """
        return {name: kit.file(f"{name}.pem") for name in _PEM}

    def sorted(self, arguments: list[str] | None) -> tuple[Path | None, list[str]]:
        """Tells the configuration file, the kit's if none is named, from what overrides it."""
        file, overrides = sort_arguments(arguments or [])
        return file or self.own(self.configuration), overrides

    def own(self, name: str) -> Path | None:
        """Returns a file that every kit has; none if no kit was named.

        Raises:
            ConfigurationError: The kit that was named has lost it.
        """
        found = self.kept(name)
        if self.kit and found is None:
            message = f"{self.kit.folder / name} is gone: put it back, or name another file in its place"
            raise refused("", message, "not_found")
        return found

    def kept(self, name: str) -> Path | None:
        """Returns a file of the kit that was named; none if there is none, or no kit."""
        return self.kit.file(name) if self.kit else None

    def _certificates(self) -> Certificates | None:
        """Returns the certificates; none where plain text was asked for.

        Raises:
            ConfigurationError: Some are missing or wrong, or both or neither were asked for.
        """
        from fedstrata.transport.credentials import Certificates  # noqa: PLC0415 - heavy

        if self.insecure:
            if self.certificate or self.key or self.authority:
                raise refused("--insecure", f"has no use for {_TLS}", "conflict")
            return None
        if not (self.certificate and self.key and self.authority):
            message = f"needed: {_TLS}; or --insecure, between processes of one machine"
            raise refused("--certificate", message, "missing")
        return Certificates(self.certificate, self.key, self.authority)

    def _timing(self) -> Timing:
        """Returns how long to wait."""
        from fedstrata.transport.timing import Timing  # noqa: PLC0415 - heavy

        return Timing(
            answer=self.deadline, reconnect=self.reconnect, keepalive=self.keepalive, delay=self.delay
        )


@dataclass(frozen=True)
class Guests:
    """Who may join a server, and how they show who they are.

    Attributes:
        names: Their names.
        tokens: Their tokens; none where there is no TLS.
        certificates: The server's certificate and whom it trusts; none without TLS.
        timing: How long to wait.
    """

    names: tuple[str, ...]
    tokens: Tokens | None
    certificates: Certificates | None
    timing: Timing

    def hub(
        self,
        agreements: Agreements,
        welcome: Callable[[str], Mapping[str, JSON]],
        settings: Mapping[str, JSON] | None = None,
    ) -> GrpcHub:
        """Returns the server's end of their lines.

        Args:
            agreements: What is agreed with each of them.
            welcome: Returns what a client is told when its session begins.
            settings: What is said of the run to a client before it joins.
        """
        from fedstrata.transport.grpc.hub import GrpcHub  # noqa: PLC0415 - heavy

        return GrpcHub(
            agreements,
            largest=agreements.largest,
            clients=self.names,
            tokens=self.tokens,
            certificates=self.certificates,
            timing=self.timing,
            welcome=welcome,
            settings=settings,
        )


@dataclass(frozen=True, kw_only=True)
class ServerLine(Line):
    """The options of a server."""

    listen: Annotated[
        str | None,
        typer.Option(help=f"Address to listen on; {LOOPBACK} when not given.", metavar="HOST:PORT"),
    ] = None
    tokens: Annotated[Path | None, _file("A client and its token in each line; readable by you alone.")] = (
        None
    )
    clients: Annotated[
        str | None,
        typer.Option(
            help="Who takes part, if not all that have a token.", metavar="ID,ID", show_default=False
        ),
    ] = None
    cache_megabytes: Annotated[
        float, number("Memory for keys and values of all clients together.", 0.001, 2.0**30)
    ] = 1024
    megabytes: Annotated[int, typer.Option(help="Size of a message at most.", min=1, max=MOST_MEGABYTES)] = (
        1024
    )

    configuration: ClassVar[str] = "run.yaml"

    @classmethod
    def of_kit(cls, kit: Kit) -> dict[str, Any]:
        """Returns the options that a server's kit gives; raises as the line's."""
        if (client := kit.settings.client) is not None:
            message = f"{kit.folder} is the kit of site {client!r}, and not the server's"
            raise refused("", message, "wrong_kit")
        return {**super().of_kit(kit), "listen": kit.settings.listen, "tokens": kit.file("tokens")}

    @property
    def address(self) -> str:
        """The address to listen on."""
        return self.listen or LOOPBACK

    def serving(self, clients: tuple[str, ...], patience: float) -> Serving:
        """Returns how a run is served to clients."""
        from fedstrata.engine.remote.serving import Serving  # noqa: PLC0415 - heavy

        cache_bytes = int(self.cache_megabytes * 2**20)
        return Serving(clients, cache_bytes, self.megabytes * 2**20, patience)

    def names(self, usual: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns who takes part, sorted, as in a simulation: draws and sums go by that order.

        Args:
            usual: Who does if nobody is named.

        Raises:
            ConfigurationError: Nobody does, or a name comes twice.
        """
        names = tuple(map(str.strip, self.clients.split(",") if self.clients else usual))
        if not all(names) or not names:
            message = "must name those who may join, with commas between"
            raise refused("--clients", message, "missing")
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise refused("--clients", f"names {twice[0]!r} twice", "duplicate")
        return tuple(sorted(names))

    def timing(self) -> Timing:
        """Returns how long to wait where another carries the line, and has certificates of its own.

        Raises:
            ConfigurationError: Something is said of a line of gRPC, all of it at once.
        """
        of_grpc = ("certificate", "key", "authority", "insecure", "listen", "tokens")
        usual = {each.name: each.default for each in fields(self)}
        said = [name for name in of_grpc if getattr(self, name) != usual[name]]
        if said:
            message = "has no use with --on: NVFlare has its own connections and certificates"
            raise ConfigurationError([Problem(f"--{name}", message, code="no_effect") for name in said])
        return self._timing()

    def guests(self) -> Guests:
        """Returns who may join.

        Raises:
            ConfigurationError: Something would leave the machine in plain text, certificates are missing, no
                client is named, a name comes twice or has no token, or there is TLS without tokens.
        """
        from fedstrata.transport.credentials import Tokens, require_safe  # noqa: PLC0415 - heavy

        require_safe(self.address, insecure=self.insecure, setting="--listen")
        certificates = self._certificates()
        _warn_of_end(certificates)
        known = Tokens.read(self.tokens) if self.tokens is not None else None
        if certificates is not None and known is None:
            message = "must be given: every client has a token of its own"
            raise refused("--tokens", message, "missing")
        names = self.names(known.clients if known else ())
        if known and (without := [name for name in names if name not in known.clients]):
            message = f"{without[0]!r} has no token there; {', '.join(known.clients)} have"
            raise refused("--tokens", message, "unknown_name")
        return Guests(names, known, certificates, self._timing())


@dataclass(frozen=True, kw_only=True)
class ClientLine(Line):
    """The options of a client."""

    client: Annotated[str | None, typer.Option(help="This client's name.", metavar="ID")] = None
    server: Annotated[
        str | None,
        typer.Option(help=f"The server's address; {LOOPBACK} when not given.", metavar="HOST:PORT"),
    ] = None
    token: Annotated[Path | None, _file("A file with this client's token alone.")] = None
    home: Annotated[
        Path | None,
        typer.Option(
            help="The folder for what this client keeps between rounds and runs; fedstrata-client, or `home` "
            "in its kit, when not given."
        ),
    ] = None
    configuration: ClassVar[str] = "site.yaml"

    @classmethod
    def of_kit(cls, kit: Kit) -> dict[str, Any]:
        """Returns the options that a site's kit gives; raises as the line's."""
        if (client := kit.settings.client) is None:
            message = f"{kit.folder} is the kit of the server, and not of a site"
            raise refused("", message, "wrong_kit")
        own = {"client": client, "server": kit.settings.server, "home": kit.folder / "home"}
        return {**super().of_kit(kit), **own, "token": kit.file("token")}

    @property
    def name(self) -> str:
        """This client's name.

        Raises:
            ConfigurationError: Neither an option nor a kit says it.
        """
        if not self.client:
            raise ConfigurationError(
                [Problem("--client", "must be given: this client's name; or name a kit", code="missing")]
            )
        return self.client

    @property
    def address(self) -> str:
        """The server's address."""
        return self.server or LOOPBACK

    @property
    def place(self) -> Path:
        """The folder for what this client keeps."""
        return self.home or Path("fedstrata-client")

    def site_source(self, arguments: list[str] | None) -> tuple[Source, Path | None]:
        """Returns the site's configuration, and its file if it has one.

        What a kit's own file says of places is from the kit on.
        """
        file, overrides = self.sorted(arguments)
        source = configuration(file, overrides)
        data = source.values.get("data")
        if file is not None and file == self.kept(self.configuration) and isinstance(data, dict):
            from fedstrata.core.settings.data import with_places  # noqa: PLC0415 - heavy
            from fedstrata.core.settings.source import assign, flatten  # noqa: PLC0415 - heavy

            here = with_places(data, lambda place: str(file.parent / place))
            for path, place in flatten(here, "data."):
                if not on_command_line(source, path):
                    assign(source, path, place, source.origin(path))
        return source, file

    def sessions(self) -> Callable[[Any], GrpcMembership]:
        """Returns what makes a client's sessions, given who has the agreement and the greeting.

        Raises:
            ConfigurationError: Certificates are missing, there is TLS without a token, or it cannot be read.
        """
        from fedstrata.transport.grpc.membership import GrpcMembership  # noqa: PLC0415 - heavy

        name, (secret, certificates, timing) = self.name, self._access()
        _warn_of_end(certificates)
        return lambda own: GrpcMembership(
            self.address,
            name,
            own.agreement,
            greeting=own.greeting,
            token=secret,
            certificates=certificates,
            timing=timing,
            warn=_warn,
        )

    def settings(self, *, refused: bool = False) -> Mapping[str, Any]:
        """Returns what the server says of the run, or tells it that it is refused; raises as `sessions`."""
        from fedstrata.transport.grpc.membership import settings_of  # noqa: PLC0415 - heavy

        return settings_of(self.address, self.name, *self._access(), _warn, refused=refused)

    def _access(self) -> tuple[str | None, Certificates | None, Timing]:
        from fedstrata.transport.credentials import read_token  # noqa: PLC0415 - heavy

        certificates = self._certificates()
        if certificates is not None and self.token is None:
            message = "must be given: the file with this client's token"
            raise refused("--token", message, "missing")
        secret = read_token(self.token) if self.token is not None else None
        return secret, certificates, self._timing()


def _warn_of_end(certificates: Certificates | None) -> None:
    if certificates is not None and (left := certificates.days_left) < _SOON:
        _warn(f"{certificates.certificate} holds for {left:.1f} more days: fedstrata federation renew")


def _warn(message: str) -> None:
    log.tell(message, level=logging.WARNING, event="warning")
