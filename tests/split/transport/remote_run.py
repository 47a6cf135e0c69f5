"""What tests of clients in other processes share: a server in this process, and clients in others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import REPOSITORY, TINY

from fedstrata.core.sources import read_source
from fedstrata.core.types import State
from fedstrata.engine.agreeing import Agreements, info_of
from fedstrata.engine.remote import RemoteCohort
from fedstrata.engine.setup import Experiment, prepare
from fedstrata.split.transport.hub import Hub
from fedstrata.split.transport.timing import Timing

CLIENTS = ("site-1", "site-2", "site-3")
PATIENT = Timing(answer=120.0, reconnect=30.0, keepalive=10.0)


@dataclass
class Server:
    """A server with its clients, which run for one test."""

    experiment: Experiment
    hub: Hub
    address: str
    folder: Path
    overrides: Sequence[str]
    stack: ExitStack
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def start(self, client: str, behaviour: str = "good", address: str = "") -> subprocess.Popen[str]:
        """Starts a client."""
        script = Path(__file__).with_name("remote_client.py")
        place = self.folder / f"home of {client}"
        command = [sys.executable, str(script), address or self.address, client, str(place), behaviour]
        path = os.pathsep.join([str(REPOSITORY / "tests"), str(REPOSITORY / "src")])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*command, *self.overrides],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stack.callback(end, process)
        return process

    def run(self, rounds: int, *, min_clients: int | None = None) -> State:
        """Runs rounds with all clients that are there."""
        experiment = self.experiment
        state = experiment.method.start(experiment.model)
        for number in range(1, rounds + 1):
            cohort = RemoteCohort(
                method=experiment.method,
                model=experiment.model,
                hub=self.hub,
                infos=[info_of(client, self.hub.greeting(client)) for client in CLIENTS],
                training=experiment.settings.training,
                folder=self.folder,
                number=number,
                listen=lambda event, facts: self.events.append((event, facts)),
                min_clients=min_clients,
            )
            rng = experiment.seed.child("round", number).child("method")
            state = experiment.method.round(state, cohort, rng)
            self.cohort = cohort
        return state

    def of(self, event: str) -> list[Mapping[str, Any]]:
        """Returns the facts of the events of one kind."""
        return [facts for name, facts in self.events if name == event]


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process that has not ended by itself."""
    process.kill()
    process.communicate()


Serve = Callable[..., Server]


@contextmanager
def serving(folder: Path) -> Iterator[Serve]:
    """Gives what starts servers, and ends them with their clients."""
    with ExitStack() as stack:

        def serve(*overrides: str, timing: Timing = PATIENT, **options: Any) -> Server:
            experiment = prepare(read_source(None, [*TINY, *overrides]))
            largest = 2**26
            agreements = Agreements(experiment, CLIENTS, largest)
            hub = Hub(agreements, largest=largest, clients=CLIENTS, timing=timing, **options)
            address = hub.listen("127.0.0.1:0")
            stack.callback(hub.stop, 1.0)
            return Server(experiment, hub, address, folder, overrides, stack)

        yield serve
