"""The server's half while clients train a divided model: who is answered when, and when B takes a step.

Source: FL-LLaMA, section 3.3. `Sequential` serves one client at a time; `ClientBatch` runs the batches of all
clients as one; `Hierarchical` has a copy of B for every client and averages them. All implement
`core.cohort.Service`. The gradient of a step of B is that of a mean, never of a sum over clients
(`fedstrata.split.joint`). What a client says is checked when it comes (`fedstrata.split.protocol`).
"""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from fedstrata.aggregate.mean import StreamingMean
from fedstrata.core.errors import FrameError, TrainingError
from fedstrata.core.types import Message, Tensors, Update
from fedstrata.split.joint import Joint, mean_scales
from fedstrata.split.messages import ENDS, GRADIENT, STATES, pack
from fedstrata.split.protocol import Course, Said
from fedstrata.split.replica import Replica

Answers = Iterator[tuple[str, Message]]


class Sequential:
    """Serves one client at a time, each with a step of its own.

    Args:
        replica: The one copy of B.
        clients: Who takes part, in order, and what each may say.
        by_step: Whether clients take turns step by step; if not, each trains to its end before the next.

    Attributes:
        together: Whether clients must be there at once.
        ordered: Whether each trains to its end before the next.
    """

    def __init__(self, replica: Replica, clients: Mapping[str, Course], *, by_step: bool) -> None:
        self._replica, self._courses = replica, clients
        self.together, self.ordered = by_step, not by_step
        self._order = list(clients)
        self._waiting: dict[str, deque[Said]] = {client: deque() for client in clients}
        self._open: str | None = None  # whose step has begun
        self._terms = 0.0
        self._next = 0

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What of B has been learnt, by name."""
        return self._replica.tensors

    def hear(self, client: str, message: Message) -> Answers:
        """Answers, once it is the client's turn."""
        self._waiting[client].append(self._courses[client].hear(message))
        yield from self._go_on()

    def leave(self, client: str, *, lost: bool = False) -> Answers:
        """Gives the turn to the next; of a step that nobody will complete nothing is left."""
        if client == self._open:
            self._replica.discard()
            self._open, self._terms = None, 0.0
        if client in self._order:
            place = self._order.index(client)
            self._order.remove(client)
            self._next -= place < self._next
            self._next %= max(len(self._order), 1)
        self._waiting[client].clear()
        yield from self._go_on()

    def _go_on(self) -> Answers:
        while self._order and self._waiting[client := self._turn()]:
            said = self._waiting[client].popleft()
            self._open = client
            yield client, _answered(self._replica, client, said, self._courses[client])
            self._terms += said.terms
            if said.last:
                terms, self._open, self._terms = self._terms, None, 0.0
                self._next = (self._next + self.together) % len(self._order)
                self._replica.step(terms)

    def _turn(self) -> str:
        """Returns whose turn it is; without `by_step` that of whoever has begun, or has something to say."""
        if self.together:
            return self._order[self._next]
        return self._open or next((each for each in self._order if self._waiting[each]), self._order[0])


