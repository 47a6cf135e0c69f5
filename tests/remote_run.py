"""What tests of clients in other processes share: a server in this process, and clients in others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from support import REPOSITORY, TINY, Finished, finished

from fedstrata.client.store import ClientStore, client_folder
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON, Message, State
from fedstrata.engine.book import Attendance, Book
from fedstrata.engine.cohort import RoundCohort
from fedstrata.engine.prepare import Experiment, prepare_server
from fedstrata.engine.remote.agreeing import Agreements
from fedstrata.engine.remote.engine import RemoteEngine
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import SETTINGS, write_settings
from fedstrata.privacy.federation_lock import write_lock
from fedstrata.privacy.identity import Identity
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.timing import Timing

CLIENTS = ("site-1", "site-2", "site-3")

RELATIONS = (
    "task={name: relations, max_length: 48, types: [body location, condition, course, dosage, duration, "
    "form, frequency, lab value, negation, reference range, route, severity, strength, subject, temporal, "
    "uncertain]}",
    "data.types=null",
    "training.learning_rate=0.02",
    "training.epochs=4",
)
"""A tiny run whose scores are not all 0."""
PATIENT = Timing(answer=300.0, reconnect=60.0, keepalive=20.0)
LARGEST = 2**26
RUN = "0123456789abcdef"
"""The id of the run of a `Server`."""


class Clients:
    """Where client processes come from."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(REPOSITORY / "tests"), str(REPOSITORY / "src")])
        self._source = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("remote_client.py"))],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, **order: Any) -> int:
        """Gives an order and returns the answer."""
        assert self._source.stdin is not None
        assert self._source.stdout is not None
        self._source.stdin.write(json.dumps(order) + "\n")
        self._source.stdin.flush()
        return int(self._source.stdout.readline())

    def close(self) -> None:
        """Ends the process that starts others."""
        self._source.kill()
        self._source.communicate()


@dataclass
class ClientProcess:
    """One client."""

    clients: Clients
    number: int
    out: Path
    status: int | None = None

    def wait(self) -> int:
        """Waits until it has ended; returns its exit status."""
        if self.status is None:
            self.status = self.clients.order(wait=self.number)
        return self.status

    def end(self) -> None:
        """Ends it if it has not ended by itself."""
        if self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.number, signal.SIGKILL)
            self.wait()

    @property
    def said(self) -> str:
        """What it has written so far."""
        return self.out.read_text()


def served(
    folder: Path,
    clients: Clients,
    *overrides: str,
    behaviour: Mapping[str, str] | None = None,
    timing: Timing = PATIENT,
    names: Sequence[str] = CLIENTS,
    patience: float = 0.0,
    own: Sequence[str] = (),
    all_there: bool = False,
) -> Finished:
    """Runs a tiny federation whose clients are other processes; a round may end once `all_there` are back."""

    def wait_for_all(event: str, _: Mapping[str, Any]) -> None:
        if event == "round" and all_there:
            hub.wait_for(names, 300)

    experiment = prepare_server(read_source(None, [*TINY, *overrides]), names)
    (folder / "run").mkdir(parents=True)
    write_settings(experiment.settings, folder / "run" / SETTINGS)
    engine_of = partial(RemoteEngine, names=names, cache_bytes=2**30, patience=patience)
    run = Run(experiment, folder / "run", wait_for_all, engine_of)
    hub = GrpcHub(
        Agreements(experiment, names, LARGEST),
        largest=LARGEST,
        clients=names,
        timing=timing,
        welcome=run.engine.welcome,
    )
    run.engine.connect(hub)
    address, started = hub.listen("127.0.0.1:0"), []
    try:
        for client in names:
            out, home = folder / f"{client}.txt", str(folder / f"home of {client}")
            arguments = [address, client, home, (behaviour or {}).get(client, "good"), *overrides, *own]
            number = clients.order(start=arguments, out=str(out))
            started.append(ClientProcess(clients, number, out))
        hub.wait_for(names, 600)
        summary = run.execute()
        hub.stop(complete=True)
        for client, process in zip(names, started, strict=True):
            if not (behaviour or {}).get(client, "").startswith("stalls"):
                process.wait()
    finally:
        hub.stop(0.1)
        for process in started:
            process.end()
    return finished(run.folder, summary)


