"""Processes of this machine at which simulated clients compute at the same time: their turns, and answers.

Each has a model of its own, and computes one turn at a time exactly as one process would: what comes of it
does not depend on how many there are, as long as each has as many threads, on which torch's sums depend.
They are forked from a server that has imported everything and computed nothing, so that they share the pages
of the libraries. Frames lie in shared memory; through a pipe one of 50 MB takes 0.3 s.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, multiprocessing

from fedstrata.client.failures import describe
from fedstrata.client.store import ClientStore, client_folder
from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import Message
from fedstrata.engine.fork_server import fork_server
from fedstrata.engine.prepare import with_model
from fedstrata.metrics.cost import peak_rss_bytes
from fedstrata.train.processor import use_processor
from fedstrata.wire import frame

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

    from fedstrata.core.types import Tensors
    from fedstrata.engine.prepare import Experiment
    from fedstrata.engine.protocol import Turns
    from fedstrata.models.state import Model
    from fedstrata.record.log import Listener
    from fedstrata.train.evaluate import Predictor
    from fedstrata.wire.frame import Frame

    EngineOf: TypeAlias = Callable[[Experiment, Path, Listener], "Computing"]

TRIES = 2
"""How often a turn is begun whose process is lost in it."""
POLL = 0.1
"""Seconds after which progress is looked at."""
NOTHING = frame.Frame(b"", ())

Event = tuple[str, Mapping[str, Any]]
Job = TypeVar("Job", bound="_Job")


class Computing(Protocol):
    """What computes in a process."""

    def compute(self, order: Order) -> Done | Failed:
        """Computes one turn."""

    def enter(self, client: str | None, number: int, shared: Tensors) -> None:
        """Makes the model a client's own, or what is shared alone if none."""

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        """Returns the answers of the model, as it is, to the examples of a batch."""


class WorkerLostError(TrainingError):
    """The processes that a client's turn ran in have ended before it did."""


@dataclass
class _Job:
    """Something to compute in another process.

    Attributes:
        compute: What computes it there, given its arguments.
        arguments: These; frames among them in shared memory.
        tries: How often it was begun.
        result: What came of it; none as long as it is under way.
    """

    compute: Callable[..., Any]
    arguments: tuple[Any, ...]
    tries: int = 0
    result: Any = None

    def again(self) -> bool:
        """Hears that its process was lost in it; returns whether it can be begun again."""
        return self.tries < TRIES

    def drop(self) -> None:
        """Hears that nobody takes what came of it."""


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

    def again(self) -> bool:
        """What the lost process may have kept of the turn is dropped; over another version nothing is run."""
        if self.version is None:
            self.store.discard()
        return super().again() and self.store.version == self.version

    def drop(self) -> None:
        """Drops what the turn has kept: one process would not have begun it."""
        if self.store.version != self.version:
            self.store.discard()


@dataclass(frozen=True)
class _Holding:
    """What a model holds that answers.

    Attributes:
        id: Tells it from every other one.
        client: Whose model it is; what is shared and nobody's if none.
        number: The round.
        shared: The global values of what is shared, a frame in shared memory.
    """

    id: int
    client: str | None
    number: int
    shared: Tensor