class ClientBatch:
    """Runs what all clients send as one batch, with one step of B for all.

    A client that has fewer batches leaves earlier; the step is then that of the others. Of a client that is
    lost in a step, those of its batches count of which the gradient has come.

    Args:
        replica: The one copy of B.
        clients: Who takes part, and what each may say.
        weights: The weight of each in averages of ends.
        by: Whose mean B's gradient is: of all terms of all clients, or of the clients' means. The latter
            needs steps of one batch: with more, a client's terms are not known before its last gradient.
    """

    together: ClassVar[bool] = True
    ordered: ClassVar[bool] = False

    def __init__(
        self,
        replica: Replica,
        clients: Mapping[str, Course],
        weights: Mapping[str, float],
        by: Literal["terms", "clients"] = "terms",
    ) -> None:
        self._replica, self._courses, self._by = replica, clients, by
        self._weights = dict(weights)
        self._there = list(clients)
        self._said: dict[str, Said] = {}
        self._stepped: set[str] = set()  # those whose part of the present step is complete
        self._terms = 0.0
        self._joint: Joint | None = None
        self._joined: list[str] = []

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What of B has been learnt, by name."""
        return self._replica.tensors

    def hear(self, client: str, message: Message) -> Answers:
        """Answers all, once all have spoken."""
        if client in self._said:
            raise FrameError(
                f"client {client} speaks twice before it is answered; in_flight is 1 here",
                code="out_of_order",
            )
        said = self._courses[client].hear(message)
        if client in self._stepped and said.kind == GRADIENT:
            raise FrameError(
                f"client {client} goes on with a step that it has called complete", code="out_of_order"
            )
        self._said[client] = said
        yield from self._go_on()

    def leave(self, client: str, *, lost: bool = False) -> Answers:
        """Goes on without the client."""
        self._there = [each for each in self._there if each != client]
        self._said.pop(client, None)
        with suppress(TrainingError):  # a step that the client has spoilt is nobody's
            self._step()
        yield from self._go_on()

    def _go_on(self) -> Answers:
        if not self._there or any(client not in self._said for client in self._there):
            return
        now = {each: self._said[each] for each in self._there if each not in self._stepped}
        for kind, answer in ((ENDS, self._averaged), (STATES, self._forward), (GRADIENT, self._backward)):
            if own := {client: said for client, said in now.items() if said.kind == kind}:
                for client in own:
                    del self._said[client]
                yield from answer(own)
                return

    def _step(self) -> None:
        """Takes a step if the part of everybody who is there is complete."""
        if not self._stepped or not self._stepped.issuperset(self._there):
            return
        terms, self._terms = self._terms, 0.0
        self._stepped.clear()
        self._replica.step(terms if self._by == "terms" else 1.0)

    def _averaged(self, said: Mapping[str, Said]) -> Answers:
        mean = mean_tensors({client: own.ends for client, own in said.items()}, self._weights)
        for client in said:
            self._courses[client].answered(said[client])
            yield client, Message(mean, {"kind": ENDS})

    def _forward(self, said: Mapping[str, Said]) -> Answers:
        output = self._run(said)
        whole = {each: said[each] for each in said if bool(torch.isfinite(output[each]).all())}
        if whole and len(whole) < len(said):  # or B's gradient would not be finite either, for everybody
            output |= self._run(whole)
        for client, own in said.items():
            if client in whole:
                yield client, self._answer(client, own, output[client])
            else:  # it will say itself that this cannot be
                yield client, pack(STATES, output[client], self._courses[client].form, {"batch": own.batch})

    def _run(self, said: Mapping[str, Said]) -> dict[str, Tensor]:
        """Runs B on the states of several clients as one batch; returns each one's part."""
        self._joint, self._joined = Joint([own.rows for own in said.values()]), list(said)
        states = self._joint.join([own.tensor for own in said.values()])
        wanted = any(own.wants_gradient for own in said.values())
        cut = next(self._courses[client].cut for client in said)
        batch = max(own.batch for own in said.values())
        output = self._replica.forward(
            "all", states, self._joint.rows, batch=batch, wants_gradient=wanted, cut=cut
        )
        return dict(zip(said, self._joint.split(output), strict=True))

    def _backward(self, said: Mapping[str, Said]) -> Answers:
        """Goes back with those who are in the joint batch; one that was lost since counts for nothing."""
        assert self._joint is not None  # noqa: S101 - a gradient follows states
        like = next(iter(said.values())).tensor
        own = [
            said[client].tensor if client in said else like.new_zeros(shape)
            for client, shape in zip(self._joined, self._joint.shapes(like.shape[-1]), strict=True)
        ]
        counts = [said[client].terms if client in said else 0 for client in self._joined]
        scales = mean_scales(counts) if self._by == "clients" else None
        back = self._replica.middle.backward("all", self._joint.join(own, scales))
        parts = [None] * len(own) if back is None else self._joint.split(back, scales)
        self._terms += sum(counts)
        self._stepped |= {client for client in said if said[client].last}
        for client, part in zip(self._joined, parts, strict=True):
            if client in said:
                yield client, self._answer(client, said[client], part)
        self._step()

    def _answer(self, client: str, said: Said, part: Tensor | None) -> Message:
        course = self._courses[client]
        course.answered(said)
        part = None if part is None else part.contiguous()
        return pack(said.kind, part, course.form, {"batch": said.batch})


