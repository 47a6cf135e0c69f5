"""Processes in which simulated clients compute at the same time: who gets which of their turns, and answers.

Each has a model of its own, and computes one turn at a time exactly as one process would: what comes of it
does not depend on how many there are, as long as each has as many threads, on which torch's sums depend.
Where they lie is the business of what starts them (`jobs`).
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedstrata.client.store import ClientStore, client_folder
from fedstrata.client.turn import Failed, Order
from fedstrata.core.types import Message
from fedstrata.engine.protocol import Turns
from fedstrata.engine.workers.jobs import TRIES, Job, TurnJob, Worker, WorkerLostError, WorkerSource
from fedstrata.engine.workers.process import Peaks, ScoredModel, answer, turn
from fedstrata.record.log import Listener
from fedstrata.train.evaluate import Predictor
from fedstrata.wire import frame

POLL = 0.1
"""Seconds after which progress is looked at."""

AnyJob = TypeVar("AnyJob", bound=Job)


@dataclass
class Workers:
    """Some workers; each is started when there is something for it to do.

    Attributes:
        most: How many there may be.
        folder: The run directory.
        listen: Told of progress.
        source: Where they come from.
    """

    most: int
    folder: Path
    listen: Listener
    source: WorkerSource
    _workers: list[Worker] = field(default_factory=list)
    _waiting: deque[Job] = field(default_factory=deque)  # those that no worker is free for
    _busy: dict[Future[Any], tuple[Worker, Job]] = field(default_factory=dict)
    _peaks: dict[str, Peaks] = field(default_factory=dict)
    _models: int = 0
    _never_started: int = 0
    _homes: dict[str, Worker] = field(default_factory=dict)  # of clients that have begun a masked sum
    _last: dict[str, Worker] = field(default_factory=dict)  # that a client's folder was at

    @property
    def memory(self) -> list[Peaks]:
        """The most memory that each of them has had."""
        return list(self._peaks.values())

    def turns(self, orders: Iterable[Order]) -> Turns:
        """Has turns computed and yields what comes of them, in order."""

        def jobs() -> Iterator[TurnJob]:
            for order in orders:
                store = ClientStore(client_folder(self.folder, order.client), order.round)
                yield TurnJob(turn, (order,), order.client, order=order, store=store, version=store.version)

        for job in self._computed(jobs()):
            result, events = job.result or (Failed(job.lost), [])
            for event in events:
                self.listen(*event)
            yield job.order, result

    def predictor(self, client: str | None, number: int, shared: Message) -> Predictor:
        """Returns what has a model answer batches in these workers.

        Args:
            client: Whose model it is; what is shared and nobody's if none.
            number: The round.
            shared: The global values of what is shared.
        """
        self._models += 1
        values = self.source.share(frame.encode(shared))
        return partial(self._answered, ScoredModel(self._models, client, number, values))

    def _answered(self, model: ScoredModel, batches: Iterable[list[Any]]) -> Iterator[Sequence[Any]]:
        for job in self._computed(Job(answer, (model, batch), model.client) for batch in batches):
            if job.result is None:
                raise job.lost
            yield job.result

    def _computed(self, jobs: Iterator[AnyJob]) -> Iterator[AnyJob]:
        """Yields jobs in order once they are computed.

        At most twice as many as there are workers are computed and not yet taken, whatever takes longest.
        """
        begun = deque[AnyJob]()
        try:
            while True:
                while len(self._busy) + len(self._waiting) < self.most and len(begun) < 2 * self.most:
                    if (job := next(jobs, None)) is None:
                        break
                    begun.append(job)
                    self._waiting.append(job)
                self._begin()
                if not begun:
                    return
                while begun and not self._is_under_way(begun[0]):
                    yield begun.popleft()
                if begun:
                    self._wait()
        finally:
            for worker, _ in self._busy.values():
                self._end(worker)
            self._busy.clear()
            self._waiting.clear()
            for job in begun:
                job.drop()

    def close(self) -> None:
        """Ends the workers, whatever they are at."""
        for worker in list(self._workers):
            self._end(worker)
        self.source.close()

    def _is_under_way(self, job: Job) -> bool:
        at_work = (other for _, other in self._busy.values())
        return any(job is other for other in (*at_work, *self._waiting))

    def _begin(self) -> None:
        """Gives jobs to workers that are free, or to new ones; one may have ended while it was free."""
        for job in list(self._waiting):
            while (worker := self._worker_for(job)) is not None:
                try:
                    self._busy[worker.submit(job)] = (worker, job)
                except BrokenExecutor:
                    self._end(worker)
                else:
                    job.tries += 1
                    self._waiting.remove(job)
                    if job.client is not None:
                        self._last[job.client] = worker
                    break

    def _worker_for(self, job: Job) -> Worker | None:
        """Returns a worker that can begin a job now, if possible that which its client's folder was at."""
        if job.home is not None:
            return self._home(job.home, leaves=job.leaves_home)
        last = self._last.get(job.client or "")
        free = sorted(self._free(), key=lambda worker: worker is not last)
        return free[0] if free else self._new()

    def _home(self, client: str, *, leaves: bool) -> Worker | None:
        """Returns the worker that has what a client has begun of a sum, if it is at nothing.

        A client without one, or that leaves it, gets that of the fewest clients; what one has begun that has
        ended is lost.
        """
        if leaves or client not in self._homes:
            self._new()
            counts = Counter(id(worker) for other, worker in self._homes.items() if other != client)
            if not (able := [worker for worker in self._workers if worker.started.done()]):
                return None
            self._homes[client] = min(able, key=lambda worker: counts[id(worker)])
        home = self._homes[client]
        return home if home in self._free() else None

    def _free(self) -> list[Worker]:
        """Returns those that take jobs and are at nothing."""
        at_work = [worker for worker, _ in self._busy.values()]
        return [worker for worker in self._workers if worker.started.done() and worker not in at_work]

    def _new(self) -> Worker | None:
        """Starts one more, if there may be one; returns it if it takes jobs at once."""
        if len(self._workers) >= self.most:
            return None
        worker = self.source.start()
        self._workers.append(worker)
        return worker if worker.started.done() else None

    def _wait(self) -> None:
        """Waits for a job that ends, or a worker that begins, and tells meanwhile of progress."""
        starting = {worker.started: worker for worker in self._workers if not worker.started.done()}
        done: set[Future[Any]] = set()
        while not done:
            done, _ = wait([*self._busy, *starting], POLL, FIRST_COMPLETED)
            for worker, _ in self._busy.values():
                for event in worker.events():
                    self.listen(*event)
        for future in done:
            if future in starting:
                self._has_started(starting[future])
            else:
                self._take(future)

    def _has_started(self, worker: Worker) -> None:
        """Hears that a worker takes jobs, or never will.

        Raises:
            WorkerLostError: None does, whatever is started.
        """
        try:
            worker.started.result()
        except BrokenExecutor:
            self._end(worker)
            self._never_started += 1
            if self._never_started > TRIES * self.most:
                raise WorkerLostError(f"{self._never_started} workers have ended as they began") from None

    def _take(self, future: Future[Any]) -> None:
        """Takes what came of a job; one whose worker is gone is begun again."""
        worker, job = self._busy.pop(future)
        try:
            job.result, name, peaks = worker.take(job, future)
        except BrokenExecutor:
            self._end(worker)
            if job.may_be_tried_again():
                self._waiting.appendleft(job)
        else:
            self._peaks[name] = peaks

    def _end(self, worker: Worker) -> None:
        worker.kill()
        self._workers.remove(worker)
        self._homes = {client: home for client, home in self._homes.items() if home is not worker}
        self._last = {client: last for client, last in self._last.items() if last is not worker}
