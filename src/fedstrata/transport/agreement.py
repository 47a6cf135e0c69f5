"""What client and server must agree on before they speak, and what a message may then hold.

Both sides work it out by themselves from their own configuration and their own part of the model. The client
says its part in its greeting; the server compares and refuses, naming both values. Afterwards either side
looks at the header of every frame before it touches a tensor.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from fedstrata.core.cut import Cut
from fedstrata.core.errors import FrameError
from fedstrata.core.types import JSON
from fedstrata.split.messages import ENDS, GRADIENT, SCALES, STATES, Form, dtypes_of
from fedstrata.transport.header import PROTOCOL, Kind, unpack
from fedstrata.transport.link import Link
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame, Shape

_SHOWN = 5
"""Differences that are named in a refusal."""
_HEADER_BYTES = 2**16
"""Allowed for the header of a frame, beside what it says of each tensor and row."""
_ENTRY_BYTES = 512
"""Allowed for what a header says of one tensor or row."""
WHOLE_HEADER_BYTES = 2**22
"""Allowed for the header of the messages of a method that divides no model."""


@dataclass(frozen=True)
class Conversation:
    """What travels while a client and the server hold a model together.

    Attributes:
        cut: Where the client's model is divided.
        form: How hidden states and gradients travel.
        hidden: Numbers of a hidden state.
        rows: The most rows of a batch.
        length: The most columns of a batch.
        in_flight: How many batches may be under way at once.
    """

    cut: Cut
    form: Form
    hidden: int
    rows: int
    length: int
    in_flight: int = 1

    @property
    def facts(self) -> dict[str, JSON]:
        """What must be equal, by name."""
        return {
            "hidden size": self.hidden,
            "front": self.cut.front,
            "back": self.cut.back,
            "wire": self.form,
            "longest row": self.length,
            "largest batch": self.rows,
        }

    @property
    def largest(self) -> int:
        """Bytes of the largest message, its header apart."""
        return self.rows * self.length * (self.hidden * dtypes_of(STATES, self.form)[STATES].itemsize + 4)

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """Looks at what one message holds.

        Raises:
            FrameError: It is neither hidden states nor gradients of a batch that was agreed.
        """
        name = next((name for name in (STATES, GRADIENT) if name in shapes), None)
        if name is None or shapes.keys() != dtypes_of(name, self.form).keys():
            named = ", ".join(sorted(shapes)[:3])
            raise FrameError(
                f"tensors {named} came, in place of {STATES}, {GRADIENT} or {ENDS}", code="not_agreed"
            )
        for each, dtype in dtypes_of(name, self.form).items():
            found, width = shapes[each], 1 if each == SCALES else self.hidden
            most = (self.rows, self.length, width)
            extents = found[1]
            if (
                found[0] != dtype
                or len(extents) != len(most)
                or extents[2] != width
                or not 0 < extents[0] <= self.rows
                or not 0 < extents[1] <= self.length
            ):
                raise FrameError(
                    f"{each} came as {_said(found)}, not {_said((dtype, most))} or fewer rows",
                    code="wrong_shape",
                )


@dataclass(frozen=True)
class Agreement:
    """What one client and the server agree on.

    Attributes:
        settings: Settings that must be the same on both sides, by dotted path.
        run: The name of the run.
        blocks: How many the whole model has.
        numbers: How many numbers a message may have, where the model is not divided.
        trained: Dtype and shape of what the client trains, by name.
        conversation: What it says while it works, where the model is divided: plans and updates then hold
            nothing but what it trains. None where it has a whole model, of which the method decides what
            travels in which form; the size alone is bounded here.
    """

    settings: Mapping[str, JSON]
    run: str
    blocks: int
    numbers: int
    trained: Mapping[str, Shape]
    conversation: Conversation | None = None

    @property
    def facts(self) -> dict[str, JSON]:
        """What must be equal, by name; a setting goes by its dotted path."""
        return {
            "protocol": PROTOCOL,
            "fedstrata": version("fedstrata"),
            "run": self.run,
            "blocks": self.blocks,
            **(self.conversation.facts if self.conversation else {}),
            **self.settings,
        }

    @property
    def largest(self) -> int:
        """Bytes that a message may have."""
        if self.conversation is None:
            return torch.float32.itemsize * self.numbers + self.largest_header
        ends = sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.trained.values())
        return max(self.conversation.largest, ends) + self.largest_header

    @property
    def ahead(self) -> int:
        """How many of the largest messages may be on the way: one to each batch, and what begins a turn."""
        return 2 + (self.conversation.in_flight if self.conversation else 0)

    @property
    def largest_header(self) -> int:
        """Bytes that the header of a frame may have."""
        if self.conversation is None:
            return WHOLE_HEADER_BYTES
        return _HEADER_BYTES + _ENTRY_BYTES * (len(self.trained) + self.conversation.rows)

    def differences(self, theirs: Mapping[str, Any], client: str) -> str:
        """Returns what is not equal at the server, which this is, and a client, with both values.

        Args:
            theirs: The facts of the client.
            client: Its name.

        Returns:
            The text; empty if all is equal.
        """
        here = {name: json.loads(json.dumps(value)) for name, value in self.facts.items()}
        every = (*here, *sorted(theirs.keys() - here.keys()))
        names = [name for name in every if here.get(name) != theirs.get(name)]
        told = [_difference(name, theirs.get(name), here.get(name), client) for name in names[:_SHOWN]]
        more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        return "; ".join([*told, *more])

    def check(self, kind: Kind, content: Frame) -> None:
        """Looks at the header of a frame.

        Args:
            kind: What sort of message it is in.
            content: The frame.

        Raises:
            FrameError: A tensor in it has a name, dtype or shape that was not agreed.
        """
        if len(content.head) > self.largest_header:
            raise FrameError(
                f"a header of {len(content.head)} bytes, where {self.largest_header} are allowed",
                code="too_large",
            )
        shapes = content.shapes()
        travels = kind in (Kind.PLAN, Kind.UPDATE)
        if self.conversation is None and travels:
            return  # whoever knows the method looks at what they hold
        if travels or (kind == Kind.SAID and shapes.keys() <= self.trained.keys()):
            self._check_ends(shapes)
        elif kind == Kind.SAID and self.conversation is not None:
            self.conversation.check(shapes)
        elif shapes:
            raise FrameError(
                f"a message of kind {kind.name} holds tensors: {', '.join(sorted(shapes)[:3])}",
                code="not_agreed",
            )

    def _check_ends(self, shapes: Mapping[str, Shape]) -> None:
        for name, found in shapes.items():
            if name not in self.trained:
                raise FrameError(
                    f"tensor {name!r} came, which is no weight that the client trains", code="not_agreed"
                )
            if found != self.trained[name]:
                raise FrameError(
                    f"tensor {name!r} came as {_said(found)}, not {_said(self.trained[name])}",
                    code="wrong_shape",
                )


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Shape]:
    """Returns dtype and shape of tensors by name."""
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def accept(link: Link, connection: int, data: bytes, agreement: Agreement) -> None:
    """Takes in one message; nothing of it is decoded but its headers.

    Args:
        link: To whom it came.
        connection: On which connection.
        data: The message.
        agreement: What may be in it.

    Raises:
        FrameError: It is not what was agreed.
    """
    if len(data) > agreement.largest + 2**16:
        raise FrameError(
            f"a message of {len(data)} bytes, where {agreement.largest} were agreed", code="too_large"
        )
    header, body = unpack(data)
    content = None
    if header.sequence:
        content = frame.split(body, agreement.largest_header)
        agreement.check(header.kind, content)
        content = content.aligned()
    link.come(connection, header, content, len(data))


def _said(shape: Shape) -> str:
    return f"{str(shape[0]).removeprefix('torch.')} {shape[1]}"


def _difference(name: str, theirs: object, here: object, client: str) -> str:
    """Says what is not equal; of two lists that of which only one side has it."""
    if isinstance(theirs, list) and isinstance(here, list):
        alone = (
            (f"client {client!r}", [each for each in theirs if each not in here]),
            ("the server", [each for each in here if each not in theirs]),
        )
        if parts := [f"{_listed(own)} at {side} alone" for side, own in alone if own]:
            return f"{name}: {', '.join(parts)}"
    return f"{name} is {_short(theirs)} at client {client!r}, {_short(here)} at the server"


def _listed(values: Sequence[object]) -> str:
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(map(_short, values[:_SHOWN])) + more


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
