"""The middle of a run's model, for clients that generate or score: `fedstrata split answer`.

Clients come and go as they like. Each is sent, when it asks, what the run has learnt of its own part of the
model; a client that keeps its ends to itself has them already. Nothing is learnt here and nothing is written.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstrata.client.failures import is_client_failure, kind_of, message_of, release_memory
from fedstrata.core.errors import (
    FedstrataError,
    LineError,
    RefusedError,
    refused,
)
from fedstrata.core.types import Message, State
from fedstrata.engine.check import divided_method
from fedstrata.engine.checkpoint import Checkpoints
from fedstrata.engine.prepare import prepare_server
from fedstrata.engine.remote.agreeing import ANSWERS, Agreements
from fedstrata.engine.run_folder import resumable
from fedstrata.record.history import start_of
from fedstrata.record.log import committed_rounds, read_events
from fedstrata.split.inference import Answering
from fedstrata.split.kvcache import Sessions
from fedstrata.split.middle import Middle
from fedstrata.transport.header import Header, Kind
from fedstrata.transport.hub import Hub
from fedstrata.transport.members import Arrival
from fedstrata.wire import frame

MAY_CHANGE_TO_ANSWER = frozenset({"device", "threads"})
"""Settings other than the run's: they do not change what the model is."""
WAIT = 60.0
"""Seconds to wait for a message before waiting again; of no consequence."""


class Answers:
    """The server's side.

    Args:
        folder: The directory of a run with at least one committed round; served or simulated.
        overrides: `key.path=value`, for settings in `MAY_CHANGE_TO_ANSWER`.
        clients: Who may join.
        limit: Bytes of keys and values that all sessions may have together.

    Attributes:
        committed: The round whose weights are served: the last one that is committed.
        id: Of the run; none if it was simulated.

    Raises:
        ConfigurationError: The directory holds no such run, or its model is not divided or generates nothing.
    """

    def __init__(self, folder: Path, overrides: Sequence[str], clients: Sequence[str], limit: int) -> None:
        source = resumable(folder, None, overrides, may_change=MAY_CHANGE_TO_ANSWER, named_by="RUN")
        self.committed, self._state, begun = _last(folder)
        self.id: str | None = begun.get("id")
        self._known: Mapping[str, str] = begun.get("ends", {})
        self._experiment = experiment = prepare_server(source, clients, trains=False)
        method, self._clients = divided_method(experiment.method), tuple(clients)
        if experiment.task.kind != "causal-lm":
            message = f"{experiment.task.name} has a model with classes, which generates nothing"
            raise refused("task.name", message, "not_supported")
        self._middle = Middle(experiment.model, method.widest(clients))
        ends_of = None if method.personal else self._ends_of
        sessions = Sessions(self._middle, limit, experiment.settings.training)
        self._service = Answering(sessions, method.wire, method.divides, ends_of)

    def agreements(self, largest: int) -> Agreements:
        """Returns what is agreed with each client; to be asked for before `serve`.

        Args:
            largest: Bytes that a message may have.
        """
        return Agreements(self._experiment, self._clients, largest, known=self._known, purpose=ANSWERS)

    def serve(self, hub: Hub, *, until: Callable[[], bool] = lambda: False) -> None:
        """Answers whoever asks.

        A client that asks what cannot be answered is told so and loses its session; the others go on.

        Args:
            hub: The lines to the clients; listens.
            until: Whether to stop; asked after every message, and every `WAIT` seconds without one.
        """
        model = self._experiment.model
        if lacking := [name for name in model.layout.all if name not in self._state.tensors]:
            message = (
                f"the run has learnt nothing of {lacking[0]}, which none of its clients left to the server"
            )
            raise refused("RUN", message, "not_found")
        model.load({name: self._state.tensors[name] for name in model.layout.all})
        while not until():
            if (arrival := hub.receive(WAIT)) is not None:
                self._hear(hub, arrival)

    def _hear(self, hub: Hub, arrival: Arrival) -> None:
        """Answers one message, or forgets a client that is gone."""
        client, header, content = arrival.client, arrival.header, arrival.frame
        if header is None or content is None:
            self._say(hub, self._service.leave(client))
            return
        try:
            if header.kind != Kind.SAID:
                raise RefusedError(f"client {client!r} says {header.kind.name}, and here nothing is learnt")
            self._say(hub, self._service.hear(client, frame.decode(content, Message)))
        except Exception as error:
            if not isinstance(error, FedstrataError) and not is_client_failure(error):
                raise
            told = message_of(error) or kind_of(error)
            refusal = RefusedError(told, code=error.code if isinstance(error, FedstrataError) else None)
            hub.drop(client, error if isinstance(error, LineError) else refusal)
            release_memory(error)
            self._say(hub, self._service.leave(client))

    def _say(self, hub: Hub, answers: Any) -> None:
        for client, message in answers:
            hub.tell(client, Header(Kind.SAID), frame.encode(message))

    def _ends_of(self, client: str) -> dict[str, Tensor]:
        """Returns what was learnt of a client's part of the model."""
        cut = divided_method(self._experiment.method).divides(client)
        theirs = cut.segments(self._experiment.model.layout).middle
        return {name: tensor for name, tensor in self._state.tensors.items() if name not in theirs}


def _last(folder: Path) -> tuple[int, State, Mapping[str, Any]]:
    """Returns the last committed round of a run, its state, and what the record says of its beginning."""
    events = read_events(folder / "record.jsonl")
    rounds = committed_rounds(events)
    if not rounds:
        message = f"the run in {folder} has no committed round, so nothing has been learnt"
        raise refused("RUN", message, "not_finished")
    number, state = Checkpoints(folder / "checkpoints").load(rounds[-1]["round"])
    return number, state, start_of(events) or {}
