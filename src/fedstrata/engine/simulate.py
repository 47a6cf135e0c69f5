"""In-process simulation: one copy of the model, and clients that take turns with it.

Every plan and update passes through a frame, so bytes are counted as they would travel. Between clients the
model is put back to its base values, so a client sees what its own process would hold: base weights, its
store, and the plan it just received. Memory does not grow with the number of clients: what a client keeps
between rounds lies on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.aggregate.mean import MeanResult, mean_of
from fedstrata.core.types import ClientInfo, Plan, State, Tensors, Update, Work
from fedstrata.engine.checkpoint import ClientStore, client_folder
from fedstrata.engine.conversation import Conversation, SimulatedLine, TimedService
from fedstrata.engine.devices import RoundClock
from fedstrata.engine.failures import Attendance, is_client_failure, release_memory
from fedstrata.engine.roll import Roll
from fedstrata.engine.sites import Examples, Site
from fedstrata.record.log import Listener
from fedstrata.split.divide import ends_of, middle_of
from fedstrata.train.evaluate import answer
from fedstrata.train.work import counted_passes
from fedstrata.wire import frame

if TYPE_CHECKING:
    from fedstrata.core.client import Line, PrefixCache
    from fedstrata.core.cohort import Service
    from fedstrata.core.cut import Cut
    from fedstrata.core.errors import FedstrataError
    from fedstrata.core.method import Method
    from fedstrata.core.seeding import Seed
    from fedstrata.core.settings.devices import Device
    from fedstrata.core.settings.federation import CorruptSettings
    from fedstrata.core.settings.training import TrainingSettings
    from fedstrata.core.task import Task
    from fedstrata.engine.scoring import ServerDocuments
    from fedstrata.models.state import Model
    from fedstrata.wire.frame import Frame


@dataclass
class SimulatedClient:
    """One client's turn with the shared model; implements `core.client.Client`."""

    id: str
    model: Model
    task: Task
    examples: Sequence[Any]
    training: TrainingSettings
    store: ClientStore
    report: Callable[[Mapping[str, float]], None]
    cache: PrefixCache | None = None
    corruption: CorruptSettings | None = None
    validate: Callable[[], float | None] = lambda: None
    device: Device | None = None
    work: Work | None = None
    line: Line | None = None
    secret: int | None = None


