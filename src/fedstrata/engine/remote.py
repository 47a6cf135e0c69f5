"""The server's half of a round between processes: what a method's `round` needs, over a hub.

The same rules as in a simulation (`fedstrata.engine.roll`): who is lost, when a round ends, what is counted
and what the record says. Only that clients compute by themselves, at once where the method lets them, and
that their messages come in whatever order they come.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedstrata.aggregate.mean import MeanResult, mean_of
from fedstrata.core.errors import FedstrataError, FrameError, LineError, printable
from fedstrata.core.types import ClientInfo, Message, Plan, Tensors, Update
from fedstrata.engine.agreeing import SCORE
from fedstrata.engine.conversation import NOBODY, TimedService
from fedstrata.engine.failures import Attendance, describe, is_client_failure
from fedstrata.engine.roll import Exchanged, Roll
from fedstrata.record.log import Listener
from fedstrata.split.divide import middle_of
from fedstrata.split.messages import LARGEST_WEIGHT, require_moderate
from fedstrata.split.transport.header import Header, Kind
from fedstrata.wire import frame

if TYPE_CHECKING:
    from fedstrata.core.cohort import Service
    from fedstrata.core.cut import Cut
    from fedstrata.core.method import Method
    from fedstrata.core.settings.training import TrainingSettings
    from fedstrata.models.state import Model
    from fedstrata.split.transport.hub import Hub
    from fedstrata.split.transport.members import Arrival
    from fedstrata.wire.frame import Frame


MessageType = TypeVar("MessageType", bound=Message)


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
class RemoteCohort:
    """The clients of one round; implements `core.cohort.Cohort`, but for the server's own documents.

    Attributes:
        method: Whose round it is.
        model: The server's part of the model, or all of it: what any of the clients lacks.
        hub: The lines to the clients.
        infos: Who takes part, in order.
        training: How they train, and the server too.
        folder: The run directory, for messages.
        number: The round, counted from 1.
        listen: Told of progress.
        min_clients: How many clients must deliver; every one when none.
        roll: Who is lost so far, what travelled, and what the record says of it.
        delivered: The number of each client's last turn whose update has come, and counts.
        train_seconds: Time that clients were at work so far, all together.
    """

    method: Method
    model: Model
    hub: Hub
    infos: Sequence[ClientInfo]
    training: TrainingSettings
    folder: Path
    number: int
    listen: Listener
    min_clients: int | None = None
    roll: Roll = field(init=False)
    delivered: dict[str, int] = field(default_factory=dict)
    train_seconds: float = 0.0

    def __post_init__(self) -> None:
        attendance = Attendance([info.id for info in self.infos], min_clients=self.min_clients)
        served = "fedstrata split serve"
        self.roll = Roll(self.number, self.folder, self.listen, attendance, served)

    @property
    def clients(self) -> Sequence[ClientInfo]:
        """Who takes part."""
        return self.infos

    def mean(self, handler: str, plan_of: Callable[[ClientInfo], Plan]) -> MeanResult:
        """Folds every update into one running sum per tensor."""
        return mean_of(self.each(handler, plan_of))

    def each(
        self, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Yields the updates of all clients, which work at once, in the clients' order.

        Raises:
            ClientsLostError: A client failed, and the round cannot do without it.
        """
        yield from self._take_turns(handler, list(self._present(handler, plan_of)), NobodySpeaks())

    def converse(
        self,
        handler: str,
        plan_of: Callable[[ClientInfo], Plan],
        service: Service,
        cut_of: Callable[[ClientInfo], Cut],
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Yields updates of clients that talk with the server's half; where they are cut was agreed before.

        Raises:
            ClientsLostError: As `each` does.
        """
        present = list(self._present(handler, plan_of))
        service = TimedService(service, self.roll.served)
        for group in [[one] for one in present] if service.ordered else [present]:
            yield from self._take_turns(handler, group, service)

    def middle(self, cut: Cut) -> Model:
        """Returns the middle of the model with its own copies of what trains, at their base values."""
        self.model.restore()
        return middle_of(self.model, cut, self.method.trainable(self.model.layout))

    def server_loss(self, tensors: Tensors) -> float:
        """Is not there: a server of clients in other processes has no documents."""
        raise NotImplementedError("the server has no documents of its own")

    def reject(self, client: str, error: FedstrataError) -> None:
        """Does without a client's update, and tells it so; see `core.cohort.Cohort.reject`."""
        self.tell_failed(client, self.delivered.pop(client), describe(error))
        self.roll.fail(client, error, self.roll.meter.down[client])

    def tell_failed(self, client: str, turn: int, reason: str) -> None:
        """Tells a client, if it is there, that a turn of it is over and does not count."""
        content = frame.encode(Message({}, {"message": reason}))
        if client in self.hub.present:
            with suppress(FedstrataError):
                self.hub.tell(client, Header(Kind.FAILED, turn=turn), content)

    def _present(
        self, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Frame]]:
        return self.roll.present(handler, self.infos, plan_of)

    def _take_turns(
        self, handler: str, group: Sequence[tuple[ClientInfo, Frame]], service: Service
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Lets clients work at once, and yields their updates once all have ended."""
        turns = _Turns(self, service, group)
        try:
            turns.begin(handler)
            turns.run()
        finally:
            turns.abandon()
        for info, _ in group:
            if info.id in turns.updates:
                yield info, turns.updates[info.id]


@dataclass
class _Turn:
    """One client's turn, as long as it goes on."""

    info: ClientInfo
    number: int
    session: str
    exchanged: Exchanged
    due: Collection[str]
    began: float = field(default_factory=time.perf_counter)


class _Turns:
    """The turns of clients that work at once."""

    def __init__(
        self, cohort: RemoteCohort, service: Service, group: Sequence[tuple[ClientInfo, Frame]]
    ) -> None:
        self.updates: dict[str, Update] = {}
        self._cohort, self._service, self._group = cohort, service, group
        self._roll, self._hub = cohort.roll, cohort.hub
        self._turns: dict[str, _Turn] = {}
        self._handler = ""
        self._unreachable: deque[tuple[str, FedstrataError]] = deque()

    def begin(self, handler: str) -> None:
        """Sends all plans."""
        self._handler = handler
        for info, sent in self._group:
            number, session = next(self._hub.turns), self._hub.session(info.id)
            begun = self._roll.begin(info.id, sent)
            self._turns[info.id] = _Turn(info, number, session, begun, self._due(info.id))
        call = self._roll.calls[handler]
        for info, sent in self._group:
            turn = self._turns[info.id]
            if not turn.session:
                self._unreachable.append((info.id, LineError(f"client {info.id!r} is not connected")))
                continue
            header = Header(
                Kind.PLAN,
                turn=turn.number,
                round=self._cohort.number,
                handler=handler,
                call=call,
            )
            self._send(info.id, header, sent)

    def run(self) -> None:
        """Takes in what clients say until none is at work."""
        while self._turns:
            while self._unreachable:
                self._fail(*self._unreachable.popleft())
            arrival = self._hub.receive(self._hub.timing.answer) if self._turns else None
            if arrival is not None:
                self._hear(arrival)
            else:  # nobody has been asked anything, or they would have been lost by now
                for client in list(self._turns):
                    self._fail(client, LineError(NOBODY))

    def abandon(self) -> None:
        """Tells those who are still at work that they need not go on."""
        for client in list(self._turns):
            self._end(client, "the round has ended")

    def _hear(self, arrival: Arrival) -> None:
        """Takes in what came from a client; what belongs to a turn that is over counts for nothing."""
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
                self._fail(arrival.client, error)

    def _take(self, turn: _Turn, arrival: Arrival) -> None:
        """Takes in one message of a turn."""
        header, content, client = arrival.header, arrival.frame, arrival.client
        assert header is not None  # noqa: S101 - it is no loss
        assert content is not None  # noqa: S101
        if header.kind == Kind.FAILED:
            reason = _decoded(content, Message).values.get("message")
            raise ClientFailedError(printable(str(reason)))
        if header.kind == Kind.SAID:
            self._roll.meter.count_said(client, content, up=True)
            self._say(self._service.hear(client, _decoded(content, Message)))
            return
        if header.kind != Kind.UPDATE:
            raise FrameError(f"client {client!r} sent {header.kind.name} in the middle of a turn")
        self._roll.meter.count_up(client, content)
        update = _decoded(content, Update)
        if self._handler == SCORE:
            _check(update)
        else:
            _check(update, turn.info, self._cohort.method.weighs(turn.info), turn.due)
        seconds = min(max(header.seconds, 0.0), time.perf_counter() - turn.began)
        self._roll.trained(client, update)
        self._cohort.train_seconds += seconds
        self._roll.deliver(turn.info, update, turn.exchanged, seconds)
        self.updates[client] = update
        self._cohort.delivered[client] = self._turns.pop(client).number
        self._say(self._service.leave(client))

    def _due(self, client: str) -> Collection[str]:
        """Returns which weights a client has to send when it has trained."""
        try:
            ends = self._hub.greeting(client)["ends"]
        except LineError:
            return ()  # it is not there, and nothing of this turn will come
        return self._cohort.method.expects(self._handler, ends if isinstance(ends, dict) else ())

    def _say(self, answers: Iterable[tuple[str, Message]]) -> None:
        for client, message in answers:
            content = frame.encode(message)
            if client in self._turns:
                self._roll.meter.count_said(client, content, up=False)
                self._send(client, Header(Kind.SAID, turn=self._turns[client].number), content)

    def _send(self, client: str, header: Header, content: Frame) -> None:
        try:
            self._hub.send(client, header, content)
        except FedstrataError as error:  # later: the service may be in the middle of what it says
            self._unreachable.append((client, error))

    def _fail(self, client: str, error: Exception) -> None:
        """Goes on without a client, or ends the run if the round needs it."""
        if client not in self._turns:
            return
        turn = self._turns[client]
        self._end(client, describe(error))
        self._roll.fail(client, error, turn.exchanged.down)
        self._say(self._service.leave(client, lost=True))

    def _end(self, client: str, reason: str) -> None:
        """Ends a client's turn, and tells it if it is there."""
        self._cohort.tell_failed(client, self._turns.pop(client).number, reason)


def _decoded(content: Frame, kind: type[MessageType]) -> MessageType:
    """Returns what a client says.

    Raises:
        FrameError: It cannot be read, whatever the reason: the message is the client's.
    """
    try:
        return frame.decode(content, kind)
    except FedstrataError:
        raise
    except Exception as error:
        raise FrameError(f"a message is damaged ({type(error).__name__})") from None


def _check(
    update: Update, info: ClientInfo | None = None, weight: float = 0.0, weights: Collection[str] = ()
) -> None:
    """Looks at an update before anything is done with it.

    Args:
        update: The update.
        info: What is known of the client if the update is one of training.
        weight: What it must then weigh.
        weights: What it must hold: all that was to be trained.

    Raises:
        FrameError: It would spoil an average, or the record.
    """
    if info is not None and update.weight != weight:
        raise FrameError(f"an update weighs {update.weight:g} where the client has {info.examples} examples")
    if lacking := sorted(set(weights) - update.tensors.keys()):
        raise FrameError(
            f"an update lacks {len(lacking)} of the weights that were to be trained, {lacking[0]} for one"
        )
    if not (math.isfinite(update.weight) and update.weight >= 0):
        raise FrameError(f"an update weighs {update.weight:g}; it must be a finite number of 0 or more")
    if not isinstance(update.values.get("loss"), float | None):
        raise FrameError("an update's loss is no number")
    for name, value in update.values.items():
        if isinstance(value, int | float) and not abs(value) <= LARGEST_WEIGHT:
            raise FrameError(f"an update says {name:.40}={value!r:.40}, which cannot be averaged")
    require_moderate(update.tensors)
