"""A hub whose lines are gRPC streams: one a client, admitted by its certificate and its token."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Thread, Timer

import grpc

from fedstrata.core.errors import FedstrataError, FrameError, RefusedError
from fedstrata.core.types import JSON
from fedstrata.transport.addresses import taken
from fedstrata.transport.admission import Admission
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.credentials import Certificates, Tokens, require_safe
from fedstrata.transport.grpc.ending import end
from fedstrata.transport.header import METHOD, REFUSED, SERVICE, SETTINGS
from fedstrata.transport.hub import Hub
from fedstrata.transport.members import GREETING_BYTES, Greeting, Member
from fedstrata.transport.timing import Timing

_logger = logging.getLogger(__name__)


class GrpcHub(Hub):
    """The server's end of all lines.

    Args:
        agree: Returns what is agreed with the client that greets so, or refuses it (`RefusedError`).
        largest: Bytes that any message of any client may have.
        clients: Who may join; a connection takes two threads.
        tokens: Their tokens; none is only allowed without TLS.
        certificates: The server's certificate and whom it trusts; none for plain text on this machine.
        timing: How long to wait.
        welcome: Returns what a client is told when its session begins.
        settings: What is said of the run to a client before it joins.
    """

    def __init__(
        self,
        agree: Callable[[str, Greeting], Agreement],
        *,
        largest: int,
        clients: Collection[str],
        tokens: Tokens | None = None,
        certificates: Certificates | None = None,
        timing: Timing | None = None,
        welcome: Callable[[str], Mapping[str, JSON]] = lambda client: {},
        settings: Mapping[str, JSON] | None = None,
    ) -> None:
        if certificates is not None and tokens is None:
            raise ValueError("with TLS clients have tokens too")
        super().__init__(agree, timing=timing, welcome=welcome, settings=settings)
        self._certificates = certificates
        self._admission = Admission(clients, tokens, certificates, self.timing.greeting)
        self._lines: dict[str, grpc.ServicerContext] = {}
        self._server = grpc.server(
            ThreadPoolExecutor(2 * len(clients) + 8, thread_name_prefix="line"),
            options=self.timing.options(largest + GREETING_BYTES),
        )
        handlers = {
            METHOD: grpc.stream_stream_rpc_method_handler(self._converse, response_serializer=list.pop),
            SETTINGS: grpc.unary_unary_rpc_method_handler(self._tell_settings),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def listen(self, address: str) -> str:
        """Begins to accept clients.

        Args:
            address: `HOST:PORT`; port 0 for any that is free.

        Returns:
            The address with the port that was taken.

        Raises:
            ConfigurationError: Without TLS the address is not on this machine.
            LineError: It cannot be listened on.
        """
        require_safe(address, insecure=self._certificates is None, setting="--listen")
        try:
            if self._certificates is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._certificates.for_server())
        except RuntimeError:
            port = 0
        if not port:
            raise taken(address)
        self._server.start()
        return f"{address.rpartition(':')[0]}:{port}"

    def revoked(self, clients: Collection[str]) -> set[str]:
        """Returns which of these clients have no token any more."""
        return self._admission.revoked(clients)

    def ended(self) -> Mapping[str, RefusedError]:
        """Returns whose sessions may not go on, and why: the tokens they began with are no longer theirs."""
        return self._admission.ended(self._members.values())

    def _close(self, seconds: float) -> None:
        self._server.stop(seconds).wait()

    def _converse(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[list[bytes]]:
        """Serves one connection."""
        try:
            client, greeting, session, arrived = self._admission.greeting(requests, context)
            member = self._admit(client, greeting, session, self._admission.shown(context))
            connection = member.link.connect(arrived if session else 0)
        except RefusedError as error:
            _logger.warning("%s", error)
            end(context, error, final=True)
        except FedstrataError as error:
            end(context, error, final=False)
        context.add_callback(lambda: member.link.disconnect(connection))
        self._replace(member.client, context, again=connection > 1)
        Thread(target=self._read, args=(member, connection, requests), daemon=True).start()
        yield [self._welcome_of(member)]
        yield from member.link.outgoing(connection)
        if member.link.error is not None:
            end(context, member.link.error, final=isinstance(member.link.error, FrameError | RefusedError))

    def _tell_settings(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Says what the run is to a client that is about to join it."""
        try:
            client = self._admission.client(context)
        except RefusedError as error:
            _logger.warning("%s", error)
            end(context, error, final=True)
        if request == REFUSED:
            self._refuses(client)
        return self._settings

    def _replace(self, client: str, context: grpc.ServicerContext, *, again: bool) -> None:
        """Ends a client's connection before this one, which may be stuck in what nobody takes.

        Args:
            client: Whose it is.
            context: The new connection.
            again: Whether the session goes on; if not, the process that had the other one hears why first.
        """
        with self._changed:
            older, self._lines[client] = self._lines.get(client), context
        if older is not None:
            timer = Timer(0.0 if again else self.timing.greeting, older.cancel)
            timer.daemon = True
            timer.start()

    def _read(self, member: Member, connection: int, requests: Iterator[bytes]) -> None:
        """Takes in what comes on a connection."""
        try:
            for data in requests:
                self._take_in(member, connection, data)
                del data  # not one for each client until there is another
        except (FrameError, grpc.RpcError):
            pass  # the connection is over
        finally:
            member.link.disconnect(connection)