@dataclass
class SimulatedCohort:
    """The clients of one round; implements `core.cohort.Cohort`.

    Attributes:
        method: Whose handlers run at the clients.
        model: The one shared model.
        sites: The clients that take part, in order.
        training: How they train.
        folder: The run directory, for stores.
        number: The round, counted from 1.
        rng: Seed of the round.
        listen: Told of progress.
        cache_of: Returns the cache of the client of this name.
        dropped: The clients that are lost once they have the plan (simulated drop-out).
        min_clients: How many clients must deliver; every one that does not drop out when none.
        metric: The score that clients validate by; the task's if none.
        score_trained: Scores the shared model while it holds what a client has just trained, by split; not
            asked for when none.
        device_of: Returns the emulated device of the client of this name in this round; none without any.
        stored_states: Which output of its frozen blocks each client's emulated device holds; kept up to date.
        server: The server's own documents; none for a method that never asks for their loss.
        roll: Who is lost so far, what travelled, and what the record says of it.
        clock: Counts the seconds and the energy of emulated devices.
        train_seconds: Time spent in client handlers so far.
        trained_parameters: How many numbers the last client trained.
        trained_scores: What `score_trained` gave, by client.
        score_seconds: Time spent in `score_trained` and `server_loss` so far.
    """

    method: Method
    model: Model
    sites: Sequence[Site]
    training: TrainingSettings
    folder: Path
    number: int
    rng: Seed
    listen: Listener
    cache_of: Callable[[str], PrefixCache | None]
    dropped: frozenset[str] = frozenset()
    min_clients: int | None = None
    metric: str | None = None
    score_trained: Callable[[], Mapping[str, Any]] | None = None
    device_of: Callable[[str], Device | None] = lambda client: None
    stored_states: dict[str, str | None] = field(default_factory=dict)
    server: ServerDocuments | None = None
    roll: Roll = field(init=False)
    clock: RoundClock = field(default_factory=RoundClock)
    train_seconds: float = 0.0
    trained_parameters: int = 0
    trained_scores: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    score_seconds: float = 0.0

    def __post_init__(self) -> None:
        attendance = Attendance([site.id for site in self.sites], self.dropped, self.min_clients)
        self.roll = Roll(self.number, self.folder, self.listen, attendance)

    @property
    def clients(self) -> list[ClientInfo]:
        """Who takes part."""
        return [ClientInfo(site.id, site.count) for site in self.sites]

    def mean(self, handler: str, plan_of: Callable[[ClientInfo], Plan]) -> MeanResult:
        """Folds every update into one running sum per tensor."""
        return mean_of(self.each(handler, plan_of))

    def each(
        self, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Yields updates one at a time; their tensors alias the shared model until the next is asked for.

        A client that is lost is not yielded, now or by a later call of the round.

        Raises:
            ClientsLostError: A client failed, and the round cannot do without it.
            RoundAbandonedError: Drop-outs leave too few; everybody got the plan, nobody has trained.
        """
        for info, site, sent in self._present(handler, plan_of):
            if (received := self._turn(handler, info, site, sent)) is not None:
                yield info, frame.decode(received, Update)

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

        def turn(info: ClientInfo, site: Site, sent: Frame, line: SimulatedLine) -> Frame | None:
            return self._turn(handler, info, site, sent, line, cut_of(info))

        present = {info.id: (info, site, sent) for info, site, sent in self._present(handler, plan_of)}
        work = {client: partial(turn, *own) for client, own in present.items()}
        conversation = Conversation(TimedService(service, self.roll.served), self.roll.meter)
        for (info, _, _), received in zip(present.values(), conversation.hold(work), strict=True):
            if received is not None:
                yield info, frame.decode(received, Update)

    def middle(self, cut: Cut) -> Model:
        """Returns the middle of the model with its own copies of what trains, at their base values."""
        self.model.restore()
        return middle_of(self.model, cut, self._learnt)

    @property
    def _learnt(self) -> tuple[str, ...]:
        """All that the method ever trains: what sides of a divided model hold for themselves."""
        return self.method.trainable(self.model.layout)

    def _present(
        self, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Site, Frame]]:
        """Yields the clients that work, each with the plan that it has got; see `Roll.present`."""
        sites = {site.id: site for site in self.sites}
        for info, sent in self.roll.present(handler, self.clients, plan_of):
            yield info, sites[info.id], sent

    def server_loss(self, tensors: Tensors) -> float:
        """Returns the loss of the shared model with these tensors in it on the server's documents."""
        assert self.server is not None  # noqa: S101 - a run has it, and its configuration was checked
        started = time.perf_counter()
        loss = self.server.loss(tensors)
        self.score_seconds += time.perf_counter() - started
        return loss

    def reject(self, client: str, error: FedstrataError) -> None:
        """Undoes a client's turn; see `core.cohort.Cohort.reject`."""
        (site,) = (site for site in self.sites if site.id == client)
        self._fail(site, error, self.roll.meter.down[client])

    def _turn(
        self,
        handler: str,
        info: ClientInfo,
        site: Site,
        sent: Frame,
        line: SimulatedLine | None = None,
        cut: Cut | None = None,
    ) -> Frame | None:
        """Lets one client work and returns what it sends; none if it failed.

        What it says on a line on the way is part of its bytes, and the time it waits for answers none of its
        own.
        """
        handle = getattr(self.method, handler)
        rng = self.rng.child("client", info.id, handler, self.roll.calls[handler])
        exchanged = self.roll.begin(info.id, sent)
        try:
            client = self._client(site, line, cut)
            started = time.perf_counter()
            try:
                update = handle(frame.decode(sent, Plan), client, rng)
            finally:
                seconds = time.perf_counter() - started - (line.waited if line else 0.0)
                self.train_seconds += seconds
            trained = self.model.trainable if cut is None else self._learnt  # there, and at the server
            self.trained_parameters = sum(self.model.layout.sizes[name] for name in trained)
            received = frame.encode(update)
        except Exception as error:
            if not is_client_failure(error):
                raise
            self._fail(site, error, exchanged.down)
            return None
        # A distorted model is no result of any training.
        if self.roll.trained(info.id, update) is not None and client.corruption is None:
            self._score(info.id)
        self.roll.meter.count_up(info.id, received)
        emulated = self._emulated(client, exchanged.down + exchanged.up)
        self.roll.deliver(info, update, exchanged, seconds, **emulated)
        return received

    def _validate(self, site: Site, work: Work | None) -> float | None:
        """Scores the shared model as it is on a client's validation documents; more is better.

        The passes are the device's own work and are counted as such.
        """
        documents = site.scored("validation")
        if not documents:
            return None
        with counted_passes(self.model, work):
            answers = answer(self.model, site.task, documents, self.training)
        metric = self.metric or site.task.metric
        score = site.task.score(documents, answers).get(metric)  # a label may have no examples here
        return -score if score is not None and metric in site.task.lower_is_better else score

    def _emulated(self, client: SimulatedClient, size: int) -> dict[str, Any]:
        """Lets the simulated clock run for a turn; returns what the record says of the client's device."""
        if client.device is None or client.work is None:
            return {}
        self.stored_states[client.id] = client.work.stored_states
        return self.clock.count(client.id, client.device, client.work, size)

    def _score(self, client: str) -> None:
        """Scores what the client has just trained, if that was asked for: no later moment has its weights."""
        if self.score_trained is None:
            return
        started = time.perf_counter()
        self.trained_scores[client] = self.score_trained()
        self.score_seconds += time.perf_counter() - started

    def _fail(self, site: Site, error: Exception, bytes_down: int) -> None:
        """Undoes what a client that failed has left behind; ends the run if the round needs the client."""
        self.model.restore()
        release_memory(error)
        ClientStore(client_folder(self.folder, site.id), self.number).discard()
        self.trained_scores.pop(site.id, None)
        self.roll.fail(site.id, error, bytes_down)

    def enter(self, site: Site, state: State | None = None) -> ClientStore:
        """Makes the shared model this client's own: base weights, the global state, if given, and its store.

        What a store holds under other names than those of parameters is no part of the model. Returns it.
        """
        store = ClientStore(client_folder(self.folder, site.id), self.number)
        self.model.restore()
        if state is not None:
            self.model.load_known(state.tensors)
        self.model.load_known(store.read().tensors)
        return store

    def _client(self, site: Site, line: Line | None, cut: Cut | None) -> SimulatedClient:
        """Gives the client its turn, with the ends of the model alone if it is divided."""

        def report(progress: Mapping[str, float]) -> None:
            self.listen("client_progress", {"round": self.number, "client": site.id, **progress})

        store, device = self.enter(site), self.device_of(site.id)
        model = self.model if cut is None else ends_of(self.model, cut, self._learnt)
        work = Work(stored_states=self.stored_states.get(site.id)) if device else None
        return SimulatedClient(
            site.id,
            model,
            site.task,
            Examples(site),
            self.training,
            store,
            report,
            self.cache_of(site.id) if cut is None else None,  # the blocks that run are not all of them
            site.distortion,
            lambda: self._validate(site, work),
            device,
            work,
            line,
        )
