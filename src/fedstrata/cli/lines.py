"""Options and helpers of the verbs that speak with other processes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_origin, get_type_hints

import typer

from fedstrata.cli import log
from fedstrata.cli.options import number, seconds, sort_arguments, sort_files
from fedstrata.core.errors import ConfigurationError, Problem, refuse

if TYPE_CHECKING:
    from fedstrata.core.types import JSON
    from fedstrata.engine.agreeing import Agreements
    from fedstrata.transport.credentials import Certificates, Tokens
    from fedstrata.transport.hub import Hub
    from fedstrata.transport.kit import Kit
    from fedstrata.transport.membership import Membership
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
        return {option: kit.file(f"{name}.pem") for option, name in zip(_PEM, _PEM, strict=True)}

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
            raise ConfigurationError([Problem("", message)])
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
                raise ConfigurationError([Problem("--insecure", f"has no use for {_TLS}")])
            return None
        if not (self.certificate and self.key and self.authority):
            message = f"needed: {_TLS}; or --insecure, between processes of one machine"
            raise ConfigurationError([Problem("--certificate", message)])
        found = Certificates(self.certificate, self.key, self.authority)
        if found.days_left < _SOON:
            _warn(f"{self.certificate} holds for {found.days_left:.1f} more days: fedstrata federation renew")
        return found

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
    ) -> Hub:
        """Returns the server's end of their lines.

        Args:
            agreements: What is agreed with each of them.
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
    megabytes: Annotated[int, typer.Option(help="Size of a message at most.", min=1, max=2047)] = 1024

    configuration: ClassVar[str] = "run.yaml"

    @classmethod
    def of_kit(cls, kit: Kit) -> dict[str, Any]:
        """Returns the options that a server's kit gives; raises as the line's."""
        if (client := kit.settings.client) is not None:
            message = f"{kit.folder} is the kit of site {client!r}, and not the server's"
            raise ConfigurationError([Problem("", message)])
        return {**super().of_kit(kit), "listen": kit.settings.listen, "tokens": kit.file("tokens")}

    @property
    def address(self) -> str:
        """The address to listen on."""
        return self.listen or LOOPBACK

    def guests(self) -> Guests:
        """Returns who may join.

        Raises:
            ConfigurationError: Something would leave the machine in plain text, certificates are missing, no
                client is named, a name comes twice or has no token, or there is TLS without tokens.
        """
        from fedstrata.transport.credentials import Tokens, require_safe  # noqa: PLC0415 - heavy

        require_safe(self.address, insecure=self.insecure, setting="--listen")
        certificates = self._certificates()
        known = Tokens.read(self.tokens) if self.tokens is not None else None
        if certificates is not None and known is None:
            message = "must be given: every client has a token of its own"
            raise ConfigurationError([Problem("--tokens", message)])
        asked = self.clients.split(",") if self.clients else known.clients if known else ()
        names = tuple(map(str.strip, asked))
        if not all(names) or not names:
            message = "must name those who may join, with commas between"
            raise ConfigurationError([Problem("--clients", message)])
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise ConfigurationError([Problem("--clients", f"names {twice[0]!r} twice")])
        if known and (without := [name for name in names if name not in known.clients]):
            message = f"{without[0]!r} has no token there; {', '.join(known.clients)} have"
            raise ConfigurationError([Problem("--tokens", message)])
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
            raise ConfigurationError([Problem("", message)])
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
                [Problem("--client", "must be given: this client's name; or name a kit")]
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

    def sessions(self) -> Callable[[Any], Membership]:
        """Returns what makes a client's sessions, given who has the agreement and the greeting.

        Raises:
            ConfigurationError: Certificates are missing, there is TLS without a token, or it cannot be read.
        """
        from fedstrata.transport.membership import Membership  # noqa: PLC0415 - heavy

        name, (secret, certificates, timing) = self.name, self._access()
        return lambda own: Membership(
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
        from fedstrata.transport.membership import settings_of  # noqa: PLC0415 - heavy

        return settings_of(self.address, self.name, *self._access(), _warn, refused=refused)

    def _access(self) -> tuple[str | None, Certificates | None, Timing]:
        from fedstrata.transport.credentials import read_token  # noqa: PLC0415 - heavy

        certificates = self._certificates()
        if certificates is not None and self.token is None:
            message = "must be given: the file with this client's token"
            raise ConfigurationError([Problem("--token", message)])
        secret = read_token(self.token) if self.token is not None else None
        return secret, certificates, self._timing()


def with_options(kind: type[Line], **usual: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a verb the options of a line in place of its parameter `line`, which is what they came to.

    Args:
        kind: The line.
        usual: Defaults that fit the verb better than the line's.
    """
    hints = get_type_hints(kind, include_extras=True)
    names = [
        name
        for each in kind.__mro__
        for name in vars(each).get("__annotations__", ())
        if get_origin(hints[name]) is Annotated
    ]
    defaults = {name: usual.get(name, getattr(kind, name, Parameter.empty)) for name in names}
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hints[name])
        for name in names
    ]

    def with_line(verb: Callable[..., None]) -> Callable[..., None]:
        @wraps(verb)
        def called(**given: Any) -> None:
            options = {name: given.pop(name) for name in names}
            kit = _take_kit(given)
            if kit is not None:
                options |= {name: own for name, own in kind.of_kit(kit).items() if options[name] is None}
                message = f"must be given: its file is gone from {kit.folder}"
                refuse([Problem(f"--{name}", message) for name in kind.of_kit(kit) if options[name] is None])
            verb(line=kind(**options, kit=kit), **given)

        found: list[Parameter] = []
        for own in signature(verb, eval_str=True).parameters.values():
            found += options if own.name == "line" else [own.replace(kind=Parameter.KEYWORD_ONLY)]
        vars(called)["__signature__"] = Signature(found)  # which Typer goes by
        return called

    return with_line


def _take_kit(given: dict[str, Any]) -> Kit | None:
    """Takes the kit out of the arguments of a verb; none if none is named there.

    Raises:
        ConfigurationError: More than one kit is named, or what is named is none.
    """
    from fedstrata.transport.kit import is_kit, open_kit  # noqa: PLC0415 - heavy

    place = next((name for name in ("arguments", "overrides") if name in given), "")
    arguments = given.get(place) or []
    named = [path for path in sort_files(arguments)[0] if is_kit(path)]
    if not named:
        return None
    if len(named) > 1:
        message = f"one kit at most, not {len(named)}: {', '.join(map(str, named))}"
        raise ConfigurationError([Problem("", message)])
    given[place] = [text for text in arguments if Path(text) != named[0]]
    return open_kit(named[0])


def _warn(message: str) -> None:
    log.tell(message, level=logging.WARNING, event="warning")
