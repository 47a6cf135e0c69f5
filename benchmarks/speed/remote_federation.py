"""A server in this process and clients of `fedstrata join` in others, whose rounds can be timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from split_line import random_decoder

from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON, State
from fedstrata.engine.agreeing import TRAINING, agreement_of
from fedstrata.engine.book import Attendance, Book
from fedstrata.engine.cohort import RoundCohort
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.remote import RemoteEngine
from fedstrata.methods.fl_llama import FLLLaMA
from fedstrata.split.divide import ends_of
from fedstrata.transport.agreement import Agreement, shapes_of
from fedstrata.transport.hub import Hub
from fedstrata.transport.members import Greeting
from fedstrata.transport.timing import Timing

_LARGEST = 2**28
_PATIENCE = 600.0


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
        in_flight: How many of them the server takes at once; a client may say less.
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
    hub: Hub
    clients: Mapping[str, subprocess.Popen[str]]
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

    def round(self, clients: Sequence[str] = (), **method: Any) -> float:
        """Runs a round from the first state; returns its seconds.

        Args:
            clients: Who takes part; everybody if empty.
            method: Settings of the method that only the server needs.
        """
        names = list(clients or self.clients)
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
    clients: Mapping[str, Sequence[str]],
    folder: Path,
    *,
    delay: float = 0.0,
    threads: int | None = None,
) -> Iterator[Federation]:
    """Starts a server and its clients, and ends them.

    Args:
        setting: What is trained.
        clients: Overrides of each client's own settings, by its name.
        folder: For the texts, the model and what clients keep.
        delay: Seconds for which either side holds every message back.
        threads: Of the server; a client has one.
    """
    path = setting.write(folder, list(clients), setting.method)
    own = [] if threads is None else [f"threads={threads}"]
    experiment = prepare(read_source(path, own))
    timing = Timing(answer=_PATIENCE, delay=delay)
    said: dict[str, JSON] = {"fedstrata": version("fedstrata"), "settings": {}}  # a client names its own
    agree = _agree(experiment, setting)
    hub = Hub(agree, largest=_LARGEST, clients=list(clients), timing=timing, settings=said)
    with ExitStack() as stack:
        stack.callback(hub.stop, 2.0, complete=True)
        address = hub.listen("127.0.0.1:0")
        processes = {}
        for name, overrides in clients.items():
            command = [
                *(sys.executable, "-m", "fedstrata", "split", "join", str(path), *overrides),
                *("--insecure", "--client", name, "--server", address),
                *("--delay", str(delay), "--home", str(folder / f"home of {name}")),
            ]
            processes[name] = stack.enter_context(_process(command))
        hub.wait_for(list(clients), _PATIENCE)
        yield Federation(experiment, hub, processes, folder)


def _agree(experiment: Experiment, setting: Setting) -> Callable[[str, Greeting], Agreement]:
    """Returns what agrees with every client: settings are not compared, for they are what is measured."""
    cut = Cut(setting.front, setting.back)
    ends = ends_of(experiment.model, cut)
    shapes = shapes_of(ends.tensors(ends.layout.all))
    length = experiment.task.max_length

    def agree(client: str, greeting: Greeting) -> Agreement:
        return agreement_of(experiment, client, int(str(greeting["rows"])), length, TRAINING, shapes)

    return agree


@contextmanager
def _process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()