@dataclass
class Workers:
    """Some processes; they are started when the first turn is computed.

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
    _idle: list[ProcessPoolExecutor] = field(default_factory=list)
    _busy: dict[Future[Any], tuple[ProcessPoolExecutor, _Job]] = field(default_factory=dict)
    _peaks: dict[int, int] = field(default_factory=dict)
    _started: int = 0
    _models: int = 0
    _whole: Tensor | None = None
    _said: SimpleQueue[Event] | None = None

    @property
    def memory(self) -> int:
        """The most bytes that these processes have had, all together."""
        return sum(self._peaks.values())

    def turns(self, orders: Iterable[Order]) -> Turns:
        """Has turns computed and yields what comes of them, in order."""

        def jobs() -> Iterator[_Turn]:
            for order in orders:
                store = ClientStore(client_folder(self.folder, order.client), order.round)
                arguments = (replace(order, plan=NOTHING), _shared(order.plan.buffers()))
                yield _Turn(_compute, arguments, order=order, store=store, version=store.version)

        for turn in self._computed(jobs()):
            if turn.result is None:
                error = WorkerLostError(f"the process that computed it has ended {turn.tries} times")
                yield turn.order, Failed(error)
                continue
            result, content, events = turn.result
            for event in events:
                self.listen(*event)
            yield turn.order, replace(result, update=_frame(content)) if isinstance(result, Done) else result

    def predictor(self, client: str | None, number: int, shared: Message) -> Predictor:
        """Returns what has a model answer batches in these processes.

        Args:
            client: Whose model it is; what is shared and nobody's if none.
            number: The round.
            shared: The global values of what is shared.
        """
        self._models += 1
        model = _Holding(self._models, client, number, _shared(frame.encode(shared).buffers()))
        return partial(self._predicted, model)

    def _predicted(self, model: _Holding, batches: Iterable[list[Any]]) -> Iterator[Sequence[Any]]:
        for job in self._computed(_Job(_predict, (model, batch)) for batch in batches):
            if job.result is None:
                raise WorkerLostError(f"the process that scored a model has ended {job.tries} times")
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
            for executor, _ in self._busy.values():
                _kill(executor)
            self._busy.clear()
            for job in begun:
                job.drop()

    def close(self) -> None:
        """Ends the processes, whatever they are at."""
        for executor in [*self._idle, *(executor for executor, _ in self._busy.values())]:
            _kill(executor)
        self._idle, self._busy = [], {}

    def _begin(self, job: _Job) -> None:
        """Gives a job to a process that is free, or to a new one."""
        executor = self._idle.pop() if self._idle else self._new()
        job.tries += 1
        self._busy[executor.submit(_call, job.compute, job.arguments)] = (executor, job)

    def _new(self) -> ProcessPoolExecutor:
        """Returns a process of its own: a crash costs one job, which is run again."""
        context = fork_server()
        if self._whole is None or self._said is None:
            parts = (replace(self.experiment, model=cast("Model", None)), self.experiment.model.tokenizer)
            self._whole = _shared([pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)])  # not all modules can be
            self._said = context.SimpleQueue()
        device = self.experiment.model.device
        if device.type == "cuda":  # one each
            device = torch.device("cuda", self._started % torch.cuda.device_count())
        self._started += 1
        arguments = (self.engine_of, self._whole, self.folder, torch.get_num_threads(), device, self._said)
        return ProcessPoolExecutor(1, context, _prepare, arguments)

    def _wait(self) -> None:
        """Waits for a job that ends, and tells meanwhile of progress."""
        done: set[Future[Any]] = set()
        while not done:
            done, _ = wait(self._busy, POLL, FIRST_COMPLETED)
            while self._said is not None and not self._said.empty():
                self.listen(*self._said.get())
        for future in done:
            self._end(future)

    def _end(self, future: Future[Any]) -> None:
        """Takes what came of a job; one whose process is gone is begun again."""
        executor, job = self._busy.pop(future)
        try:
            job.result, process, peak = future.result()
            self._peaks[process] = peak
            self._idle.append(executor)
        except BrokenProcessPool:
            _kill(executor)
            if job.again():
                self._begin(job)
        except Exception:
            self._idle.append(executor)
            raise


def _kill(executor: ProcessPoolExecutor) -> None:
    """Ends a process at once."""
    for process in list((executor._processes or {}).values()):
        process.kill()
    executor.shutdown(wait=True, cancel_futures=True)


def _shared(pieces: Iterable[bytes | memoryview]) -> Tensor:
    """Returns these pieces as one piece of memory that processes can share."""
    views = [memoryview(piece).cast("B") for piece in pieces]
    whole = torch.empty(sum(view.nbytes for view in views), dtype=torch.uint8)
    whole.share_memory_()  # type: ignore[no-untyped-call]
    target, position = frame.bytes_of(whole), 0
    for view in views:
        target[position : position + view.nbytes] = view
        position += view.nbytes
    return whole


def _frame(whole: Tensor) -> Frame:
    """Returns the frame in such a piece; its tensors alias it."""
    return frame.split(frame.bytes_of(whole))


# Within a process of its own.

_engine: Computing
_events: list[Event]
_held: int | None = None
"""The model that the process holds; none where that is not one to be scored."""


def _prepare(
    engine_of: EngineOf,
    whole: Tensor,
    folder: Path,
    threads: int,
    device: torch.device,
    said: SimpleQueue[Event],
) -> None:
    """Makes this process one that computes turns, until the one that started it ends."""
    global _engine, _events  # noqa: PLW0603 - what a process of a pool has from its first task to its last
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it is told, and ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    use_processor(threads)
    _events = []

    def listen(event: str, facts: Mapping[str, Any]) -> None:
        if event == "client_progress":
            said.put((event, facts))
        else:
            _events.append((event, facts))

    experiment, tokenizer = pickle.loads(frame.bytes_of(whole))  # noqa: S301 - of the process that started this one
    _engine = engine_of(with_model(experiment, tokenizer, device), folder, listen)


def _end_with_parent() -> None:
    """Ends this process with the one that started it, however that ends."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _call(compute: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, int, int]:
    """Computes something; returns what came of it, this process, and the most memory it has had."""
    return compute(*arguments), os.getpid(), peak_rss_bytes()


def _compute(order: Order, plan: Tensor) -> tuple[Done | Failed, Tensor | None, list[Event]]:
    """Computes one turn; returns what came of it, its update in shared memory, and what it told."""
    global _held  # noqa: PLW0603
    _events.clear()
    _held = None
    result = _engine.compute(replace(order, plan=_frame(plan)))
    if isinstance(result, Done):
        return replace(result, update=NOTHING), _shared(result.update.buffers()), _events
    with suppress(Exception):
        pickle.dumps(result)
        return result, None, _events
    return replace(result, error=TrainingError(describe(result.error))), None, _events


def _predict(model: _Holding, batch: list[Any]) -> Sequence[Any]:
    """Returns the answers of a model to the examples of a batch."""
    global _held  # noqa: PLW0603
    if _held != model.id:
        shared = frame.decode(_frame(model.shared), Message).tensors
        _engine.enter(model.client, model.number, shared)
        _held = model.id
    return _engine.predict(batch)
