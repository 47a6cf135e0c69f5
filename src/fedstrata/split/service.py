"""The server's half while clients train a divided model: who is answered when, and when B takes a step.

Source: FL-LLaMA, section 3.3. `Sequential` serves one client at a time; `ClientBatch` runs the batches of all
clients as one; `Hierarchical` has a copy of B for every client and averages them. All implement
`core.method.Service`. The gradient of a step of B is that of a mean, never of a sum over clients
(`fedstrata.split.joint`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from fedstrata.aggregate.mean import StreamingMean
from fedstrata.core.errors import FrameError
from fedstrata.core.method import Service
from fedstrata.core.types import Message, Update
from fedstrata.split.joint import Joint, mean_scales
from fedstrata.split.messages import ENDS, GRADIENT, STATES, Form, cut_in, kind_of, number_in, pack, unpack
from fedstrata.split.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

    from fedstrata.split.replica import Replica

Answers = Iterator[tuple[str, Message]]


class TrainingService(Service, Protocol):
    """The server's half of a round of training."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What of B has been learnt, by name."""


class Sequential:
    """Serves one client at a time, each with a step of its own.

    Args:
        replica: The one copy of B.
        clients: Who takes part, in order.
        form: How hidden states and gradients travel.
        by_step: Whether clients take turns step by step; if not, each trains to its end before the next.

    Attributes:
        together: Whether clients must be there at once.
        ordered: Whether each trains to its end before the next.
    """

    def __init__(self, replica: Replica, clients: Sequence[str], form: Form, *, by_step: bool) -> None:
        self._replica, self._form = replica, form
        self.together, self.ordered = by_step, not by_step
        self._order = list(clients)
        self._waiting: dict[str, deque[Message]] = {client: deque() for client in clients}
        self._terms = 0
        self._next = 0

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What of B has been learnt, by name."""
        return self._replica.tensors

    def hear(self, client: str, message: Message) -> Answers:
        """Answers, once it is the client's turn."""
        self._waiting[client].append(message)
        yield from self._go_on()

    def leave(self, client: str) -> Answers:
        """Gives the turn to the next."""
        if client in self._order:
            place = self._order.index(client)
            if place == self._next and self._terms:  # in the middle of a step, which nobody will complete
                self._replica.middle.model.module.zero_grad(set_to_none=True)
                self._terms = 0
            self._order.remove(client)
            self._next -= place < self._next
            self._next %= max(len(self._order), 1)
        self._waiting[client].clear()
        yield from self._go_on()

    def _go_on(self) -> Answers:
        while self._order and self._waiting[client := self._turn()]:
            message = self._waiting[client].popleft()
            yield client, _answered(self._replica, client, message, self._form)
            if kind_of(message) == GRADIENT:
                self._terms += number_in(message, "terms")
                if message.values.get("last"):
                    self._replica.step(self._terms)
                    self._terms = 0
                    self._next = (self._next + 1) % len(self._order)

    def _turn(self) -> str:
        """Returns whose turn it is; without `by_step` that of whoever has something to say."""
        if not self.together:
            return next((each for each in self._order if self._waiting[each]), self._order[0])
        return self._order[self._next]


