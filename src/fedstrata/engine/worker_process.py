"""What a process of a run does that computes for it: turns of clients, and answers of models to be scored."""

import os
import pickle
import select
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
from fedstrata.wire.frame import SharedFrame

Event = tuple[str, Mapping[str, Any]]


class Computing(Protocol):
    """What computes in a process."""

    def compute(self, order: Order) -> Done | Failed:
        """Computes one turn."""

    def enter(self, client: str | None, number: int, shared: Tensors) -> None:
        """Makes the model a client's own, or what is shared alone if none."""

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        """Returns the answers of the model, as it is, to the examples of a batch."""


@dataclass(frozen=True)
class Preparation:
    """What a process is to compute with.

    Attributes:
        engine_of: Returns what computes, given what is run, the run directory, and what it tells of progress.
        experiment: What is run; its model is loaded here.
        tokenizer: The model's.
        folder: The run directory.
        threads: How many threads it has.
        device: Where its model is to be.
        said: Where it tells of progress.
    """

    engine_of: Callable[[Experiment, Path, Listener], Computing]
    experiment: Experiment
    tokenizer: Any
    folder: Path
    threads: int
    device: torch.device
    said: Connection


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
    shared: SharedFrame


@dataclass
class _Place:
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


_place: _Place


def call(sent: bytes) -> tuple[Any, int, Mapping[str, int | None]]:
    """Computes something; returns what came of it, this process, and the most memory it has had.

    Args:
        sent: The pickled `Preparation` to compute with from this call on, if any; `turn` or `answer`; and its
            arguments.
    """
    global _place  # noqa: PLW0603 - what a process has from its first call to its last
    preparation, compute, arguments = pickle.loads(sent)  # noqa: S301 - from the process that started this one
    if preparation is not None:
        _place = _prepared(preparation)
    result = compute(*arguments)
    return result, os.getpid(), peak_memory(_place.device)


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


def _prepared(given: Preparation) -> _Place:
    """Makes this process one that computes, until the one that started it ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    use_processor(given.threads)
    if given.device.type == "cuda":
        device_of(given.experiment.settings)  # which has torch use deterministic kernels in this process
    events: list[Event] = []

    def listen(event: str, facts: Mapping[str, Any]) -> None:
        if event != "client_progress":
            events.append((event, facts))
        elif select.select([], [given.said], [], 0)[1]:  # nobody waits for whoever watches
            given.said.send((event, facts))

    experiment = with_model(given.experiment, given.tokenizer, given.device)
    return _Place(given.engine_of(experiment, given.folder, listen), given.device, events)


def _end_with_parent() -> None:
    """Ends this process with the one that started it, however that ends."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
