"""In-process simulation: one copy of the model, and clients that take turns with it.

Every plan and update passes through a frame, so bytes are counted as they would travel. Between clients the
model is put back to its base values, so a client sees what its own process would hold: base weights, its
store, and the plan it just received. Memory does not grow with the number of clients: what a client keeps
between rounds lies on disk.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.aggregate.mean import MeanResult, StreamingMean
from fedstrata.core.types import ClientInfo, Plan, Update
from fedstrata.engine.checkpoint import ClientStore, client_folder
from fedstrata.wire import frame
from fedstrata.wire.meter import Meter

if TYPE_CHECKING:
    from fedstrata.core.config import TrainingSettings
    from fedstrata.core.method import Method, Task
    from fedstrata.core.seeding import Seed
    from fedstrata.data.split import Split
    from fedstrata.models.state import Model

Listener = Callable[[str, Mapping[str, Any]], None]
"""Told `(event, facts)` as a run goes on."""


@dataclass
class Site:
    """One client's documents; they are encoded for its turn and not kept encoded.

    Attributes:
        id: The client's name.
        documents: Its documents by split.
        task: What encodes them.
        tokenizer: The model's tokenizer.
    """

    id: str
    documents: Split
    task: Task
    tokenizer: Any

    def encode(self) -> list[Any]:
        """Returns the training examples."""
        return self.task.encode(self.documents.train, self.tokenizer)

    @cached_property
    def count(self) -> int:
        """Its number of training examples, n_k."""
        return len(self.encode())


@dataclass
class SimulatedClient:
    """One client's turn with the shared model; implements `core.method.Client`."""

    id: str
    model: Model
    task: Task
    examples: Sequence[Any]
    training: TrainingSettings
    store: ClientStore
    report: Callable[[Mapping[str, float]], None]


@dataclass
class SimulatedCohort:
    """The clients of one round; implements `core.method.Cohort`.

    Attributes:
        method: Whose handlers run at the clients.
        model: The one shared model.
        sites: The clients that take part, in order.
        training: How they train.
        folder: The run directory, for stores.
        number: The round, counted from 1.
        rng: Seed of the round.
        listen: Told of progress.
        meter: Counts the round's bytes.
        train_seconds: Time spent in client handlers so far.
        trained_parameters: How many numbers the last client trained.
    """

    method: Method
    model: Model
    sites: Sequence[Site]
    training: TrainingSettings
    folder: Path
    number: int
    rng: Seed
    listen: Listener
    meter: Meter = field(default_factory=Meter)
    train_seconds: float = 0.0
    trained_parameters: int = 0
    _calls: Counter[str] = field(default_factory=Counter)
    _losses: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def loss(self) -> float | None:
        """The clients' mean training loss, weighted like their updates; none before the first update."""
        total = sum(weight for _, weight in self._losses.values())
        return sum(loss * weight for loss, weight in self._losses.values()) / total if total else None

    @property
    def clients(self) -> list[ClientInfo]:
        """Who takes part."""
        return [ClientInfo(site.id, site.count) for site in self.sites]

    def mean(self, handler: str, plan_of: Callable[[ClientInfo], Plan]) -> MeanResult:
        """Folds every update into one running sum per tensor."""
        mean = StreamingMean()
        for _, update in self.each(handler, plan_of):
            mean.add(update)
        return mean.finish()

    def each(
        self, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Yields updates one at a time; their tensors alias the shared model until the next is asked for."""
        self._calls[handler] += 1
        for info, site in zip(self.clients, self.sites, strict=True):
            sent = frame.encode(plan_of(info))
            bytes_down = self.meter.count_down(info.id, sent)
            client = self._client(site)
            handle = getattr(self.method, handler)
            started = time.perf_counter()
            rng = self.rng.child("client", info.id, handler, self._calls[handler])
            update = handle(frame.decode(sent, Plan), client, rng)
            seconds = time.perf_counter() - started
            self.train_seconds += seconds
            self.trained_parameters = sum(self.model.layout.sizes[name] for name in self.model.trainable)
            received = frame.encode(update)
            loss = update.values.get("loss")
            if isinstance(loss, float):
                self._losses[info.id] = (loss, update.weight)
            facts = {
                "round": self.number,
                "client": info.id,
                "examples": info.examples,
                "loss": loss,
                "bytes_down": bytes_down,
                "bytes_up": self.meter.count_up(info.id, received),
                "seconds": seconds,
            }
            self.listen("client", facts)
            yield info, frame.decode(received, Update)

    def enter(self, site: Site) -> ClientStore:
        """Makes the shared model this client's own: base weights under its store. Returns the store."""
        store = ClientStore(client_folder(self.folder, site.id), self.number)
        self.model.restore()
        self.model.load(store.read().tensors)
        return store

    def _client(self, site: Site) -> SimulatedClient:
        """Gives the client its turn."""

        def report(progress: Mapping[str, float]) -> None:
            self.listen("client_progress", {"round": self.number, "client": site.id, **progress})

        store = self.enter(site)
        return SimulatedClient(site.id, self.model, site.task, site.encode(), self.training, store, report)


def sample(sites: Sequence[Site], share: float, rng: Seed) -> list[Site]:
    """Draws the clients of a round without replacement, in their usual order.

    Args:
        sites: All clients.
        share: Share of them that takes part; at least one does.
        rng: Seed of the draw.
    """
    count = max(1, round(share * len(sites)))
    chosen = rng.numpy().choice(len(sites), size=count, replace=False)
    return [sites[index] for index in sorted(chosen.tolist())]