class ClientBatch:
    """Runs what all clients send as one batch, with one step of B for all.

    A client that has fewer batches leaves earlier; the step is then that of the others.

    Args:
        replica: The one copy of B.
        clients: The clients that take part, with the weight of each in averages.
        form: How hidden states and gradients travel.
        by: Whose mean B's gradient is: of all terms of all clients, or of the clients' means.
    """

    together: ClassVar[bool] = True
    ordered: ClassVar[bool] = False

    def __init__(
        self,
        replica: Replica,
        clients: Mapping[str, float],
        form: Form,
        by: Literal["terms", "clients"] = "terms",
    ) -> None:
        self._replica, self._form, self._by = replica, form, by
        self._weights = dict(clients)
        self._there = list(clients)
        self._said: dict[str, Message] = {}
        self._stepped: set[str] = set()  # those whose part of the present step is complete
        self._terms = 0.0
        self._joint: Joint | None = None
        self._joined: list[str] = []
        self._steps = 0

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What of B has been learnt, by name."""
        return self._replica.tensors

    def hear(self, client: str, message: Message) -> Answers:
        """Answers all, once all have spoken."""
        if client in self._said:
            raise FrameError(f"client {client} speaks twice before it is answered; in_flight is 1 here")
        if kind_of(message) != ENDS:
            unpack(message, self._form)  # now, so that nobody else is blamed for it
        self._said[client] = message
        yield from self._go_on()

    def leave(self, client: str) -> Answers:
        """Goes on without the client."""
        self._there = [each for each in self._there if each != client]
        self._said.pop(client, None)
        yield from self._go_on()

    def _go_on(self) -> Answers:
        if any(client not in self._said for client in self._there):
            return
        if self._stepped.issuperset(self._there):
            self._step()
        if not self._there:
            return
        now = {each: self._said[each] for each in self._there if each not in self._stepped}
        for kind, answer in ((ENDS, self._averaged), (STATES, self._forward), (GRADIENT, self._backward)):
            own = {client: message for client, message in now.items() if kind_of(message) == kind}
            if own and (kind != ENDS or len(own) == len(now)):
                for client in own:
                    del self._said[client]
                yield from answer(own)
                return
        raise FrameError("some clients want their ends averaged while others are in a step")

    def _step(self) -> None:
        if self._stepped:
            self._replica.step(self._terms if self._by == "terms" else 1.0)
        self._stepped.clear()
        self._terms = 0.0

    def _averaged(self, said: Mapping[str, Message]) -> Answers:
        mean = mean_of([said[client].tensors for client in said], [self._weights[client] for client in said])
        yield from ((client, Message(mean, {"kind": ENDS})) for client in said)

    def _forward(self, said: Mapping[str, Message]) -> Answers:
        states = [_states_in(message, self._form) for message in said.values()]
        if len({cut_in(message) for message in said.values()}) > 1:
            raise FrameError("clients that are cut at different places cannot be one batch")
        rows = [Rows.from_json(_rows_in(message)) for message in said.values()]
        self._joint, self._joined = Joint(rows), list(said)
        wanted = any(message.values.get("wants_gradient") for message in said.values())
        cut = cut_in(next(iter(said.values())))
        output = self._replica.forward(
            "all", self._joint.join(states), self._joint.rows, wants_gradient=bool(wanted), cut=cut
        )
        yield from self._parts(STATES, self._joint.split(output), said)

    def _backward(self, said: Mapping[str, Message]) -> Answers:
        """Goes back with those who are in the joint batch; one that was lost since counts for nothing."""
        assert self._joint is not None  # noqa: S101 - a gradient follows states
        terms = {client: number_in(message, "terms") for client, message in said.items()}
        gradients = {client: _gradient_in(message, self._form) for client, message in said.items()}
        like = next(iter(gradients.values()))
        shapes = self._joint.shapes(like.shape[-1])
        own = [
            gradients[client] if client in gradients else like.new_zeros(shape)
            for client, shape in zip(self._joined, shapes, strict=True)
        ]
        counts = [terms.get(client, 0) for client in self._joined]
        scales = mean_scales(counts, "clients") if self._by == "clients" else None
        back = self._replica.backward("all", self._joint.join(own, scales))
        parts = [None] * len(own) if back is None else self._joint.split(back, scales)
        mine = [part for client, part in zip(self._joined, parts, strict=True) if client in said]
        self._terms += sum(counts)
        self._stepped |= {client for client, message in said.items() if message.values.get("last")}
        yield from self._parts(GRADIENT, mine, said)

    def _parts(self, kind: str, parts: Sequence[Tensor | None], said: Mapping[str, Message]) -> Answers:
        for (client, message), part in zip(said.items(), parts, strict=True):
            values = {"batch": number_in(message, "batch")}
            yield client, pack(kind, None if part is None else part.contiguous(), self._form, values)


class Hierarchical:
    """A copy of B for each client, of the blocks it lacks; all are averaged now and then, and at the end.

    So are the clients' ends, when all who are there have sent theirs: of each tensor the mean over those who
    have it.

    Args:
        replica_of: Makes the copy of the client of this name.
        clients: The clients that take part, with the weight of each in averages.
        form: How hidden states and gradients travel.
        average_every: Steps between averages; none for the end alone.
        average_ends: Whether clients will ask for averages of their ends.

    Attributes:
        together: Whether clients must be there at once.
        ordered: Never: no copy depends on another client's before an average.
    """

    ordered: ClassVar[bool] = False

    def __init__(
        self,
        replica_of: Callable[[str], Replica],
        clients: Mapping[str, float],
        form: Form,
        average_every: int | None,
        *,
        average_ends: bool = False,
    ) -> None:
        self._replicas = {client: replica_of(client) for client in clients}
        self._weights, self._form, self._every = dict(clients), form, average_every
        self.together = average_every is not None or average_ends
        self._there = list(clients)
        self._terms = dict.fromkeys(clients, 0)
        self._held: dict[str, list[Message]] = {}  # of those who wait for an average
        self._ends: dict[str, Message] = {}  # of those who wait for one of their ends

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The mean of what the copies have learnt, of each block over those that have it."""
        copies = self._replicas
        return mean_of([copies[each].tensors for each in copies], [self._weights[each] for each in copies])

    def hear(self, client: str, message: Message) -> Answers:
        """Answers at once, or once the copies have been averaged."""
        if client in self._held:
            self._held[client].append(message)
        else:
            yield from self._answered(client, message)
        yield from self._averaged()

    def leave(self, client: str) -> Answers:
        """Goes on without the client; its copy stays as it is, and counts."""
        self._there = [each for each in self._there if each != client]
        self._held.pop(client, None)
        self._ends.pop(client, None)
        yield from self._averaged()

    def _answered(self, client: str, message: Message) -> Answers:
        if kind_of(message) == ENDS:
            self._ends[client] = message
            return
        replica = self._replicas[client]
        yield client, _answered(replica, client, message, self._form)
        if kind_of(message) != GRADIENT:
            return
        self._terms[client] += number_in(message, "terms")
        if message.values.get("last"):
            replica.step(self._terms[client])
            self._terms[client] = 0
            if self._every and replica.steps % self._every == 0:
                self._held[client] = []

    def _averaged(self) -> Answers:
        """Averages the copies, or the ends, once every client that is there waits for it."""
        if self._there and all(client in self._held for client in self._there):
            yield from self._with_averaged_copies()
        if self._there and all(client in self._ends for client in self._there):
            said, self._ends = self._ends, {}
            mean = mean_of([own.tensors for own in said.values()], [self._weights[each] for each in said])
            for client, own in said.items():
                yield client, Message({name: mean[name] for name in own.tensors}, {"kind": ENDS})

    def _with_averaged_copies(self) -> Answers:
        """Averages the copies and answers what came meanwhile."""
        mean = self.tensors
        for replica in self._replicas.values():
            replica.middle.model.load({name: mean[name] for name in replica.names})
        held, self._held = self._held, {}
        for client, messages in held.items():
            for message in messages:
                yield from self._answered(client, message)


