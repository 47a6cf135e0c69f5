"""What client and server of a divided model say to each other while it learns.

A message holds hidden states or the gradient by them, and a few numbers. Of a batch there are four: the
states that A gives go up, those that B makes of them come down, the gradient by these goes up, the gradient
by the first ones comes down. Labels and tokens are in none of them. What is read of a message and is not of
its kind is a `FrameError`.

| value | in | |
|---|---|---|
| `kind` | all | `states`, `gradient`, or `ends`: the client's weights, which are to be averaged |
| `batch` | `states`, `gradient` | which batch of the present step, counted from 0 |
| `rows` | states that go up | the lengths of the rows (`fedstrata.split.rows`) |
| `cut` | states that go up | p and q of the client |
| `wants_gradient` | states that go up | whether anything of A learns |
| `terms` | gradients that go up | of how many terms the loss is a sum, or the sum of their weights |
| `last` | gradients that go up | whether it is the last of its step |
| `error` | `states`, `gradient` in int8 | the norm of what rounding changed, over that of what was sent |
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor

from fedstrata.core.cut import Cut
from fedstrata.core.errors import FrameError
from fedstrata.core.types import JSON, Message, Tensors
from fedstrata.wire.quantize import dequantize, quantize, relative_error

Form = Literal["float32", "bfloat16", "int8"]
"""In what numbers hidden states and gradients travel."""
STATES, GRADIENT, ENDS, SCALES = "states", "gradient", "ends", "scales"
MOST = 2**31 - 1
"""The largest number that a message may say."""
_LARGEST_NORM = 1e8
"""Of hidden states or a gradient, at most: far from what training gives, and as far from what overflows on
its way through the other side, where it would be the error of all who share the batch."""
LARGEST_WEIGHT = 1e18
"""Size of a weight at most: even times the most examples it is far from overflowing in a mean."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pack(kind: str, tensor: Tensor | None, form: Form, values: Mapping[str, JSON]) -> Message:
    """Returns a message with hidden states or a gradient.

    Args:
        kind: `STATES` or `GRADIENT`.
        tensor: (rows, columns, hidden); none says that no gradient was wanted.
        form: How it travels.
        values: What else the message says.
    """
    said: dict[str, JSON] = {"kind": kind, **values}
    if tensor is None:
        return Message({}, said)
    if form == "int8":
        rounded, scales = quantize(tensor)
        if math.isfinite(error := relative_error(tensor, rounded, scales)):
            said["error"] = float(f"{error:.3g}")  # and no digits that mean nothing
        return Message({kind: rounded, SCALES: scales}, said)
    return Message({kind: tensor.detach().to(_DTYPES[form])}, said)


def dtypes_of(kind: str, form: Form) -> dict[str, torch.dtype]:
    """Returns the tensors of a message with hidden states or a gradient, by name."""
    return {kind: torch.int8, SCALES: torch.float32} if form == "int8" else {kind: _DTYPES[form]}


def unpack(message: Message, form: Form) -> Tensor | None:
    """Returns the tensor of a message as float32 or bfloat16, (rows, columns, hidden); none if it has none.

    Raises:
        FrameError: The message is not in the form agreed, or its numbers are not finite, or too large.
    """
    tensors, kind = message.tensors, kind_of(message)
    if not tensors:
        return None
    expected = dtypes_of(kind, form)
    came = {name: tensor.dtype for name, tensor in tensors.items()}
    if came != expected or tensors[kind].ndim != 3:
        told = f"a {kind} message holds {came}, not {expected} of three dimensions"
        raise FrameError(told, code="wrong_shape")
    tensor = tensors[kind]
    if form == "int8":
        if tensors[SCALES].shape != (*tensor.shape[:-1], 1):
            told = f"scales of {tuple(tensors[SCALES].shape)} for {tuple(tensor.shape)}"
            raise FrameError(told, code="wrong_shape")
        tensor = dequantize(tensor, tensors[SCALES], torch.float32)
    norm = float(torch.linalg.vector_norm(tensor, dtype=torch.float32))
    if not norm <= _LARGEST_NORM:
        raise FrameError(
            f"a {kind} message holds numbers that are not finite or too large: their norm is {norm:g}, and "
            f"may be {_LARGEST_NORM:g}; try a lower learning rate",
            code="not_finite",
        )
    return tensor


def require_moderate(tensors: Tensors) -> None:
    """Looks at weights before they are averaged.

    Raises:
        FrameError: One is not finite, or so large that a mean would not be.
    """
    for name, tensor in tensors.items():
        if tensor.numel() and not float(torch.linalg.vector_norm(tensor, math.inf)) <= LARGEST_WEIGHT:
            raise FrameError(
                f"{name} holds numbers that are not finite or beyond {LARGEST_WEIGHT:g}, which cannot be "
                "averaged; try a lower learning rate",
                code="not_finite",
            )


def is_number(value: object, most: float) -> TypeGuard[int | float]:
    """Whether a value is a number of this size at most."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= most


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number from 0 to `MOST`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def kind_of(message: Message) -> str:
    """Returns what a message is about."""
    kind = message.values.get("kind")
    if kind not in (STATES, GRADIENT, ENDS):
        told = f"a message is about {kind!r}; known are {STATES}, {GRADIENT} and {ENDS}"
        raise FrameError(told, code="unknown_name")
    return str(kind)


def error_in(message: Message) -> float | None:
    """Returns what a message says of its rounding; none if it says nothing that is a number of 0 or more."""
    value = message.values.get("error")
    return value if isinstance(value, float) and 0.0 <= value < math.inf else None


def number_in(message: Message, name: str) -> int:
    """Returns a whole number from 0 to `MOST` among a message's values."""
    value: Any = message.values.get(name)
    if not is_count(value):
        told = value if isinstance(value, int) and abs(value) <= MOST else type(value).__name__
        text = f"a message says {name}={told}, which is no whole number from 0 to {MOST}"
        raise FrameError(text, code="invalid")
    return value


def amount_in(message: Message, name: str) -> float:
    """Returns a number from 0 to `MOST`, whole or not, among a message's values."""
    value = message.values.get(name)
    if not is_number(value, MOST) or value < 0:
        told = f"a message says {name}={value!r:.40}, which is no number from 0 to {MOST}"
        raise FrameError(told, code="invalid")
    return float(value)


def numbers_in(message: Message, name: str) -> list[int] | None:
    """Returns whole numbers among a message's values; none if it does not say any."""
    value: Any = message.values.get(name)
    if value is not None and not (isinstance(value, list) and all(type(each) is int for each in value)):
        raise FrameError(f"a message says {name}={value!r}, which are no whole numbers", code="invalid")
    return value


def cut_in(message: Message, agreed: Cut) -> Cut:
    """Returns where the client that sent hidden states is cut.

    Raises:
        FrameError: It is elsewhere than was agreed, or the message does not say.
    """
    match message.values.get("cut"):
        case [int(front), int(back)]:
            cut = Cut(front, back)
        case other:
            raise FrameError(f"a message says cut={other!r}, which are no two numbers", code="invalid")
    if cut != agreed:
        raise FrameError(f"states came of a model cut at {cut}, not {agreed} as agreed", code="not_agreed")
    return cut
