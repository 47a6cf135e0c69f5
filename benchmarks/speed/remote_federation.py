"""A server in this process and clients of `fedstrata join` in others, whose rounds can be timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from split_line import random_decoder

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import State
from fedstrata.engine.book import Attendance, Book
from fedstrata.engine.cohort import RoundCohort
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.remote.agreeing import Agreements
from fedstrata.engine.remote.engine import RemoteEngine
from fedstrata.engine.remote.shared_settings import shared_settings
from fedstrata.methods.fl_llama import FLLLaMA
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.timing import Timing

_LARGEST = 2**28
_PATIENCE = 600.0
_RUN = "0123456789abcdef"
"""The id of the run that clients join."""
_MOST_ROUNDS = 1000
"""That may be timed."""


@dataclass(frozen=True)
class Setting:
    """What is trained: random texts of equal length for every client, by a decoder with random weights.

    Attributes:
        blocks: Of the model.
        hidden: Its width.
        front: p.
        back: q.
        tokens: Of a row.
        batch: Rows of a batch.
        batches: Of a client in a round.
        adapter: The adapter, as in a configuration; none to train all weights.
        accumulation: Batches of a step.
        in_flight: How many of them are under way at once.
    """

    blocks: int
    hidden: int
    front: int
    back: int
    tokens: int
    batch: int
    batches: int
    adapter: Mapping[str, Any] | None = None
    accumulation: int = 1
    in_flight: int = 1

    def write(self, folder: Path, clients: Sequence[str], method: Mapping[str, Any]) -> Path:
        """Writes the model, the texts and a configuration; returns the latter."""
        folder.mkdir(parents=True)
        random_decoder(self.blocks, self.hidden, self.tokens).save(folder / "model")
        digits = Seed(0).numpy()  # mini's tokenizer takes digits one by one
        for client in clients:
            (folder / "texts" / client).mkdir(parents=True)
            length = self.tokens * self.batch * self.batches - 1  # and an end
            text = "".join(map(str, digits.integers(10, size=length)))
            (folder / "texts" / client / "text.txt").write_text(text)
        shares = {"train": 1.0, "validation": 0.0, "test": 0.0}
        values = {
            "data": {"format": "text", "path": str(folder / "texts"), "split": shares},
            "partition": {"by": "site"},
            "model": {"name": str(folder / "model")},
            "task": {"name": "lm", "max_length": self.tokens},
            "adapter": None if self.adapter is None else dict(self.adapter),
            "training": {"batch_size": self.batch, "accumulation": self.accumulation},
            "method": dict(method),
            "federation": {"rounds": _MOST_ROUNDS},
            "threads": 1,
        }
        path = folder / "run.yaml"
        path.write_text(json.dumps(values))  # which is YAML
        return path

    @property
    def method(self) -> dict[str, Any]:
        """The settings of the method that clients are started with."""
        return {
            "name": "fl_llama",
            "front": self.front,
            "back": self.back,
            "in_flight": self.in_flight,
        }


@dataclass
class Federation:
    """A server with its clients.

    Attributes:
        experiment: What is trained, as the server has it.
        hub: The lines.
        clients: The clients' processes, by name.
        folder: Of the run.
    """

    experiment: Experiment
    hub: GrpcHub
    clients: Mapping[str, subprocess.Popen[bytes]]
    folder: Path
    _state: State = field(init=False)
    _engine: RemoteEngine = field(init=False)
    _rounds: Iterator[int] = field(default_factory=lambda: count(1), init=False)

    def __post_init__(self) -> None:
        self._state = self.experiment.method.start(self.experiment.model)
        (self.folder / "record.jsonl").touch()
        self._engine = RemoteEngine(
            self.experiment, self.folder, _silent, names=list(self.clients), cache_bytes=0, patience=_PATIENCE
        )
        self._engine.connect(self.hub)
        self._engine.wait(None)

    def round(self, **method: Any) -> float:
        """Runs a round of every client from the first state; returns its seconds.

        Args:
            method: Settings of the method that only the server needs.
        """
        names = list(self.clients)
        chosen = FLLLaMA.model_validate({**self.experiment.method.model_dump(), **method})
        number = next(self._rounds)
        cohort = RoundCohort(
            method=chosen,
            model=self.experiment.model,
            engine=self._engine,
            clients=[self._engine.info(name) for name in names],
            training=self.experiment.settings.training,
            book=Book(number, self.folder, _silent, Attendance(names), self._engine.command),
        )
        started = time.perf_counter()
        chosen.round(self._state, cohort, Seed(0).child("round", number))
        return time.perf_counter() - started


def _silent(event: str, facts: Mapping[str, Any]) -> None:
    """Listens to nothing."""


@contextmanager
def federation(
    setting: Setting,
    clients: Sequence[str],
    folder: Path,
    *,
    delay: float = 0.0,
    threads: int | None = None,
) -> Iterator[Federation]:
    """Starts a server and its clients, and ends them.

    Args:
        setting: What is trained.
        clients: Their names.
        folder: For the texts, the model and what clients keep.
        delay: Seconds for which either side holds every message back.
        threads: Of the server; a client has one.
    """
    path = setting.write(folder, clients, setting.method)
    experiment = prepare(read_source(path, [] if threads is None else [f"threads={threads}"]))
    timing = Timing(answer=_PATIENCE, delay=delay)
    agreements, said = Agreements(experiment, tuple(clients), _LARGEST), shared_settings(experiment)
    hub = GrpcHub(
        agreements,
        largest=_LARGEST,
        clients=clients,
        timing=timing,
        settings=said,
        welcome=lambda client: {"run": _RUN, "counted": 0},
    )
    with ExitStack() as stack:
        stack.callback(hub.stop, 2.0, complete=True)
        address = hub.listen("127.0.0.1:0")
        processes = {}
        for name in clients:
            own = ("--insecure", "--client", name, "--home", str(folder / f"home of {name}"))
            joining = fedstrata("join", str(path), *own, "--server", address, "--delay", str(delay))
            processes[name] = stack.enter_context(joining)
        hub.wait_for(clients, _PATIENCE)
        yield Federation(experiment, hub, processes, folder)


@contextmanager
def fedstrata(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `fedstrata` with these arguments in a process of one thread, and ends it."""
    command = [sys.executable, "-m", "fedstrata", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()
