"""What a process of a run does that computes for it: turns of clients, and answers of models to be scored."""

import os
import pickle
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from fedstrata.client.failures import describe
from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import Message, Tensors
from fedstrata.engine.check import device_of
from fedstrata.engine.prepare import Experiment, with_model
from fedstrata.metrics.cost import peak_memory
from fedstrata.record.log import Listener
from fedstrata.train.processor import use_processor
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

Event = tuple[str, Mapping[str, Any]]
Peaks = Mapping[str, int | None]
"""The most memory of each kind that a process has had."""
Computed = tuple[Any, str, Peaks]
"""What came of something, the name of the process that has computed it, and the most memory it has had."""


class Computing(Protocol):
    """What computes in a process."""

    def compute(self, order: Order) -> Done | Failed:
        """Computes one turn."""

    def enter(self, client: str | None, number: int, shared: Tensors) -> None:
        """Makes the model a client's own, or what is shared alone if none."""

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        """Returns the answers of the model, as it is, to the examples of a batch."""

    def require_same(self, begun: Mapping[str, Any]) -> None:
        """Refuses documents that are not those the run began with."""


EngineOf = Callable[[Experiment, Path, Listener], Computing]
"""Returns what computes, given what is run, where clients keep their own, and whom to tell of progress."""


@dataclass(frozen=True)
class ForkPreparation:
    """What a process of this machine is to compute with.

    Attributes:
        engine_of: Returns what computes.
        experiment: What is run; its model is loaded here.
        tokenizer: The model's.
        folder: The run directory.
        threads: How many threads it has.
        device: Where its model is to be.
        said: Where it tells of progress.
    """

    engine_of: EngineOf
    experiment: Experiment
    tokenizer: Any
    folder: Path
    threads: int
    device: torch.device
    said: Connection

    def place(self) -> "Place":
        """Makes this process one that computes."""
        use_processor(self.threads)
        if self.device.type == "cuda":
            device_of(self.experiment.settings)  # which has torch use deterministic kernels in this process
        events: list[Event] = []

        def progress(event: str, facts: Mapping[str, Any]) -> None:
            if select.select([], [self.said], [], 0)[1]:  # nobody waits for whoever watches
                self.said.send((event, facts))

        experiment = with_model(self.experiment, self.tokenizer, self.device)
        engine = self.engine_of(experiment, self.folder, heard(events, progress))
        return Place(engine, self.device, events)


class Shared(Protocol):
    """A frame that lies where several processes can get it."""

    def frame(self) -> Frame:
        """Returns it."""


@dataclass(frozen=True)
class ScoredModel:
    """A model that answers.

    Attributes:
        number: Tells it from every other one.
        client: Whose it is; what is shared and nobody's if none.
        round: The round.
        shared: The global values of what is shared.
    """

    number: int
    client: str | None
    round: int
    shared: Shared


@dataclass
class Place:
    """What this process computes with.

    Attributes:
        engine: What computes.
        device: Where its model is.
        events: What was told since the turn began, and belongs into the record.
        entered: The number of the scored model that it holds; none where it holds another.
    """

    engine: Computing
    device: torch.device
    events: list[Event]
    entered: int | None = None


_place: Place


def call(sent: bytes) -> Computed:
    """Does as `computed` for a process that is sent all of it as one pickle.

    Args:
        sent: The pickled `ForkPreparation` to compute with from this call on, if any; `turn` or `answer`; and
            its arguments.
    """
    preparation, compute, arguments = pickle.loads(sent)  # noqa: S301 - from the process that started this one
    if preparation is not None:
        begin(preparation.place())
    return computed(compute, arguments)


def begin(place: Place) -> None:
    """Has this process compute with something from now on."""
    global _place  # noqa: PLW0603 - what a process has from its first call to its last
    _place = place


def computed(compute: Callable[..., Any], arguments: tuple[Any, ...]) -> Computed:
    """Computes something; returns what came of it, this process, and the most memory it has had.

    Args:
        compute: `turn` or `answer`.
        arguments: Its arguments.
    """
    result = compute(*arguments)
    return result, f"{socket.gethostname()} {os.getpid()}", peak_memory(_place.device)


def heard(events: list[Event], progress: Listener) -> Listener:
    """Returns a listener that keeps what belongs into the record, and passes on what a client is at."""

    def listen(event: str, facts: Mapping[str, Any]) -> None:
        if event == "client_progress":
            progress(event, facts)
        else:
            events.append((event, facts))

    return listen


def turn(order: Order) -> tuple[Done | Failed, list[Event]]:
    """Computes one turn; returns what came of it, and what is to be recorded of it."""
    _place.events.clear()
    _place.entered = None
    result = _place.engine.compute(order)
    if isinstance(result, Failed):
        try:
            pickle.loads(pickle.dumps(result.error))  # noqa: S301 - its own; not every error survives that
        except Exception:
            result = replace(result, error=TrainingError(describe(result.error)))
    return result, _place.events


def answer(model: ScoredModel, batch: Sequence[Any]) -> Sequence[Any]:
    """Returns the answers of a model to the examples of a batch."""
    if _place.entered != model.number:
        shared = frame.decode(model.shared.frame(), Message)
        _place.engine.enter(model.client, model.round, shared.tensors)
        _place.entered = model.number
    return _place.engine.predict(batch)


def watch_parent() -> None:
    """Has this process end with the one that started it, however that ends, be it before any work came."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
