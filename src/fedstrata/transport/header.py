"""Messages as they travel: two bytes with the header's length, the header, the bytes of one frame.

`header.proto` defines the header for whoever writes the other side in another language. What is built here is
held equal to it by a test. No generated code: that would tie the installation to the release of protobuf that
generated it.
"""

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from fedstrata.core.errors import FrameError

PROTOCOL = 7
"""Version of all that is said on the wire; both sides must have the same."""
PACKAGE, NAME = "fedstrata.split", "Header"
SERVICE, METHOD, SETTINGS = "fedstrata.split.Transport", "Converse", "Settings"
REFUSED = b"refused"
"""What a client says in place of nothing when it has heard the settings and does not join."""
_LENGTH = struct.Struct("<H")
_FIELDS = {
    "kind": "UINT32",
    "sequence": "UINT64",
    "acknowledged": "UINT64",
    "turn": "UINT64",
    "round": "UINT32",
    "handler": "STRING",
    "call": "UINT32",
    "seconds": "DOUBLE",
    "trained": "UINT64",
    "begun": "UINT32",
}
"""The fields of a header, in the order of their numbers, with their types as protobuf calls them."""


class Kind(IntEnum):
    """What a message is."""

    HELLO = 1
    """Client: who it is and what it holds."""
    WELCOME = 2
    """Server: the session goes on, or begins."""
    ALIVE = 3
    """Either: nothing but an acknowledgement, or a sign of life."""
    PLAN = 4
    """Server: a turn begins."""
    SAID = 5
    """Either: a message of a conversation."""
    UPDATE = 6
    """Client: the turn's result."""
    FAILED = 7
    """Either: the turn is over without a result, and why."""
    END = 8
    """Either: there will be no further turn."""
    READY = 9
    """Client: the turn is done, and its result lies there until it is fetched."""
    FETCH = 10
    """Server: asks for the result of a turn."""


@dataclass(frozen=True, slots=True)
class Header:
    """A message's header; see `header.proto`."""

    kind: Kind
    sequence: int = 0
    acknowledged: int = 0
    turn: int = 0
    round: int = 0
    handler: str = ""
    call: int = 0
    seconds: float = 0.0
    trained: int = 0
    begun: int = 0


def descriptor() -> descriptor_pb2.FileDescriptorProto:
    """Returns what `header.proto` says, as protobuf describes it."""
    file = descriptor_pb2.FileDescriptorProto(name="header.proto", package=PACKAGE, syntax="proto3")
    message = file.message_type.add(name=NAME)
    field = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(_FIELDS.items(), start=1):
        numbers: Any = {"type": getattr(field, f"TYPE_{kind}"), "label": field.LABEL_OPTIONAL}
        message.field.add(name=name, json_name=name, number=number, **numbers)
    return file


def _message_class() -> type[Message]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor())
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{NAME}"))
    return found


_MESSAGE: Any = _message_class()


def pack(header: Header, buffers: Iterable[bytes | memoryview] = ()) -> bytes:
    """Returns a message as it travels; the one copy of the payload, which gRPC needs in one piece.

    Args:
        header: Its header.
        buffers: The frame, in order.
    """
    text = _MESSAGE(**{name: getattr(header, name) for name in _FIELDS}).SerializeToString()
    return b"".join([_LENGTH.pack(len(text)), text, *buffers])


def unpack(data: bytes) -> tuple[Header, memoryview]:
    """Returns a message's header and the bytes behind it, which are not copied.

    Raises:
        FrameError: There is no header, or of no kind that is known.
    """
    view = memoryview(data)
    if view.nbytes < _LENGTH.size:
        raise FrameError(f"a message of {view.nbytes} bytes has no header")
    end = _LENGTH.size + _LENGTH.unpack(view[: _LENGTH.size])[0]
    try:
        found = _MESSAGE.FromString(bytes(view[_LENGTH.size : end]))
        values = {name: getattr(found, name) for name in _FIELDS}
        if not math.isfinite(found.seconds):
            raise ValueError("no time")
        return Header(**{**values, "kind": Kind(found.kind)}), view[end:]
    except (DecodeError, ValueError) as error:
        raise FrameError(f"a message's header is damaged ({type(error).__name__})") from None
