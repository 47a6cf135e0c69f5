"""Requests between the processes of one NVFlare job; what they carry is opaque bytes.

What is large travels in requests alone: NVFlare keeps the payload of a reply for a minute after it was sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.defs import AUTH_CLIENT_NAME_FOR_SJ, CellMessageHeaderKeys

from fedstrata.core.errors import FedstrataError, LineError, RefusedError, SessionOverError, printable
from fedstrata.transport.codes import known
from fedstrata.transport.link import Link

SERVER: str = AUTH_CLIENT_NAME_FOR_SJ
"""What the server's process of a job is called in its token."""
_CHANNEL = "fedstrata"
_CONNECTION, _REFUSED, _OVER = "fedstrata.connection", "fedstrata.refused", "fedstrata.over"
_CODE = "fedstrata.code"


class Topic(StrEnum):
    """What a request is about."""

    SETTINGS = "settings"
    """Client: what is to be trained?"""
    REFUSED = "refused"
    """Client: it has heard that, and does not join."""
    HELLO = "hello"
    """Client: a connection is to begin."""
    ALIVE = "alive"
    """Client: it is there, and the connection goes on."""
    MESSAGE = "message"
    """Either: a message of the line."""


@dataclass(frozen=True, slots=True)
class Request:
    """What came.

    Attributes:
        origin: The cell it came from, which NVFlare's server has held against the sender's token.
        name: Whose token it carried there: a site's name, or `SERVER`.
        connection: The connection that it is of.
        data: What it carries.
    """

    origin: str
    name: str
    connection: str
    data: bytes


Respond = Callable[[Request], tuple[str, bytes]]
"""Returns the connection and the bytes of the answer; refuses with an error of ours."""


class JobCell:
    """The cell of a job's process.

    Args:
        cell: NVFlare's.
        abort: The job's signal: with it all requests end.
    """

    def __init__(self, cell: Any, abort: Any) -> None:
        self._cell, self._abort = cell, abort

    def ask(
        self, target: str, topic: Topic, data: bytes = b"", *, connection: str = "", seconds: float
    ) -> tuple[str, bytes]:
        """Returns the answer to a request.

        Args:
            target: The cell to ask.
            topic: What about.
            data: What the request carries.
            connection: The connection that it is of.
            seconds: How long to wait while nothing moves.

        Returns:
            The connection, and what the answer carries.

        Raises:
            RefusedError: The other side refuses for good.
            SessionOverError: It has no such connection any more.
            LineError: There is no answer.
        """
        reply = self._cell.send_request(
            channel=_CHANNEL,
            target=target,
            topic=str(topic),
            request=_message({_CONNECTION: connection}, data),
            timeout=seconds,
            optional=True,
            abort_signal=self._abort,
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if code != ReturnCode.OK:
            raise LineError(f"no answer ({printable(str(code))})")
        if (why := reply.get_header(_REFUSED)) is not None:
            raise RefusedError(
                f"the other side refuses: {printable(str(why))}", code=known(reply.get_header(_CODE))
            )
        if (why := reply.get_header(_OVER)) is not None:
            raise SessionOverError(f"the other side has ended the session: {printable(str(why))}")
        return str(reply.get_header(_CONNECTION) or ""), _bytes_of(reply)

    def send(self, link: Link, number: int, target: str, connection: str, seconds: float) -> None:
        """Sends what is to travel on a connection, one message after the other, as long as there is one.

        Args:
            link: One end of a line.
            number: The connection's number there.
            target: The cell of the other end.
            connection: The connection's name.
            seconds: How long to wait while nothing moves.

        Raises:
            FedstrataError: A message has not arrived; see `ask`.
        """
        for message in link.outgoing(number):
            self.ask(target, Topic.MESSAGE, message.pop(), connection=connection, seconds=seconds)

    def answer(self, topic: Topic, respond: Respond) -> None:
        """Has requests about something answered; whoever answered them before no longer does."""

        def answered(message: Any) -> Any:
            origin, name, connection = (
                str(message.get_header(key) or "")
                for key in (MessageHeaderKey.ORIGIN, CellMessageHeaderKeys.CLIENT_NAME, _CONNECTION)
            )
            try:
                connection, data = respond(Request(origin, name, connection, _bytes_of(message)))
                return _message({_CONNECTION: connection}, data)
            except SessionOverError as error:
                return _message({_OVER: str(error)})
            except LineError:  # as if nobody had answered: it may be asked again
                return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.SERVICE_UNAVAILABLE})
            except FedstrataError as error:
                return _message({_REFUSED: str(error), _CODE: error.code})

        self._cell.register_request_cb(channel=_CHANNEL, topic=str(topic), cb=answered)


def _message(headers: dict[str, str], data: bytes = b"") -> Any:
    """Returns a message that is said to be encoded, so that NVFlare takes its bytes as they are."""
    message = new_cell_message(headers, [memoryview(data)])
    message.set_header(StreamHeaderKey.PAYLOAD_ENCODING, Encoding.BYTES)
    message.set_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
    return message


def _bytes_of(message: Any) -> bytes:
    """Returns what a message carries; nothing where it is no bytes."""
    payload = message.payload
    return payload if isinstance(payload, bytes | bytearray | memoryview) else b""  # type: ignore[return-value]
