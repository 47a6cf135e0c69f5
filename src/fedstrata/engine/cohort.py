"""The clients of a round, as a method sees them: one for every engine.

It keeps the round's book: who is lost, what travelled, how long that took, and what the record says of it.
Where clients compute, and how, is the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.aggregate.mean import mean_of
from fedstrata.client.failures import describe
from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.cohort import Mean, Service
from fedstrata.core.cut import Cut
from fedstrata.core.errors import FedstrataError, refused
from fedstrata.core.method import Method
from fedstrata.core.settings.devices import Device
from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.types import ClientInfo, LossMean, Plan, Tensors, Update
from fedstrata.engine.agreed import agreed, agreed_hash
from fedstrata.engine.book import Book
from fedstrata.engine.conversation import TimedService
from fedstrata.engine.devices import RoundClock
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.protocol import Engine, Summing, Turns
from fedstrata.engine.sampling import sample_size
from fedstrata.engine.scoring import ServerDocuments
from fedstrata.models.state import Model
from fedstrata.split.divide import middle_of
from fedstrata.wire import frame

if TYPE_CHECKING:
    from fedstrata.engine.secure_mean import SecureAggregation  # for masks alone


@dataclass
class RoundCohort:
    """The clients of one round; implements `core.cohort.Cohort`.

    Attributes:
        method: Whose round it is.
        model: The server's model, or its part of it.
        engine: Where the clients are.
        clients: Who takes part, in order.
        training: How they train, and the server too.
        book: Who is lost so far, what travelled, and what the record says of it.
        device_of: Returns the emulated device of the client of this name in this round; none without any.
        stored_states: Which output of its frozen blocks each client's emulated device holds; kept up to date.
        server: The server's own documents; none for a method that never asks for their loss.
        scored: The parts of the split that what a client has just trained is scored on.
        clock: Counts the seconds and the energy of emulated devices.
        train_seconds: Time spent in client handlers so far, all clients together.
        trained_scores: Scores of what each client has trained, by part.
        score_seconds: Time spent in scoring within the round so far.
        noised: Folds what comes back of a plan to a mean that is private to whole clients; none without.
        secure: Makes means of masked updates; none where updates are seen one by one.
        clipped: The share of each client's units whose gradient was clipped, in a simulation.
        waited_seconds: Time in which the round went on with turns, or with scoring, alone.
    """

    method: Method
    model: Model
    engine: Engine
    clients: Sequence[ClientInfo]
    training: TrainingSettings
    book: Book
    device_of: Callable[[str], Device | None] = lambda client: None
    stored_states: dict[str, str | None] = field(default_factory=dict)
    server: ServerDocuments | None = None
    scored: Sequence[str] = ()
    clock: RoundClock = field(default_factory=RoundClock)
    train_seconds: float = 0.0
    trained_scores: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    score_seconds: float = 0.0
    noised: Callable[[Tensors, Iterable[tuple[ClientInfo, Update]]], Mean] | None = None
    secure: Summing | None = None
    clipped: dict[str, float] = field(default_factory=dict)
    waited_seconds: float = 0.0

    @property
    def worked_seconds(self) -> float:
        """Time in which a client, the server's half or scoring was at work; that of several counts once."""
        worked = self.train_seconds + self.book.serve_seconds + self.score_seconds
        return min(worked, self.waited_seconds)

    def mean(self, handler: str, plan_of: Callable[[ClientInfo], Plan]) -> Mean:
        """Folds every update into one running sum per tensor."""
        if self.secure is None and self.noised is None:
            return mean_of(self.each(handler, plan_of))
        plan = plan_of(ClientInfo("", 0))  # the same for everybody, and there though nobody takes part
        if self.secure is not None:
            return self.secure.mean(self, handler, plan)
        assert self.noised is not None  # noqa: S101 - one of the two is there
        return self.noised(plan.tensors, self.each(handler, lambda _: plan))

    def each(
        self, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Yields updates one at a time; their tensors may alias a model until the next is asked for.

        A client that is lost is not yielded, now or by a later call of the round.

        Raises:
            ClientsLostError: A client failed, and the round cannot do without it.
            RoundAbandonedError: Drop-outs leave too few; everybody got the plan, nobody has trained.
            ConfigurationError: The run has secure aggregation, under which there are no single updates.
        """
        if self.secure is not None:
            message = f"{self.method.name} asks for single updates ({handler}), and there are none"
            raise refused("privacy.secure_aggregation", message, "not_supported")
        return self._taken(handler, plan_of, self.engine.turns)

    def inputs(
        self, turn: str, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Yields masked updates; see `protocol.Exchanging`, as for `exchange`."""
        return self._taken(handler, plan_of, self.engine.turns, turn=turn)

    def exchange(
        self,
        turn: str,
        call: int,
        clients: Sequence[str],
        message_of: Callable[[str], Plan],
        *,
        counted: bool = False,
    ) -> Iterator[tuple[str, Update]]:
        """Yields what clients say to what each is sent; their bytes are the protocol's."""
        meter, number = self.book.meter, self.book.number

        def orders() -> Iterator[Order]:
            for client in clients:
                sent = frame.encode(message_of(client))
                meter.count_said(client, sent, up=False)
                self.book.begin(client, sent)
                yield Order(client, number, turn, call, sent)

        for order, result in self._awaited(self.engine.turns(orders())):
            if isinstance(result, Done):
                meter.count_said(order.client, result.update, up=True)
                yield order.client, frame.decode(result.update, Update)
            elif counted:
                told = f"round {number}: {order.client} was lost after what it sent was summed, and counts"
                self.book.warn(f"{told} ({describe(result.error)})")
            else:
                self.book.fail(order.client, result.error)

    def wait_for(self, clients: Sequence[str]) -> None:
        """Waits until these clients are there again; see `protocol.Exchanging`."""
        self.engine.wait_for(clients)

    def converse(
        self,
        handler: str,
        plan_of: Callable[[ClientInfo], Plan],
        service: Service,
        cut_of: Callable[[ClientInfo], Cut],
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Yields updates of clients that hold the ends of the model and talk with the server's half.

        Raises:
            ClientsLostError, RoundAbandonedError: As `each` does.
        """
        timed = TimedService(service, self.book.served, self.model.device)
        return self._taken(
            handler, plan_of, lambda orders: self.engine.converse(orders, timed, self.book.meter), cut_of
        )

    def middle(self, cut: Cut) -> Model:
        """Returns the middle of the model with its own copies of what trains, at their base values."""
        self.model.restore()
        return middle_of(self.model, cut, self.method.trainable(self.model.layout))

    def server_loss(self, tensors: Tensors, over: LossMean = "terms") -> float:
        """Returns the loss of the shared model with these tensors in it on the server's documents."""
        assert self.server is not None  # noqa: S101 - a run has it, and its configuration was checked
        started = time.perf_counter()
        loss = self.server.loss(tensors, over)
        seconds = time.perf_counter() - started
        self.score_seconds += seconds
        self.waited_seconds += seconds
        return loss

    def warn(self, message: str) -> None:
        """Tells whoever watches; see `core.cohort.Cohort.warn`."""
        self.book.warn(message)

    def reject(self, client: str, error: FedstrataError) -> None:
        """Does without a client's update; see `core.cohort.Cohort.reject`."""
        self.engine.undo(client, self.book.number, error)
        self.trained_scores.pop(client, None)
        self.book.fail(client, error)

    def take_back(self, error: FedstrataError) -> None:
        """Has everybody who is left drop what the round has brought."""
        for info in self.clients:
            if info.id not in self.book.attendance.lost:
                self.engine.undo(info.id, self.book.number, error)

    def _taken(
        self,
        handler: str,
        plan_of: Callable[[ClientInfo], Plan],
        compute: Callable[[Iterator[Order]], Turns],
        cut_of: Callable[[ClientInfo], Cut] | None = None,
        turn: str | None = None,
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Has everybody take a turn, of another name than the handler's if given; yields who was not lost."""
        begun: dict[str, ClientInfo] = {}

        def orders() -> Iterator[Order]:
            for info, sent in self.book.present(handler, self.clients, plan_of):
                begun[info.id] = info
                self.book.begin(info.id, sent)
                yield Order(
                    client=info.id,
                    round=self.book.number,
                    handler=turn or handler,
                    call=self.book.calls[handler],
                    plan=sent,
                    cut=cut_of(info) if cut_of is not None else None,
                    device=self.device_of(info.id),
                    stored_states=self.stored_states.get(info.id),
                    scored=self.scored,
                )

        turns = compute(orders())
        try:
            for order, result in self._awaited(turns):
                info = begun[order.client]
                self.train_seconds += result.seconds
                if isinstance(result, Failed):
                    if result.update is not None:
                        self.book.meter.count_up(info.id, result.update)
                    self.book.fail(info.id, result.error)
                else:
                    yield info, self._take(order, info, result)
        finally:
            turns.close()  # of those who are still at work nobody will take anything

    def _awaited(self, turns: Turns) -> Iterator[tuple[Order, Done | Failed]]:
        """Yields what comes of turns, and counts how long that takes."""
        while True:
            started = time.perf_counter()
            found = next(turns, None)
            self.waited_seconds += time.perf_counter() - started
            if found is None:
                return
            yield found

    def _take(self, order: Order, info: ClientInfo, done: Done) -> Update:
        """Takes down what one turn has brought, and returns the update."""
        update = frame.decode(done.update, Update)
        self.book.trained(info.id, update, done.trained)
        if done.clipped is not None:
            self.clipped[info.id] = done.clipped
        if done.scores is not None:
            self.trained_scores[info.id] = done.scores
        self.score_seconds += done.score_seconds
        self.book.meter.count_up(info.id, done.update)
        self.book.deliver(info, update, done.seconds, **self._emulated(order, done))
        return update

    def _emulated(self, order: Order, done: Done) -> dict[str, Any]:
        """Lets the simulated clock run for a turn; returns what the record says of the client's device."""
        if order.device is None or done.work is None:
            return {}
        self.stored_states[order.client] = done.work.stored_states
        size = sum(self.book.exchanged(order.client))
        return self.clock.count(order.client, order.device, done.work, size)


def secure_aggregation_of(experiment: Experiment, engine: Engine, folder: Path) -> SecureAggregation | None:
    """Returns what makes the masked sums of a run; none where it has none."""
    privacy, settings = experiment.privacy, experiment.settings
    if not privacy.settings.secure_aggregation:
        return None
    from fedstrata.engine.secure_mean import SecureAggregation  # noqa: PLC0415 - for masks alone
    from fedstrata.engine.server_steps import ServerSteps  # noqa: PLC0415 - not needed before

    steps = ServerSteps(settings.training, settings.federation.rounds) if privacy.joint else None
    known = engine.clients()  # before any of them has come: all
    _require_cohorts(experiment, len(known))
    return SecureAggregation(
        privacy,
        engine.sums,
        folder,
        experiment.method,
        experiment.model,
        agreed_hash(agreed(experiment)),
        len(known),
        steps,
    )


def _require_cohorts(experiment: Experiment, clients: int) -> None:
    """Checks that the clients that a round draws can make a sum.

    Raises:
        ConfigurationError: They are fewer than each of them demands.
    """
    from fedstrata.privacy.secure_sum.shares import threshold  # noqa: PLC0415 - for masks alone

    share = experiment.settings.federation.sample
    drawn, needed = sample_size(clients, share), threshold(clients)
    if drawn < max(needed, LEAST_SITES):
        least = (
            f"of {clients} clients that know each other at least {max(needed, LEAST_SITES)} must be in a sum"
        )
        message = f"draws {drawn} clients of a round, and {least} (privacy.secure_aggregation)"
        raise refused("federation.sample", message, "out_of_range")
