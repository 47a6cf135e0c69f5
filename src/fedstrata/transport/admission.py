"""Who may have a line to the server; what a connection must begin with, and when."""

from collections.abc import Collection, Iterable, Iterator
from threading import Event, Lock, Timer

import grpc

from fedstrata.core.errors import RefusedError
from fedstrata.transport.credentials import Certificates, Tokens, require_named
from fedstrata.transport.members import Greeting, Member, read_greeting
from fedstrata.transport.versions import own_versions, require_same_versions


class Admission:
    """Lets in who shows that it is a client, one connection of each at a time.

    A connection takes a thread of the server before its client has said a word. A client that opens another
    therefore ends the one on which it has not greeted yet, so that none can keep the others out.

    Args:
        clients: Who may join.
        tokens: Their tokens, if they have any.
        certificates: The server's certificate and whom it trusts; none for plain text.
        seconds: How long a connection may be silent at first.
    """

    def __init__(
        self,
        clients: Collection[str],
        tokens: Tokens | None,
        certificates: Certificates | None,
        seconds: float,
    ) -> None:
        self._clients, self._tokens, self._certificates = tuple(clients), tokens, certificates
        self._seconds = seconds
        self._lock = Lock()
        self._silent: dict[str, grpc.ServicerContext] = {}

    def greeting(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> tuple[str, Greeting, str, int]:
        """Returns who calls and how it greets; its session and the last message that arrived there.

        Raises:
            RefusedError: It is nobody who may join, or does not greet in time.
        """
        client = self.client(context)
        with self._lock:
            older, self._silent[client] = self._silent.get(client), context
        if older is not None:
            older.cancel()
        late = Event()

        def give_up() -> None:
            late.set()
            context.cancel()

        timer = Timer(self._seconds, give_up)
        timer.start()
        try:
            return client, *read_greeting(client, next(requests))
        except RefusedError:
            raise
        except Exception as error:  # whatever it is: the bytes are another's
            why, code = f"does not begin with a greeting ({type(error).__name__})", "malformed_frame"
            if self._silent.get(client) is not context:
                why = "has not greeted, and another of its connections takes the place of this one"
                code = "replaced"
            elif late.is_set():
                why, code = f"has not greeted within {self._seconds:g} s", "timed_out"
            raise RefusedError(f"a connection of client {client!r} {why}", code=code) from None
        finally:
            timer.cancel()
            with self._lock:
                if self._silent.get(client) is context:
                    del self._silent[client]

    def ended(self, members: Iterable[Member]) -> dict[str, RefusedError]:
        """Returns whose sessions may not go on, and why: the tokens they began with are no longer theirs."""
        if self._tokens is None:
            return {}
        ended = self._tokens.no_longer({member.client: member.shown for member in members})
        revoked = self.revoked(ended) if ended else ended
        told = {
            True: ("is revoked", "revoked"),
            False: ("has a new token, and shows the old one", "wrong_token"),
        }
        why = {name: told[name in revoked] for name in ended}
        return {name: RefusedError(f"client {name!r} {own}", code=code) for name, (own, code) in why.items()}

    def shown(self, context: grpc.ServicerContext) -> bytes:
        """Returns what is kept of the token of who calls."""
        return Tokens.shown(_token(context))

    def revoked(self, clients: Iterable[str]) -> set[str]:
        """Returns which of these clients may no longer join: their tokens are gone."""
        return set(clients).difference(self._tokens.clients) if self._tokens is not None else set()

    def client(self, context: grpc.ServicerContext) -> str:
        """Returns who calls, by its token and its certificate.

        Raises:
            RefusedError: It is nobody who may join, or of another version.
        """
        said = dict(context.invocation_metadata())
        client = str(said.get("client-bin", b"").decode(errors="replace"))
        if self._tokens is not None and not self._tokens.accept(client, _token(context)):
            raise RefusedError(
                f"client {client!r} shows a token that is not the one it has here", code="wrong_token"
            )
        if client not in self._clients:
            raise RefusedError(f"{client!r} is no client of this run", code="unknown_name")
        if self._certificates is not None:
            require_named(client, context.auth_context())
        context.send_initial_metadata(own_versions())
        require_same_versions(said.items(), f"client {client!r}", "the server")
        return client


def _token(context: grpc.ServicerContext) -> str:
    said = dict(context.invocation_metadata())
    return str(said.get("authorization", "")).removeprefix("Bearer ")
