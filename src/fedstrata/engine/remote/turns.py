"""Turns of clients that are processes elsewhere, over a hub.

They compute at once where the method lets them, and what they say comes in whatever order it comes; nothing
of it is trusted before it was looked at. Few plans are on their way at a time, and what a client with a whole
model has computed stays there until it is fetched, so that the server holds few of either however many
clients there are. Where the model is divided an update, which is small, comes at once: others may wait for
its client to have ended.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from fedstrata.client.failures import is_client_failure, kind_of, message_of
from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.cohort import Service
from fedstrata.core.errors import FedstrataError, FrameError, LineError, printable
from fedstrata.core.types import Message, Tensors, Update
from fedstrata.engine.conversation import NOBODY
from fedstrata.engine.protocol import Turns
from fedstrata.split.messages import LARGEST_WEIGHT, require_moderate
from fedstrata.transport.header import Header, Kind
from fedstrata.transport.hub import Hub
from fedstrata.transport.members import Arrival
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame
from fedstrata.wire.meter import Meter

AHEAD = 2
"""How many updates are fetched and not yet taken: while one is folded the next is on its way. The same for
plans: as many are sent and not yet taken by their clients."""
SLOW = 30.0
"""Seconds for which a plan that its client does not take keeps others from being sent."""


class ClientFailedError(FedstrataError):
    """A client says that its turn has failed; the message is what it says of its error."""


class NobodySpeaks:
    """The service of handlers that only take a plan and give an update; implements `core.cohort.Service`."""

    together = True
    ordered = False

    def hear(self, client: str, message: Message) -> Iterable[tuple[str, Message]]:
        """Refuses to hear anything."""
        raise FrameError(f"client {client!r} speaks, and nobody listens")

    def leave(self, client: str, *, lost: bool = False) -> Iterable[tuple[str, Message]]:
        """Hears that a client has ended."""
        return ()


@dataclass
class _Turn:
    """One client's turn, as long as it goes on.

    Attributes:
        order: What the client does.
        number: Of the turn.
        session: The client's, as the turn began.
        stays: Whether its update stays there until it is fetched.
        began: When it began.
        ready: What the client says of its work, once that is done and its update has not yet come.
        fetched: Whether it has been asked for its update.
    """

    order: Order
    number: int
    session: str
    stays: bool
    began: float = field(default_factory=time.perf_counter)
    ready: Header | None = None
    fetched: bool = False


@dataclass
class RemoteTurns:
    """The turns of clients that work at once.

    Attributes:
        hub: The lines to the clients.
        service: Whom they talk with.
        meter: Counts what they say, and what they are told.
        check: Looks at an update before anything is done with it; raises FrameError.
        delivered: Told the number of each client's turn whose update has come.
        trained: How many numbers a client trains at most, of a divided model together with the server.
        begun: Told in how many turns a client says that it has begun to train privately.
        stays: Whether updates stay at their clients until they are fetched: not where the model is divided.
    """

    hub: Hub
    service: Service
    meter: Meter
    check: Callable[[Order, Update], None]
    delivered: Callable[[str, int], None]
    trained: int
    begun: Callable[[str, int], None]
    stays: bool
    _turns: dict[str, _Turn] = field(default_factory=dict)
    _done: dict[str, Done] = field(default_factory=dict)
    _failed: deque[tuple[Order, Failed]] = field(default_factory=deque)
    _unreachable: deque[tuple[str, FedstrataError]] = field(default_factory=deque)

    def run(self, orders: Iterable[Order]) -> Turns:
        """Sends plans, a few at a time, and takes in what clients say until none is at work."""
        waiting, ahead, lost = iter(orders), deque[Order](), set[str]()
        left = True
        try:
            while left or self._turns or self._failed or self._unreachable:
                while left and self._may_begin():
                    if left := (order := next(waiting, None)) is not None:
                        ahead.append(order)
                        self._begin(order)
                while self._unreachable:
                    self._fail(*self._unreachable.popleft())
                while self._failed:
                    order, failed = self._failed.popleft()
                    lost.add(order.client)
                    yield order, failed
                    self._say(self.service.leave(order.client, lost=True))
                yield from self._in_order(ahead, lost)
                self._fetch(ahead)
                if self._turns and not self._unreachable:
                    self._receive(more=left)
            yield from self._in_order(ahead, lost)
        finally:
            for client in list(self._turns):
                self._end(client, "the round has ended")

    def _in_order(self, ahead: deque[Order], lost: Collection[str]) -> Iterator[tuple[Order, Done]]:
        """Yields what is done of all that comes before what is not."""
        while ahead and (ahead[0].client in lost or ahead[0].client in self._done):
            order = ahead.popleft()
            if order.client not in lost:
                yield order, self._done.pop(order.client)

    def _fetch(self, ahead: Iterable[Order]) -> None:
        """Asks for the updates that will be taken next and lie ready."""
        for order in islice(ahead, AHEAD):
            turn = self._turns.get(order.client)
            if turn is not None and turn.ready is not None and not turn.fetched:
                turn.fetched = True
                self._send(order.client, Header(Kind.FETCH, turn=turn.number), frame.encode(Message()))

    def _may_begin(self) -> bool:
        """Whether one more plan may be on its way."""
        begun = time.perf_counter() - SLOW
        on_their_way = sum(
            turn.ready is None and turn.began > begun and not self.hub.has_taken(client)
            for client, turn in self._turns.items()
        )
        return on_their_way < AHEAD

    def _begin(self, order: Order) -> None:
        """Sends a plan."""
        number, session = next(self.hub.turns), self.hub.session(order.client)
        self._turns[order.client] = _Turn(order, number, session, self.stays)
        if not session:
            missing = LineError(f"client {order.client!r} is not connected")
            self._unreachable.append((order.client, missing))
            return
        header = Header(Kind.PLAN, turn=number, round=order.round, handler=order.handler, call=order.call)
        self._send(order.client, header, order.plan)

    def _receive(self, *, more: bool) -> None:
        """Takes in the next that a client says; what belongs to a turn that is over counts for nothing.

        Args:
            more: Whether plans are left to be sent, so that it ends once one more may be.
        """
        if more:
            arrival = self.hub.receive(SLOW, unless=self._may_begin)
        else:
            arrival = self.hub.receive(self.hub.timing.answer)
        if arrival is None:
            # With no plan left nobody is asked anything, or they would have been lost by now.
            for client in () if more else list(self._turns):
                self._fail(client, LineError(NOBODY))
            return
        if (turn := self._turns.get(arrival.client)) is None or arrival.session != turn.session:
            return
        if arrival.lost is not None:
            self._fail(arrival.client, arrival.lost)
        elif arrival.header is not None and arrival.header.turn == turn.number:
            try:
                self._take(turn, arrival)
            except Exception as error:
                if not is_client_failure(error) or arrival.client not in self._turns:
                    raise
                sent = arrival.frame if arrival.header.kind == Kind.UPDATE else None
                self._fail(arrival.client, error, sent)

    def _take(self, turn: _Turn, arrival: Arrival) -> None:
        """Takes in one message of a turn."""
        header, content, client = arrival.header, arrival.frame, arrival.client
        assert header is not None  # noqa: S101 - it is no loss
        assert content is not None  # noqa: S101
        if header.begun:
            self.begun(client, header.begun)
        if header.kind == Kind.FAILED:
            reason = frame.decode(content, Message).values.get("message")
            raise ClientFailedError(printable(str(reason)))
        if header.kind == Kind.SAID:
            self.meter.count_said(client, content, up=True)
            self._say(self.service.hear(client, frame.decode(content, Message)))
            return
        if header.kind == Kind.READY and turn.stays and turn.ready is None:
            turn.ready = header
            return
        if header.kind != Kind.UPDATE or turn.stays != turn.fetched:
            message = f"client {client!r} sent {header.kind.name} in the middle of a turn"
            raise FrameError(message, code="out_of_order")
        self.check(turn.order, frame.decode(content, Update))
        said = turn.ready or header
        seconds = min(max(said.seconds, 0.0), time.perf_counter() - turn.began)
        trained = min(said.trained, self.trained) if turn.stays else self.trained  # there, and here
        self._done[client] = Done(content, seconds, trained)
        self.delivered(client, self._turns.pop(client).number)
        self._say(self.service.leave(client))

    def _say(self, answers: Iterable[tuple[str, Message]]) -> None:
        for client, message in answers:
            content = frame.encode(message)
            if client in self._turns:
                self.meter.count_said(client, content, up=False)
                self._send(client, Header(Kind.SAID, turn=self._turns[client].number), content)

    def _send(self, client: str, header: Header, content: Frame) -> None:
        try:
            self.hub.send(client, header, content)
        except FedstrataError as error:  # later: the service may be in the middle of what it says
            self._unreachable.append((client, error))

    def _fail(self, client: str, error: Exception, sent: Frame | None = None) -> None:
        """Goes on without a client, which sent an update that is of no use, or none."""
        if client in self._turns:
            self._failed.append((self._turns[client].order, Failed(error, update=sent)))
            self._end(client, message_of(error) or kind_of(error))

    def _end(self, client: str, reason: str) -> None:
        """Ends a client's turn, and tells it if it is there."""
        tell_failed(self.hub, client, self._turns.pop(client).number, reason)


