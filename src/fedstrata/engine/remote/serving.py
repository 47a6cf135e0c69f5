"""A run that is served: what its server prepares, whatever carries the lines to its clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedstrata.core.settings.source import Source
from fedstrata.core.types import JSON
from fedstrata.engine.prepare import prepare_server
from fedstrata.engine.remote.agreeing import Agreements
from fedstrata.engine.remote.engine import RemoteEngine
from fedstrata.engine.remote.shared_settings import shared_settings
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import open_served
from fedstrata.record.log import Listener
from fedstrata.transport.hub import Hub

HubType = TypeVar("HubType", bound=Hub)


@dataclass(frozen=True)
class Serving:
    """How a run is served.

    Attributes:
        clients: Who takes part, in order.
        cache_bytes: Memory for keys and values while documents are scored, all clients together.
        largest: Bytes that a message may have.
        patience: Seconds to wait for clients that are not there at the beginning of a round.
    """

    clients: tuple[str, ...]
    cache_bytes: int
    largest: int
    patience: float


def open_service(
    source: Source,
    folder: Path | None,
    listen: Listener,
    serving: Serving,
    hub_of: Callable[[Agreements, Callable[[str], Mapping[str, JSON]], Mapping[str, JSON]], HubType],
    *,
    resume: bool,
) -> tuple[Run[RemoteEngine], HubType]:
    """Prepares a run, its directory and the lines to its clients, none of which is there yet.

    Args:
        source: The configuration.
        folder: The run directory; `runs/NAME`, numbered if taken, when none.
        listen: Told of every event.
        serving: How it is served.
        hub_of: Returns the server's end of the lines, given what is agreed with each client, what it is told
            when it joins, and what is said of the run before.
        resume: Whether the directory holds a run to go on with.

    Raises:
        ConfigurationError: The configuration is wrong, or the directory holds another run.
    """
    experiment = prepare_server(source, serving.clients)
    agreements = Agreements(experiment, serving.clients, serving.largest)  # before anything is written
    engine_of = partial(
        RemoteEngine,
        names=serving.clients,
        cache_bytes=serving.cache_bytes,
        patience=serving.patience,
    )
    run = open_served(source, experiment, folder, listen, engine_of, resume=resume)
    agreements.known = run.engine.weights
    hub = hub_of(agreements, run.engine.welcome, shared_settings(experiment))
    run.engine.connect(hub)
    return run, hub
