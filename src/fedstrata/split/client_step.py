"""The client's half of a training step of a divided model.

`fedstrata.train.local.fit` is the training loop here too; an `Exchange` only says how the gradient of a step
comes about: A runs, the server's B goes on, C and the loss run, and the gradient goes the same way back.
Source: FL-LLaMA, section 3.1, equations 1 to 4.

Several batches of a step may be under way (`in_flight`): while the server works on one, the client runs A of
the next. Weights change only when a step is complete, so the gradients are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from fedstrata.core.client import Client, Line
from fedstrata.core.errors import FrameError
from fedstrata.core.types import JSON, Message, Update
from fedstrata.split.ends import Ends, Front
from fedstrata.split.messages import ENDS, GRADIENT, STATES, Form, error_in, kind_of, number_in, pack, unpack
from fedstrata.split.noise import Noise
from fedstrata.train.local import autocast, to_device

ROUNDED = ("states_up", "states_down", "gradient_up", "gradient_down")
"""What travels in a step, by kind and direction."""


def rounding_in(update: Update) -> dict[str, JSON]:
    """Returns what a client says of the error of int8; what is no share counts for nothing."""
    said = update.values.get("rounding")
    said = said if isinstance(said, dict) else {}
    numbers = {name: said.get(name) for name in ROUNDED}
    return {name: value for name, value in numbers.items() if isinstance(value, float) and 0 <= value <= 1}


@dataclass
class Exchange:
    """A client's training steps through a server.

    Attributes:
        ends: The client's side of the model.
        line: The line to the server.
        form: How hidden states and gradients travel.
        noise: What is added to the hidden states or the gradients that leave the client; none for nothing.
        in_flight: How many batches of a step may be under way at once.
        average_every: Steps between averages of all clients' ends; none for no averages on the way.
    """

    ends: Ends
    line: Line
    form: Form = "float32"
    noise: Noise | None = None
    in_flight: int = 1
    average_every: int | None = None
    _steps: int = field(default=0, init=False)
    _errors: dict[str, list[float]] = field(default_factory=dict, init=False)

    @property
    def rounding(self) -> dict[str, JSON]:
        """What int8 has changed so far, relative to what was sent: a mean over messages, by `ROUNDED`."""
        return {name: float(f"{fmean(errors):.4g}") for name, errors in self._errors.items()}

    def note(self, message: Message, direction: str) -> Message:
        """Takes down what a message says of its rounding, and returns the message."""
        if (error := error_in(message)) is not None:
            self._errors.setdefault(f"{kind_of(message)}_{direction}", []).append(error)
        return message

    def gradients(
        self, client: Client, batches: Sequence[Mapping[str, Tensor]], parameters: Sequence[Parameter]
    ) -> tuple[float, float]:
        """Leaves the gradient of all batches' mean loss behind, as `fedstrata.train.local.accumulate` does.

        The server has that of its part, and may have changed it, when this returns.

        Args:
            client: The client.
            batches: The batches of one step.
            parameters: What trains at the client.

        Returns:
            The loss and its number of terms.

        Raises:
            FrameError: The server says something that does not fit.
            LineError: It can no longer be reached.
        """
        self._average()
        step = _Step(self, client, batches, next(iter(client.model.module.parameters())).device)
        while step.finished < len(batches):
            while step.begun < len(batches) and step.begun - step.finished < self.in_flight:
                step.begin()
            step.take(self.line.receive())
        self._steps += 1
        terms = max(float(torch.stack(step.counts).sum()), 1.0)
        found = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if found:
            torch._foreach_mul_(found, 1.0 / terms)
        return float(torch.stack(step.losses).sum()) / terms, terms

    def _average(self) -> None:
        """Has all clients' ends averaged, if this is due."""
        if not self.average_every or not self._steps or self._steps % self.average_every:
            return
        model = self.ends.model
        self.line.send(Message(model.tensors(model.trainable), {"kind": ENDS}))
        answer = self.line.receive()
        if kind_of(answer) != ENDS:
            raise FrameError(
                f"the server says {kind_of(answer)} in place of averaged weights", code="out_of_order"
            )
        model.load(answer.tensors)


@dataclass
class _Step:
    """The batches of one step, each at its own point of the way."""

    exchange: Exchange
    client: Client
    batches: Sequence[Mapping[str, Tensor]]
    device: torch.device
    fronts: dict[int, Front] = field(default_factory=dict)
    begun: int = 0
    finished: int = 0
    losses: list[Tensor] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)

    def begin(self) -> None:
        """Runs A on the next batch and sends what it gives."""
        exchange, index = self.exchange, self.begun
        with autocast(self.client.training, self.device):
            front = exchange.ends.front(self._call(index))
        states = front.states
        if exchange.noise is not None and exchange.noise.settings.on == "states":
            states = exchange.noise.add(states, front.rows, exchange._steps, index)
        self.fronts[index] = front
        self.begun += 1
        values: dict[str, JSON] = {
            "batch": index,
            "rows": front.rows.to_json(),
            "cut": [exchange.ends.cut.front, exchange.ends.cut.back],
            "wants_gradient": front.needs_gradient,
        }
        exchange.line.send(exchange.note(pack(STATES, states, exchange.form, values), "up"))

    def take(self, message: Message) -> None:
        """Goes on with the batch that the server answers to."""
        kind, index = kind_of(self.exchange.note(message, "down")), number_in(message, "batch")
        tensor = unpack(message, self.exchange.form)
        if index not in self.fronts or kind == ENDS or (kind == STATES and tensor is None):
            raise FrameError(
                f"the server says {kind} of batch {index}, which does not wait for it", code="out_of_order"
            )
        if kind == STATES:
            self._turn_back(index, tensor)
            return
        front = self.fronts.pop(index)
        if front.needs_gradient:
            if tensor is None:
                raise FrameError(
                    f"the server says no gradient of batch {index}, which waits for one", code="missing"
                )
            front.backward(tensor.to(self.device))
        self.finished += 1

    def _turn_back(self, index: int, states: Any) -> None:
        """Runs C and the loss, and sends the gradient by what came from the server."""
        exchange = self.exchange
        with autocast(self.client.training, self.device):
            (loss, count), leaf = exchange.ends.back(self.fronts[index], states, self._call(index))
        loss.backward()  # type: ignore[no-untyped-call]
        self.losses.append(loss.detach())
        self.counts.append(count)
        gradient: Any = leaf.grad
        if exchange.noise is not None and exchange.noise.settings.on == "gradients":
            rows = self.fronts[index].rows
            gradient = exchange.noise.add_to_gradient(gradient, count, rows, exchange._steps, index)
        values: dict[str, JSON] = {
            "batch": index,
            "terms": float(count),
            "last": len(self.losses) == len(self.batches),
        }
        exchange.line.send(exchange.note(pack(GRADIENT, gradient, exchange.form, values), "up"))

    def _call(self, index: int) -> Callable[[], tuple[Tensor, Tensor]]:
        batch = to_device(self.batches[index], self.device)
        return partial(self.client.task.loss, self.client.model.module, batch)
