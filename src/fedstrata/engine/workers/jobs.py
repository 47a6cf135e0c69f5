"""What a run has computed elsewhere than in its own process, and what computes it: the seam of `workers`.

A worker is a process with a model of its own that computes one job at a time. Where it lies, how it is
started and how jobs and their results travel is the business of a `WorkerSource`: `forked_workers` has
processes of this machine, `ray_workers` those of a cluster. Who gets which job, and what becomes of one whose
worker is lost, is the same for all of them (`workers`).
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedstrata.client.store import ClientStore
from fedstrata.client.turn import Order
from fedstrata.core.errors import TrainingError
from fedstrata.core.handlers import begins_sum, is_exchange
from fedstrata.engine.workers.process import Computed, Event, Shared
from fedstrata.wire.frame import Frame

TRIES = 2
"""How often something is begun whose worker is lost in it."""


class WorkerLostError(TrainingError):
    """The workers that something was computed in have ended before it was done."""

    code = "worker_lost"


@dataclass
class Job:
    """Something to compute in another process.

    Attributes:
        compute: What computes it there, given its arguments.
        arguments: These.
        client: The client whose folder it needs there; none if it needs nobody's.
        tries: How often it was begun.
        result: What came of it; none as long as it is under way, or if its workers were lost.
    """

    compute: Callable[..., Any]
    arguments: tuple[Any, ...]
    client: str | None = None
    tries: int = 0
    result: Any = None

    @property
    def lost(self) -> WorkerLostError:
        """What is said of it where its workers were lost."""
        return WorkerLostError(f"the process that computed it has ended {self.tries} times")

    def may_be_tried_again(self) -> bool:
        """Hears that its worker was lost in it; returns whether to begin it in another one."""
        return self.tries < TRIES

    def drop(self) -> None:
        """Hears that nobody takes what came of it."""

    @property
    def home(self) -> str | None:
        """Whose it is, if it has to be computed where the last one of theirs was."""
        return None

    @property
    def leaves_home(self) -> bool:
        """Whether it needs nothing of what the last one of theirs has left in the memory of its worker."""
        return False


@dataclass
class TurnJob(Job):
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
        """What the lost worker may have kept of the turn is dropped; over another version nothing is run."""
        again = super().may_be_tried_again() and self.version in {None, self.store.version}
        again = again and self.home is None  # what it has begun of a sum is lost with the worker
        if self.version is None or not again:  # a client that is lost keeps nothing of the whole round
            self.store.discard()
        return again

    @property
    def home(self) -> str | None:
        """The client, if it is an exchange of a masked sum."""
        return self.order.client if is_exchange(self.order.handler) else None

    @property
    def leaves_home(self) -> bool:
        """Whether a sum begins with it."""
        return begins_sum(self.order.handler)

    def drop(self) -> None:
        """Drops what the turn has kept: one process would not have begun it."""
        if self.store.version != self.version:
            self.store.discard()


class Worker(Protocol):
    """A process that computes one job at a time.

    Attributes:
        started: Is done once the worker takes jobs; with `BrokenExecutor` if it has ended before.
    """

    started: Future[None]

    def submit(self, job: Job) -> Future[Any]:
        """Gives it something to compute.

        Raises:
            BrokenExecutor: It has ended meanwhile.
            FedstrataError: There is no room for what it is sent.
        """

    def take(self, job: Job, future: Future[Any]) -> Computed:
        """Returns what came of a job, whose future is done.

        Raises:
            BrokenExecutor: It has ended in it.
        """

    def events(self) -> Iterable[Event]:
        """Yields what it has said meanwhile of its progress."""

    def kill(self) -> None:
        """Ends it at once."""


class WorkerSource(Protocol):
    """Where workers come from."""

    def start(self) -> Worker:
        """Starts one of its own, so that a crash costs one job."""

    def share(self, frame: Frame) -> Shared:
        """Puts a frame where all of them can get it.

        Raises:
            FedstrataError: There is no room for it.
        """

    def close(self) -> None:
        """Hears that no more are needed, and those there were have been ended."""
