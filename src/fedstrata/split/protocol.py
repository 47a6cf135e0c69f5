"""What a client that trains may say next, so that what does not fit is refused when it comes.

Whatever is wrong with a message is found here, before it waits for anybody else: nothing of it is looked at
again later, where the error would be another client's. The same rules bound what can wait: each batch under
way has one message at a time, and there are at most `in_flight` of them.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedstrata.core.cut import Cut
from fedstrata.core.errors import FrameError
from fedstrata.core.types import Message, Tensors
from fedstrata.split import messages
from fedstrata.split.rows import Rows


@dataclass(frozen=True, slots=True)
class Said:
    """One message that fits.

    Attributes:
        kind: `STATES`, `GRADIENT` or `ENDS`.
        batch: Which batch of the step.
        tensor: Hidden states or the gradient by them, (rows, columns, hidden).
        rows: The lengths of the rows.
        wants_gradient: Whether the gradient by the states is wanted.
        terms: Over how many terms the loss is a sum; where they have weights, the sum of these.
        last: Whether it is the last gradient of the step.
        ends: The client's weights that are to be averaged.
    """

    kind: str
    batch: int = 0
    tensor: Tensor = field(default_factory=lambda: torch.empty(0))
    rows: Rows = field(default_factory=lambda: Rows(0, ()))
    wants_gradient: bool = False
    terms: float = 0.0
    last: bool = False
    ends: Tensors = field(default_factory=dict)


@dataclass(slots=True)
class _Batch:
    """A batch under way: the shape of its states, and how far it is."""

    shape: torch.Size
    answered: bool = False
    turned: bool = False


@dataclass(slots=True)
class Course:
    """One client's way through a round of training.

    Attributes:
        form: How hidden states and gradients travel.
        cut: Where the client's model is divided.
        in_flight: How many of its batches may be under way at once.
        average_every: Steps between averages of the clients' ends; none if they are not averaged on the way.
        steps: How many the client may take.
        batches: How many a step may have.
    """

    form: messages.Form
    cut: Cut
    in_flight: int = 1
    average_every: int | None = None
    steps: int = field(kw_only=True)
    batches: int = field(kw_only=True)
    _under_way: dict[int, _Batch] = field(default_factory=dict, init=False)
    _begun: int = field(default=0, init=False)  # of the present step's batches
    _taken: int = field(default=0, init=False)  # steps
    _closing: bool = field(default=False, init=False)  # the step's last gradient waits for its answer
    _averaged: bool = field(default=True, init=False)  # whether nothing is due before the next step

    def hear(self, message: Message) -> Said:
        """Takes a message.

        Raises:
            FrameError: It is not what may come now, or does not hold what it must.
        """
        try:
            kind = messages.kind_of(message)
            if kind == messages.ENDS:
                return self._ends(message)
            return self._states(message) if kind == messages.STATES else self._gradient(message)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise FrameError(f"a message of a step is damaged ({type(error).__name__})") from None

    def answered(self, said: Said) -> None:
        """Notes that a message has its answer."""
        if said.kind == messages.ENDS:
            self._averaged = True
        elif said.kind == messages.STATES:
            self._under_way[said.batch].answered = True
        else:
            del self._under_way[said.batch]
            if said.last:
                self._taken, self._begun = self._taken + 1, 0
                self._closing = False
                self._averaged = not self.average_every or self._taken % self.average_every != 0

    def _states(self, message: Message) -> Said:
        batch, states = messages.number_in(message, "batch"), self._tensor(message)
        if batch in self._under_way or len(self._under_way) >= self.in_flight or self._closing:
            under_way = ", ".join(map(str, self._under_way)) or "none"
            raise FrameError(
                f"states of batch {batch} came while {under_way} are under way; method.in_flight allows "
                f"{self.in_flight} of one step",
                code="out_of_order",
            )
        if self._taken >= self.steps or self._begun >= self.batches:
            raise FrameError(
                f"states came behind {self._begun} batches of step {self._taken + 1}; this client's examples "
                f"are {self.steps} steps of at most {self.batches} batches",
                code="out_of_range",
            )
        if not self._averaged:
            raise FrameError("states came where the clients' ends are to be averaged", code="out_of_order")
        messages.cut_in(message, self.cut)  # refused if it is elsewhere
        if not isinstance(lengths := message.values.get("rows"), dict):
            raise FrameError("hidden states came without the lengths of their rows", code="missing")
        rows = Rows.from_json(lengths)
        if states.shape[:2] != (len(rows.padding), rows.length) or not rows.padding:
            raise FrameError(
                f"states of shape {tuple(states.shape)} came with {len(rows.padding)} rows of {rows.length}",
                code="wrong_shape",
            )
        if rows.side != "right":
            told = "rows came that are padded on the left; in training padding is on the right"
            raise FrameError(told, code="wrong_padding")
        self._under_way[batch] = _Batch(states.shape)
        self._begun += 1
        wanted = _flag(message, "wants_gradient")
        return Said(messages.STATES, batch, states, rows, wants_gradient=wanted)

    def _gradient(self, message: Message) -> Said:
        batch, gradient = messages.number_in(message, "batch"), self._tensor(message)
        own = self._under_way.get(batch)
        if own is None or not own.answered or own.turned:
            raise FrameError(
                f"a gradient of batch {batch} came, which does not wait for one", code="out_of_order"
            )
        if gradient.shape != own.shape:
            raise FrameError(
                f"batch {batch} waits for a gradient of shape {tuple(own.shape)}, not "
                f"{tuple(gradient.shape)}",
                code="wrong_shape",
            )
        terms, last = messages.amount_in(message, "terms"), _flag(message, "last")
        if last and any(not each.turned for number, each in self._under_way.items() if number != batch):
            told = f"batch {batch} is called the last of its step while others wait for gradients"
            raise FrameError(told, code="out_of_order")
        own.turned, self._closing = True, last
        return Said(messages.GRADIENT, batch, gradient, terms=terms, last=last)

    def _ends(self, message: Message) -> Said:
        if self._averaged or self._under_way:
            told = "a client wants its ends averaged where the method does not average them"
            raise FrameError(told, code="out_of_order")
        messages.require_moderate(message.tensors)
        self._averaged = True  # a second time would be one too many
        return Said(messages.ENDS, ends=message.tensors)

    def _tensor(self, message: Message) -> Tensor:
        if (tensor := messages.unpack(message, self.form)) is None:
            raise FrameError(f"a {messages.kind_of(message)} message came without a tensor", code="missing")
        return tensor


def _flag(message: Message, name: str) -> bool:
    value: Any = message.values.get(name, False)
    if not isinstance(value, bool):
        raise FrameError(f"a message says {name}={value!r}, which is neither true nor false", code="invalid")
    return value
