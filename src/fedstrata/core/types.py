"""What travels and what is kept: named tensors plus a small JSON mapping.

A plan, an update and the server's state have one shape, so one frame format serves the wire, the checkpoint
and a client's private store (see `fedstrata.wire.frame`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from fedstrata.core.errors import FrameError

if TYPE_CHECKING:
    from torch import Tensor

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
Tensors: TypeAlias = "Mapping[str, Tensor]"
Tally: TypeAlias = "Mapping[str, float]"
"""Numbers by name that add up, over documents and over the clients that have them; scores come of them."""
LossMean: TypeAlias = Literal["terms", "records"]
"""What a loss is the mean of: its terms (tokens, in token tasks), or records, each the sum of its terms."""


@dataclass(frozen=True, slots=True)
class Message:
    """Named tensors plus a small JSON mapping.

    Attributes:
        tensors: Tensors by parameter name; any dtype that safetensors knows.
        values: Small facts that belong to them.
    """

    tensors: Tensors = field(default_factory=dict)
    values: Mapping[str, JSON] = field(default_factory=dict)


class Plan(Message):
    """What the server sends one client at the start of a round."""

    __slots__ = ()


class State(Message):
    """What the server keeps between rounds: the global value of everything that is shared.

    Its values are recorded after every round, but for those whose name begins with an underscore.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Update(Message):
    """What one client sends back.

    Attributes:
        weight: How much the client counts in a weighted mean, n_k: its number of training examples.
    """

    weight: float = 1.0


def whole_number(value: JSON, name: str, least: int, most: int) -> int:
    """Returns a whole number that a client says in an update.

    Raises:
        FrameError: It is none between these two.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        message = f"an update says {name}={value!r:.40}, where {least} to {most} are possible"
        raise FrameError(message, code="out_of_range")
    return value


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """What the server knows of a client before it hears from it.

    Attributes:
        id: The client's name.
        examples: Its number of training examples, n_k.
    """

    id: str
    examples: int


@dataclass(frozen=True, slots=True)
class AdapterSize:
    """How much of the model's adapters a device has, where it is not all of them.

    Attributes:
        rank: Ranks (or widths) of each adapter; the model's others are zeros that no device would have.
        absent: Names of the parameters of adapters that the device has not.
    """

    rank: int
    absent: frozenset[str] = frozenset()


@dataclass(slots=True)
class Work:
    """What a client has computed in its turn, counted for an emulated device.

    Attributes:
        flops: Floating-point operations of its training.
        stored_states: Which output of its frozen blocks the device holds, as a fingerprint: these blocks cost
            nothing while they stay what they are. None if it holds none.
        adapter: How much of the adapters the device has; all of them if none.
        batches: On how many batches it has trained.
        memory_bytes: The memory of training, summed over these batches: the model's weights, the gradients
            and the optimiser's state of what trains, and the activations kept for the backward pass.
        peak_memory_bytes: The largest of any batch.
        activation_bytes: The activations' part of the sum.
    """

    flops: float = 0.0
    stored_states: str | None = None
    adapter: AdapterSize | None = None
    batches: int = 0
    memory_bytes: float = 0.0
    peak_memory_bytes: float = 0.0
    activation_bytes: float = 0.0