def give_identities(served: Path, names: Sequence[str] = CLIENTS) -> None:
    """Makes an identity and a lock in the home of each client."""
    homes = {client: served / f"home of {client}" for client in names}
    for home in homes.values():
        home.mkdir(parents=True, mode=0o700)
    publics = {client: Identity.create(home / "identity.pem").public for client, home in homes.items()}
    for home in homes.values():
        write_lock(home / "federation.lock", publics)


def home_of(run: Finished, client: str) -> Path:
    """Returns where a client of a run has kept what is its own."""
    (home,) = [*run.folder.parent.glob(f"home of {client}/run-*")] or [run.folder]
    return client_folder(home, client)


def kept_by(run: Finished, client: str, rounds: int = 2) -> Message:
    """Returns what a client has kept in so many rounds, wherever it was."""
    return ClientStore(home_of(run, client), rounds).read()


@dataclass
class Server:
    """A server with its clients, which run for one test."""

    experiment: Experiment
    hub: GrpcHub
    address: str
    folder: Path
    overrides: Sequence[str]
    stack: ExitStack
    clients: Clients
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def start(self, client: str, behaviour: str = "good", address: str = "") -> ClientProcess:
        """Starts a client."""
        out = self.folder / f"{client}.txt"
        home = str(self.folder / f"home of {client}")
        arguments = [address or self.address, client, home, behaviour, *self.overrides]
        process = ClientProcess(self.clients, self.clients.order(start=arguments, out=str(out)), out)
        self.stack.callback(process.end)
        return process

    def run(self, rounds: int = 1, *, min_clients: int | None = None) -> State:
        """Runs rounds once all clients are there."""
        experiment = self.experiment

        def listen(event: str, facts: Mapping[str, Any]) -> None:
            self.events.append((event, facts))

        (self.folder / "record.jsonl").touch()
        engine = RemoteEngine(
            experiment, self.folder, listen, names=CLIENTS, cache_bytes=2**30, patience=600.0
        )
        engine.connect(self.hub)
        engine.wait(None)
        state = experiment.method.start(experiment.model)
        for number in range(1, rounds + 1):
            attendance = Attendance(CLIENTS, min_clients=min_clients)
            self.cohort = RoundCohort(
                method=experiment.method,
                model=experiment.model,
                engine=engine,
                clients=[engine.info(client) for client in CLIENTS],
                training=experiment.settings.training,
                book=Book(number, self.folder, listen, attendance, engine.command),
            )
            rng = experiment.seed.child("round", number).child("method")
            state = experiment.method.round(state, self.cohort, rng)
        return state

    def of(self, event: str) -> list[Mapping[str, Any]]:
        """Returns the facts of the events of one kind."""
        return [facts for name, facts in self.events if name == event]


Serve = Callable[..., Server]


@contextmanager
def serving(folder: Path, clients: Clients) -> Iterator[Serve]:
    """Gives what starts servers, and ends them with their clients."""
    with ExitStack() as stack:

        def serve(*overrides: str, timing: Timing = PATIENT) -> Server:
            experiment = prepare_server(read_source(None, [*TINY, *overrides]), CLIENTS)
            agreements = Agreements(experiment, CLIENTS, LARGEST)
            welcome: Mapping[str, JSON] = {"run": RUN, "counted": 0}
            hub = GrpcHub(
                agreements,
                largest=LARGEST,
                clients=CLIENTS,
                timing=timing,
                welcome=lambda client: welcome,
            )
            address = hub.listen("127.0.0.1:0")
            stack.callback(hub.stop, 1.0)
            return Server(experiment, hub, address, folder, overrides, stack, clients)

        yield serve