class TurnsBegun:
    """In how many turns clients have begun to train privately, by what each says of itself.

    One that says fewer than before has lost what it kept, and counts anew; both counts were spent. Where the
    server has gone on from its record, this may count turns twice, and never too few.

    Args:
        known: How many each had begun when the server began.
    """

    def __init__(self, known: Mapping[str, int]) -> None:
        self._before, self._said = Counter[str](), Counter(known)

    def hear(self, client: str, said: int) -> bool:
        """Takes down what a client says; returns whether it counts anew."""
        anew = said < self._said[client]
        if anew:
            self._before[client] += self._said[client]
        self._said[client] = said
        return anew

    def __getitem__(self, client: str) -> int:
        return self._before[client] + self._said[client]


def tell_failed(hub: Hub, client: str, turn: int, reason: str) -> None:
    """Tells a client, if it is there, that a turn of it is over and does not count."""
    content = frame.encode(Message({}, {"message": reason}))
    if client in hub.present:
        with suppress(FedstrataError):
            hub.tell(client, Header(Kind.FAILED, turn=turn), content)


def check_update(update: Update) -> None:
    """Looks at an update before anything is done with it.

    Raises:
        FrameError: It would spoil an average, or the record.
    """
    if not (math.isfinite(update.weight) and update.weight >= 0):
        message = f"an update weighs {update.weight:g}; it must be a finite number of 0 or more"
        raise FrameError(message, code="out_of_range")
    if not isinstance(update.values.get("loss", 0.0), float):
        raise FrameError("an update's loss is no number", code="wrong_type")
    for name, value in update.values.items():
        if isinstance(value, int | float) and not abs(value) <= LARGEST_WEIGHT:
            message = f"an update says {name:.40}={value!r:.40}, which cannot be averaged"
            raise FrameError(message, code="out_of_range")
    require_moderate(update.tensors)


def check_trained(update: Update, weight: float, due: Tensors) -> None:
    """Looks at whether an update is that of a client that has trained what it was to train.

    Args:
        update: The update.
        weight: What it must weigh.
        due: What it must hold, without values.

    Raises:
        FrameError: It is not.
    """
    if update.weight != weight:
        raise FrameError(f"an update weighs {update.weight:g}, and not {weight:g}", code="not_agreed")
    if lacking := sorted(due.keys() - update.tensors.keys()):
        raise FrameError(
            f"an update lacks {len(lacking)} of the weights that were to be trained, {lacking[0]} for one",
            code="missing",
        )
    for name, tensor in update.tensors.items():
        if name not in due:
            message = f"tensor {name!r} came, which is nothing that the client was to send"
            raise FrameError(message, code="not_agreed")
        if tensor.dtype != due[name].dtype or tensor.shape != due[name].shape:
            came, wanted = (
                f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}"
                for each in (tensor, due[name])
            )
            raise FrameError(f"tensor {name!r} came as {came}, not {wanted}", code="wrong_shape")
