"""What tests of several folders share: a run of seconds, and how to look at what it left."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from hypothesis import settings

from fedstrata.core.client import Client
from fedstrata.core.error_codes import CODES
from fedstrata.core.errors import ConfigurationError, DataError, FedstrataError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan, State, Update
from fedstrata.engine.checkpoint import Checkpoints
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import open_run, resumable
from fedstrata.record.log import read_events

REPOSITORY = Path(__file__).parents[1]

TINY = (
    "data.types=[problem, test, treatment, drug]",
    "data.synthetic.sites=3",
    "data.synthetic.notes=12",
    "model.init=random",
    "model.tokenizer=mini",
    "model.config={model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, "
    "num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}",
    "task.max_length=64",
    "task.stride=8",
    "training.learning_rate=0.005",
    "federation.rounds=2",
    "federation.floors=false",
)
"""Overrides that make a run of seconds: three sites, a random model of three small blocks."""
TINY_SETTINGS = {
    name: yaml.safe_load(value)
    for name, _, value in (each.partition("=") for each in TINY)
    if name != "federation.rounds"
}
"""The same as the argument `settings` of `fedstrata.run`, but for `rounds`."""
OF_DOCUMENTS = {name: value for name, value in TINY_SETTINGS.items() if not name.startswith("data.synthetic")}
"""The same for documents that are given."""


PREFIXES_REFUSED = tuple(map(int, version("transformers").split(".")[:2])) >= (5, 24)
"""Whether the installed transformers is one in whose classifiers PEFT finds no place for a prefix."""


@contextmanager
def refused(
    kind: type[FedstrataError], code: str, *, at: str | None = None, values: Sequence[object] = ()
) -> Iterator[pytest.ExceptionInfo[FedstrataError]]:
    """Holds that an error is raised, with a code.

    Args:
        kind: Its class.
        code: Its code; of a `ConfigurationError` that of any of its problems.
        at: The path of the problem, or the name of the file of a `DataError`.
        values: Numbers and names that its message has.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    found = problems_of(error)
    assert {each for _, each in found} <= set(CODES)
    if at is None:
        assert code in [each for _, each in found], found
    else:
        assert (at, code) in found, found
    for value in values:
        assert str(value) in str(error)


def problems_of(error: FedstrataError) -> list[tuple[str, str]]:
    """Returns where each problem of an error is, and its code."""
    if isinstance(error, ConfigurationError):
        return [(problem.path, problem.code) for problem in error.problems]
    if isinstance(error, DataError):
        return [(each.path.name, each.code) for each in error.each]
    return [("", error.code)]


def fewer_examples(count: int) -> settings:
    """Returns settings of a dear property test: this many examples at a landing, in proportion weekly."""
    return settings(max_examples=settings.default.max_examples * count // 25)


WRITE_REPORT = Run._report
"""Writes the report of a run, which takes longer than a tiny run itself; conftest.py turns it off."""


@dataclass(frozen=True)
class Finished:
    """A finished tiny run."""

    folder: Path
    summary: dict[str, Any]
    events: list[dict[str, Any]]
    state: State

    def of(self, event: str) -> list[dict[str, Any]]:
        """Returns the recorded events of one kind."""
        return [item for item in self.events if item["event"] == event]

    @property
    def states(self) -> list[dict[str, Any]]:
        """What the method told of each round."""
        return [event["state"] for event in self.of("round")]

    def rounds_but_for_machine(self) -> list[dict[str, Any]]:
        """Returns the `round` events without times and memory, in which equal runs differ."""
        ignored = {
            "time",
            "seconds",
            "train_seconds",
            "serve_seconds",
            "evaluate_seconds",
            "engine_overhead_seconds",
            "peak_rss_bytes",
            "peak_gpu_bytes",
        }
        return [
            {key: value for key, value in event.items() if key not in ignored} for event in self.of("round")
        ]


RunTiny = Callable[..., Finished]


class Told(NamedTuple):
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str


Call = Callable[..., Told]


def finished(folder: Path, summary: dict[str, Any]) -> Finished:
    """Reads back what a run left; one without rounds leaves no state."""
    rounds = summary["rounds"]
    state = Checkpoints(folder / "checkpoints").load(rounds)[1] if rounds else State()
    return Finished(folder, summary, read_events(folder / "record.jsonl"), state)


def silent(event: str, facts: Any) -> None:
    """Listens to nothing."""


def executed(
    folder: Path,
    overrides: Sequence[str],
    *,
    resume: bool = False,
    report: bool = False,
    listen: Callable[[str, Any], None] = silent,
) -> Finished:
    """Runs in this process, or goes on with a run; its report is written only where it is asked for."""
    begun = partial(resumable, folder, None, overrides, command="fedstrata run")
    source = begun() if resume else read_source(None, overrides)
    with pytest.MonkeyPatch.context() as patched:
        if report:
            patched.setattr(Run, "_report", WRITE_REPORT)
        opened = open_run(source, folder, listen, resume=resume)
        return finished(folder, opened.execute(resume=resume))


def files_of(folder: Path) -> str:
    """Returns the names, sizes and times of change of all files in a folder."""
    found = ((path.relative_to(folder), path.stat()) for path in sorted(folder.rglob("*")) if path.is_file())
    return "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in found)


def executed_once(shared: Path, overrides: Sequence[str]) -> Finished:
    """Runs in the process that asks first; the others wait, and read what it left."""
    folder = shared / hashlib.sha256("\n".join(overrides).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        if not (folder / "done").exists():
            shutil.rmtree(folder / "run", ignore_errors=True)  # of a process that was stopped
            executed(folder / "run", overrides)
            (folder / "done").write_text(files_of(folder / "run"))
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    return finished(folder / "run", summary)


def assert_same_tensors(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    """The same names and the same bits."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


def load_script(path: str) -> ModuleType:
    """Imports a script of the repository, by a name that hides no other module."""
    name = path.removesuffix(".py").replace("/", ".")
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look it up
    spec.loader.exec_module(module)
    return module


def in_terminal(command: list[str], *, columns: int, folder: Path | None = None) -> tuple[int, str]:
    """Runs a command in a pseudo-terminal; returns its exit status and what it showed."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(command, cwd=folder, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        seen = b""
        while True:
            try:
                seen += os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
    os.close(leader)
    return process.returncode, seen.decode(errors="replace")


class Same:
    """A source of randomness that draws one number always."""

    def __init__(self, number: float) -> None:
        self._number = number

    def normal(self, size: int) -> torch.Tensor:
        raise NotImplementedError

    def uniform(self, size: int) -> np.ndarray:
        return np.full(size, self._number)


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Writes JSON lines into a folder that may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def watch_training(experiment: Experiment, after: Callable[[Plan, Client, Update], None]) -> None:
    """Has a function called with what each client was sent and has trained, before that is sent."""

    class Watched(type(experiment.method)):  # type: ignore[misc]
        def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
            update: Update = super().train(plan, client, rng)
            after(plan, client, update)
            return update

    object.__setattr__(experiment, "method", Watched(**dict(experiment.method)))


def prepared(*overrides: str) -> Experiment:
    """Returns what a tiny run begins with."""
    return prepare(read_source(None, [*TINY, *overrides]))


def opened(folder: Path, *overrides: str, listen: Callable[[str, Any], None] = silent) -> Run:
    """Returns a tiny run that has not begun."""
    return open_run(read_source(None, [*TINY, *overrides]), folder, listen, resume=False)
