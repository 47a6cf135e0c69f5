"""Processes of this machine at which simulated clients compute at the same time: their turns, and answers.

Each has a model of its own, and computes one turn at a time exactly as one process would: what comes of it
does not depend on how many there are, as long as each has as many threads, on which torch's sums depend.
They are forked from a server that has imported everything and computed nothing, so that they share the pages
of the libraries. Frames lie in shared memory; through a pipe one of 50 MB takes 0.3 s.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import torch

from fedstrata.client.store import ClientStore, client_folder
from fedstrata.client.turn import Failed, Order, is_exchange
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import Message
from fedstrata.engine.fork_server import fork_server
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.protocol import Turns
from fedstrata.engine.worker_process import Computing, Preparation, ScoredModel, answer, call, turn
from fedstrata.models.state import Model
from fedstrata.record.log import Listener
from fedstrata.train.evaluate import Predictor
from fedstrata.wire import frame
from fedstrata.wire.frame import SharedFrame

TRIES = 2
"""How often something is begun whose process is lost in it."""
POLL = 0.1
"""Seconds after which progress is looked at."""

EngineOf: TypeAlias = "Callable[[Experiment, Path, Listener], Computing]"
Job = TypeVar("Job", bound="_Job")


class WorkerLostError(TrainingError):
    """The processes that something was computed in have ended before it was done."""


@dataclass
class _Job:
    """Something to compute in another process.

    Attributes:
        compute: What computes it there, given its arguments.
        arguments: These.
        tries: How often it was begun.
        result: What came of it; none as long as it is under way, or if its processes were lost.
    """

    compute: Callable[..., Any]
    arguments: tuple[Any, ...]
    tries: int = 0
    result: Any = None

    @property
    def lost(self) -> WorkerLostError:
        """What is said of it where its processes were lost."""
        return WorkerLostError(f"the process that computed it has ended {self.tries} times")

    def may_be_tried_again(self) -> bool:
        """Hears that its process was lost in it; returns whether to begin it in another one."""
        return self.tries < TRIES

    def drop(self) -> None:
        """Hears that nobody takes what came of it."""

    @property
    def home(self) -> str | None:
        """Whose it is, if it has to be computed where the last one of theirs was."""
        return None


@dataclass
class _Turn(_Job):
    """A client's turn.

    Attributes:
        order: What is to be done.
        store: The client's store of the round.
        version: Which that was before the turn; none without any.
    """

    order: Order = field(kw_only=True)
    store: ClientStore = field(kw_only=True)
    version: tuple[int, int] | None = field(kw_only=True)

    def may_be_tried_again(self) -> bool:
        """What the lost process may have kept of the turn is dropped; over another version nothing is run."""
        again = super().may_be_tried_again() and self.version in {None, self.store.version}
        again = again and self.home is None  # what it has begun of a sum is lost with the process
        if self.version is None or not again:  # a client that is lost keeps nothing of the whole round
            self.store.discard()
        return again

    @property
    def home(self) -> str | None:
        """The client, if it is an exchange of a masked sum."""
        return self.order.client if is_exchange(self.order.handler) else None

    def drop(self) -> None:
        """Drops what the turn has kept: one process would not have begun it."""
        if self.store.version != self.version:
            self.store.discard()


@dataclass
class _Process:
    """One process.

    Attributes:
        executor: What gives it work.
        said: Where it tells of progress.
        preparation: What it is sent with its first work; none afterwards.
        device: Where its model is.
    """

    executor: ProcessPoolExecutor
    said: Connection
    preparation: Preparation | None
    device: torch.device

    def submit(self, job: _Job) -> Future[Any]:
        """Gives it something to compute.

        Raises:
            BrokenProcessPool: It has ended meanwhile.
            FedstrataError: There is no shared memory for what it is sent.
        """
        sent = ForkingPickler.dumps((self.preparation, job.compute, job.arguments))  # what fails does so here
        future = self.executor.submit(call, bytes(sent))
        self.preparation = None
        return future

    def kill(self) -> None:
        """Ends it at once."""
        for process in list((self.executor._processes or {}).values()):
            process.kill()
        self.executor.shutdown(wait=True, cancel_futures=True)
        self.said.close()


@dataclass
class Workers:
    """Some processes; each is started when there is something for it to do.

    Attributes:
        experiment: What is run, and how many of them.
        folder: The run directory.
        listen: Told of progress.
        engine_of: Returns what computes in each of them.
    """

    experiment: Experiment
    folder: Path
    listen: Listener
    engine_of: EngineOf
    _processes: list[_Process] = field(default_factory=list)
    _busy: dict[Future[Any], tuple[_Process, _Job]] = field(default_factory=dict)
    _peaks: dict[int, Mapping[str, int | None]] = field(default_factory=dict)
    _models: int = 0
    _homes: dict[str, _Process] = field(default_factory=dict)  # of clients that have begun a masked sum

    @property
    def memory(self) -> list[Mapping[str, int | None]]:
        """The most memory that each of these processes has had."""
        return list(self._peaks.values())

    def turns(self, orders: Iterable[Order]) -> Turns:
        """Has turns computed and yields what comes of them, in order."""

        def jobs() -> Iterator[_Turn]:
            for order in orders:
                store = ClientStore(client_folder(self.folder, order.client), order.round)
                yield _Turn(turn, (order,), order=order, store=store, version=store.version)

        for job in self._computed(jobs()):
            result, events = job.result or (Failed(job.lost), [])
            for event in events:
                self.listen(*event)
            yield job.order, result

    def predictor(self, client: str | None, number: int, shared: Message) -> Predictor:
        """Returns what has a model answer batches in these processes.

        Args:
            client: Whose model it is; what is shared and nobody's if none.
            number: The round.
            shared: The global values of what is shared.
        """
        self._models += 1
        values = SharedFrame.of(frame.encode(shared))
        return partial(self._answered, ScoredModel(self._models, client, number, values))

    def _answered(self, model: ScoredModel, batches: Iterable[list[Any]]) -> Iterator[Sequence[Any]]:
        for job in self._computed(_Job(answer, (model, batch)) for batch in batches):
            if job.result is None:
                raise job.lost
            yield job.result

    def _computed(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Yields jobs in order once they are computed.

        At most twice as many as there are processes are computed and not yet taken, whatever takes longest.
        """
        most, begun = self.experiment.workers, deque[Job]()
        try:
            while True:
                while len(self._busy) < most and len(begun) < 2 * most:
                    if (job := next(jobs, None)) is None:
                        break
                    begun.append(job)
                    self._begin(job)
                if not begun:
                    return
                while begun and all(job is not begun[0] for _, job in self._busy.values()):
                    yield begun.popleft()
                if begun:
                    self._wait()
        finally:
            for process, _ in self._busy.values():
                self._end(process)
            self._busy.clear()
            for job in begun:
                job.drop()

    def close(self) -> None:
        """Ends the processes, whatever they are at."""
        for process in list(self._processes):
            self._end(process)

    def _begin(self, job: _Job) -> None:
        """Gives a job to a process that is free, or to a new one; one may have ended while it was free."""
        while True:
            process = self._free() if job.home is None else self._home(job.home)
            try:
                self._busy[process.submit(job)] = (process, job)
            except BrokenProcessPool:
                self._end(process)
            else:
                job.tries += 1
                return

    def _free(self) -> _Process:
        """Returns a process that is at nothing."""
        at_work = [process for process, _ in self._busy.values()]
        free = [process for process in self._processes if process not in at_work]
        return free[0] if free else self._new()

    def _home(self, client: str) -> _Process:
        """Returns the process that has what a client has begun of a sum, once it is at nothing.

        A client without one gets that of the fewest clients; what one has begun that has ended is lost.
        """
        if client not in self._homes:
            few = len(self._processes) < self.experiment.workers
            counts = Counter(id(process) for process in self._homes.values())
            self._homes[client] = (
                self._new() if few else min(self._processes, key=lambda process: counts[id(process)])
            )
        while any(process is self._homes.get(client) for process, _ in self._busy.values()):
            self._wait()
        return self._homes.get(client) or self._home(client)

    def _new(self) -> _Process:
        """Returns a process of its own, so that a crash costs one job."""
        context = fork_server()
        said, saying = context.Pipe(duplex=False)
        preparation = Preparation(
            self.engine_of,
            replace(self.experiment, model=cast("Model", None)),  # not every module can be sent
            self.experiment.model.tokenizer,
            self.folder,
            torch.get_num_threads(),
            self._device(),
            saying,
        )
        process = _Process(ProcessPoolExecutor(1, context), said, preparation, preparation.device)
        self._processes.append(process)
        return process

    def _device(self) -> torch.device:
        """Returns where the next process computes: on a GPU that no other one is on, which there is."""
        if (device := self.experiment.model.device).type == "cpu":
            return device
        taken = {process.device.index for process in self._processes}
        return torch.device("cuda", min(set(range(torch.cuda.device_count())) - taken))

    def _wait(self) -> None:
        """Waits for a job that ends, and tells meanwhile of progress."""
        done: set[Future[Any]] = set()
        while not done:
            done, _ = wait(self._busy, POLL, FIRST_COMPLETED)
            for process, _ in self._busy.values():
                with suppress(EOFError, OSError):  # it has ended, which its work will say
                    while process.said.poll():
                        self.listen(*process.said.recv())
        for future in done:
            self._take(future)

    def _take(self, future: Future[Any]) -> None:
        """Takes what came of a job; one whose process is gone is begun again."""
        process, job = self._busy.pop(future)
        try:
            job.result, number, peaks = future.result()
        except BrokenProcessPool:
            self._end(process)
            if job.may_be_tried_again():
                self._begin(job)
        else:
            self._peaks[number] = peaks

    def _end(self, process: _Process) -> None:
        process.kill()
        self._processes.remove(process)
        self._homes = {client: home for client, home in self._homes.items() if home is not process}
