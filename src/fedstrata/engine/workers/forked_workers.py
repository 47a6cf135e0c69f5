"""Workers that are processes of this machine, forked from a server that has imported everything.

It has computed nothing, so that they share the pages of the libraries. Frames lie in shared memory; through a
pipe one of 50 MB takes 0.3 s. What clients keep lies in the run directory, where each of them finds it.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, cast

import torch

from fedstrata.engine.prepare import Experiment
from fedstrata.engine.workers.fork_server import fork_server
from fedstrata.engine.workers.jobs import Job
from fedstrata.engine.workers.process import Computed, EngineOf, Event, ForkPreparation, call, watch_parent
from fedstrata.models.state import Model
from fedstrata.wire.frame import Frame, SharedFrame


def one_process() -> ProcessPoolExecutor:
    """Returns what starts a process with its first work, which ends with this one."""
    return ProcessPoolExecutor(1, fork_server(), initializer=watch_parent)


def _at_once() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


@dataclass
class ForkedWorker:
    """One process; implements `jobs.Worker`.

    Attributes:
        executor: What gives it work.
        said: Where it tells of progress.
        preparation: What it is sent with its first work; none afterwards.
        device: Where its model is.
        forget: Told when it is ended.
        started: Is done: what it is given before it can compute waits.
    """

    executor: ProcessPoolExecutor
    said: Connection
    preparation: ForkPreparation | None
    device: torch.device
    forget: Callable[["ForkedWorker"], None]
    started: Future[None] = field(default_factory=_at_once)

    def submit(self, job: Job) -> Future[Any]:
        """Gives it something to compute; see `jobs.Worker`."""
        sent = ForkingPickler.dumps((self.preparation, job.compute, job.arguments))  # what fails does so here
        future = self.executor.submit(call, bytes(sent))
        self.preparation = None
        return future

    def take(self, job: Job, future: Future[Any]) -> Computed:
        """Returns what came of a job; see `jobs.Worker`."""
        return cast("Computed", future.result())

    def events(self) -> Iterator[Event]:
        """Yields what it has said meanwhile of its progress."""
        with suppress(EOFError, OSError):  # it has ended, which its work will say
            while self.said.poll():
                yield self.said.recv()

    def kill(self) -> None:
        """Ends it at once."""
        for process in list((self.executor._processes or {}).values()):
            process.kill()
        self.executor.shutdown(wait=True, cancel_futures=True)
        self.said.close()
        self.forget(self)


@dataclass
class ForkedWorkers:
    """Where they come from; implements `jobs.WorkerSource`.

    Attributes:
        experiment: What is run.
        folder: The run directory.
        engine_of: Returns what computes in each of them.
    """

    experiment: Experiment
    folder: Path
    engine_of: EngineOf
    _alive: list[ForkedWorker] = field(default_factory=list)

    def start(self) -> ForkedWorker:
        """Starts a process."""
        said, saying = fork_server().Pipe(duplex=False)
        preparation = ForkPreparation(
            self.engine_of,
            replace(self.experiment, model=cast("Model", None)),  # not every module can be sent
            self.experiment.model.tokenizer,
            self.folder,
            torch.get_num_threads(),
            self._device(),
            saying,
        )
        worker = ForkedWorker(one_process(), said, preparation, preparation.device, self._alive.remove)
        self._alive.append(worker)
        return worker

    def share(self, frame: Frame) -> SharedFrame:
        """Puts a frame into memory that they share; see `jobs.WorkerSource`."""
        return SharedFrame.of(frame)

    def close(self) -> None:
        """Leaves the server alone: another run of this process may fork from it."""

    def _device(self) -> torch.device:
        """Returns where the next process computes: on a GPU that no other one is on, which there is."""
        if (device := self.experiment.model.device).type == "cpu":
            return device
        taken = {worker.device.index for worker in self._alive}
        return torch.device("cuda", min(set(range(torch.cuda.device_count())) - taken))