def mean_of(tensors: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Returns the weighted mean of each tensor over those who have it, float32."""
    mean = StreamingMean()
    for own, weight in zip(tensors, weights, strict=True):
        mean.add(Update(own, {}, weight=weight))
    return mean.finish([]).tensors


def _answered(replica: Replica, client: str, message: Message, form: Form) -> Message:
    """Returns what one copy of B makes of one client's message."""
    batch = number_in(message, "batch")
    name, values = f"{client}/{batch}", {"batch": batch}
    if kind_of(message) == GRADIENT:
        return pack(GRADIENT, replica.backward(name, _gradient_in(message, form)), form, values)
    states, rows = _states_in(message, form), Rows.from_json(_rows_in(message))
    wanted = bool(message.values.get("wants_gradient"))
    output = replica.forward(name, states, rows, wants_gradient=wanted, cut=cut_in(message))
    return pack(STATES, output, form, values)


def _states_in(message: Message, form: Form) -> Tensor:
    if kind_of(message) != STATES or (states := unpack(message, form)) is None:
        raise FrameError(f"a {kind_of(message)} message came in place of hidden states")
    return states


def _gradient_in(message: Message, form: Form) -> Tensor:
    if (gradient := unpack(message, form)) is None:
        raise FrameError("a gradient message came without a gradient")
    return gradient


def _rows_in(message: Message) -> Mapping[str, object]:
    rows = message.values.get("rows")
    if not isinstance(rows, dict):
        raise FrameError("hidden states came without the lengths of their rows")
    return rows