class Hierarchical:
    """A copy of B for each client, of the blocks it lacks; all are averaged now and then, and at the end.

    The copy of a client that is lost counts in no average from then on. The clients' ends are averaged when
    all who are there have sent theirs: of each tensor the mean over those who have it.

    Args:
        replicas: Each client's copy.
        clients: Who takes part, and what each may say.
        weights: The weight of each in averages.
        average_every: Steps between averages; none for the end alone.
        average_ends: Whether clients will ask for averages of their ends.

    Attributes:
        together: Whether clients must be there at once.
        ordered: Never: no copy depends on another client's before an average.
    """

    ordered: ClassVar[bool] = False

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        clients: Mapping[str, Course],
        weights: Mapping[str, float],
        average_every: int | None,
        *,
        average_ends: bool = False,
    ) -> None:
        self._replicas = dict(replicas)
        self._courses, self._weights, self._every = clients, dict(weights), average_every
        self.together = average_every is not None or average_ends
        self._there = list(clients)
        self._terms = dict.fromkeys(clients, 0.0)
        self._held: dict[str, list[Said]] = {}  # of those who wait for an average
        self._ends: dict[str, Said] = {}  # of those who wait for one of their ends

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The mean of what the copies have learnt, of each block over those that have it."""
        return mean_tensors({client: copy.tensors for client, copy in self._replicas.items()}, self._weights)

    def hear(self, client: str, message: Message) -> Answers:
        """Answers at once, or once the copies have been averaged."""
        said = self._courses[client].hear(message)
        if client in self._held:
            self._held[client].append(said)
        else:
            yield from self._answered(client, said)
        yield from self._averaged()

    def leave(self, client: str, *, lost: bool = False) -> Answers:
        """Goes on without the client; its copy stays as it is, and counts if the client has delivered."""
        self._there = [each for each in self._there if each != client]
        self._held.pop(client, None)
        self._ends.pop(client, None)
        if lost:
            self._replicas.pop(client, None)
        yield from self._averaged()

    def _answered(self, client: str, said: Said) -> Answers:
        if said.kind == ENDS:
            self._ends[client] = said
            return
        replica = self._replicas[client]
        yield client, _answered(replica, client, said, self._courses[client])
        self._terms[client] += said.terms
        if said.last:
            terms, self._terms[client] = self._terms[client], 0.0
            replica.step(terms)
            if self._every and replica.steps % self._every == 0:
                self._held[client] = []

    def _averaged(self) -> Answers:
        """Averages the copies, or the ends, once every client that is there waits for it."""
        if self._there and all(client in self._held for client in self._there):
            yield from self._with_averaged_copies()
        if self._there and all(client in self._ends for client in self._there):
            said, self._ends = self._ends, {}
            mean = mean_tensors({client: own.ends for client, own in said.items()}, self._weights)
            for client, own in said.items():
                self._courses[client].answered(own)
                yield client, Message({name: mean[name] for name in own.ends}, {"kind": ENDS})

    def _with_averaged_copies(self) -> Answers:
        """Averages the copies and answers what came meanwhile."""
        mean = self.tensors
        for replica in self._replicas.values():
            replica.middle.model.load({name: mean[name] for name in replica.names})
        held, self._held = self._held, {}
        for client, waiting in held.items():
            for said in waiting:
                yield from self._answered(client, said)


Mode: TypeAlias = Sequential | ClientBatch | Hierarchical
"""The server's half of a round of training."""


def mean_tensors(tensors: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Returns the mean of each tensor over the clients that have it, by their weights, float32."""
    mean = StreamingMean()
    for client, own in tensors.items():
        mean.add(Update(own, {}, weight=weights[client]))
    return mean.finish().tensors


def _answered(replica: Replica, client: str, said: Said, course: Course) -> Message:
    """Returns what one copy of B makes of one client's message."""
    name = f"{client}/{said.batch}"
    if said.kind == GRADIENT:
        found = replica.middle.backward(name, said.tensor)
    else:
        found = replica.forward(
            name, said.tensor, said.rows, batch=said.batch, wants_gradient=said.wants_gradient, cut=course.cut
        )
    course.answered(said)
    return pack(said.kind, found, course.form, {"batch": said.batch})
