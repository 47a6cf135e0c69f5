"""Workers that are actors of Ray, on the machines of a cluster.

Frames and the files of clients lie in Ray's store as plain bytes. What comes of a job is in the run directory
once it is taken, and not before: a worker or a machine that is lost has taken nothing along but the time.
"""

import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from fedstrata.client.folder_copy import Changes, Listing, apply, changes, listing
from fedstrata.client.releases import Release, ReleaseRecord
from fedstrata.client.store import client_folder
from fedstrata.core.errors import BudgetSpentError
from fedstrata.core.handlers import only_says
from fedstrata.core.site_database import SITE_DATABASE
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.ray_cluster import join, leave
from fedstrata.engine.simulated_identities import files_of
from fedstrata.engine.workers.jobs import Job, TurnJob
from fedstrata.engine.workers.process import Computed, EngineOf, Event
from fedstrata.engine.workers.ray_actor import RayActor, RayPreparation, let_frames_travel, versions
from fedstrata.wire.frame import Frame

_SECONDS_TO_END = 10
"""How long an actor that is at nothing may take to remove what it has kept."""


@dataclass(frozen=True)
class StoredFrame:
    """A frame in Ray's store; implements `process.Shared`.

    Attributes:
        reference: To the frame.
    """

    reference: Any

    def frame(self) -> Frame:
        """Returns it."""
        return cast("Frame", ray.get(self.reference))


@dataclass
class RayWorker:
    """One actor; implements `jobs.Worker`.

    Attributes:
        actor: The actor.
        started: Is done once it is prepared.
        folder: The run directory.
        charge: Takes down as spent what a lost turn may have spent of a client's privacy.
    """

    actor: Any
    started: Future[None]
    folder: Path
    charge: Callable[[Job], None]
    _known: dict[str, Listing] = field(default_factory=dict)  # what of clients' folders it has
    _under_way: Future[Any] | None = None

    def submit(self, job: Job) -> Future[Any]:
        """Gives it something to compute; see `jobs.Worker`."""
        sent = Changes({})
        if job.client is not None:
            folder = client_folder(self.folder, job.client)
            sent = changes(folder, self._known.get(job.client, {}))
        self._under_way = self.actor.compute.remote(job.compute, job.arguments, job.client, sent).future()
        return self._under_way

    def take(self, job: Job, future: Future[Any]) -> Computed:
        """Returns what came of a job, and has the client's folder as the job has left it."""
        self._under_way = None
        if job.client is not None:
            self._known.pop(job.client, None)  # until it is: of a job that fails the actor keeps nothing
        try:
            done, made = _came_of(future)
        except BudgetSpentError:
            raise  # before anything was begun
        except Exception:
            self.charge(job)
            raise
        if job.client is not None:
            folder = client_folder(self.folder, job.client)
            apply(made, folder, time.time_ns(), durable=True)
            self._known[job.client] = listing(folder)
        return cast("Computed", done)

    def events(self) -> Iterable[Event]:
        """Nothing: progress within a turn stays on its machine."""
        return ()

    def kill(self) -> None:
        """Ends it; one that is at something, at once."""
        if self.started.done() and self._under_way is None:
            ray.wait([self.actor.end.remote()], timeout=_SECONDS_TO_END)
        ray.kill(self.actor)


@dataclass
class RayWorkers:
    """Where they come from; implements `jobs.WorkerSource`.

    Attributes:
        experiment: What is run.
        folder: The run directory.
        engine_of: Returns what computes in each of them.
        documents: Returns the hash of all documents.
        clients: All clients that train.
    """

    experiment: Experiment
    folder: Path
    engine_of: EngineOf
    documents: Callable[[], str]
    clients: Iterable[str]
    _preparation: Any = None

    def start(self) -> RayWorker:
        """Starts an actor, which begins once the cluster has room for it."""
        if self._preparation is None:
            join()
            let_frames_travel()
            self._preparation = ray.put(self._prepared())
        gpus = int(self.experiment.model.device.type == "cuda")
        kind = ray.remote(num_cpus=torch.get_num_threads(), num_gpus=gpus, max_restarts=0, max_task_retries=0)
        actor = kind(RayActor).remote()
        started: Future[None] = Future()
        prepared = actor.prepare.remote(self._preparation).future()
        prepared.add_done_callback(lambda future: _tell(future, started))
        return RayWorker(actor, started, self.folder, self._charge)

    def share(self, frame: Frame) -> StoredFrame:
        """Puts a frame into Ray's store; see `jobs.WorkerSource`."""
        join()
        let_frames_travel()
        return StoredFrame(ray.put(frame))

    def close(self) -> None:
        """Leaves the cluster."""
        self._preparation = None
        leave()

    def _prepared(self) -> RayPreparation:
        """Returns what tells an actor all of the run but its documents and the weights of its model."""
        settings = self.experiment.settings
        device = self.experiment.model.device.type  # the GPUs of an actor are its own alone
        alone = settings.model_copy(update={"workers": 1, "device": device, "report_to": []})
        return RayPreparation(
            self.engine_of,
            alone.model_dump(mode="json"),
            self._tokenizer(),
            self._identities(),
            self.documents(),
            versions(),
            str(Path.cwd()),
        )

    def _tokenizer(self) -> Changes:
        if not self.experiment.settings.model.makes_tokenizer:
            return Changes({})
        with tempfile.TemporaryDirectory() as folder:
            self.experiment.model.tokenizer.save_pretrained(folder)
            return changes(Path(folder), {})

    def _identities(self) -> dict[str, Changes]:
        if not self.experiment.privacy.settings.secure_aggregation:
            return {}
        found = {}
        for client in self.clients:
            own = changes(client_folder(self.folder, client), {})
            names = {path.name for path in files_of(self.folder, client)}
            found[client] = Changes({name: data for name, data in own.written.items() if name in names})
        return found

    def _charge(self, job: Job) -> None:
        """Takes down that a lost turn has spent what a whole one does, wherever it was when it was lost."""
        private = self.experiment.privacy.settings.by_unit
        if not private or not isinstance(job, TurnJob) or only_says(job.order.handler):
            return
        order = job.order
        turn = (order.round, order.handler, order.call)
        privacy, folder = self.experiment.privacy, client_folder(self.folder, order.client)
        noise = privacy.noise_of(order.client)
        record = ReleaseRecord(folder / SITE_DATABASE, order.client)
        Release(record, folder, turn, order.plan, privacy.turns, noise=noise).charge()


def _came_of(future: Future[Any]) -> Any:
    """Returns what an actor gives.

    Raises:
        BrokenExecutor: It is lost.
        Exception: What it has raised.
    """
    try:
        return future.result()
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise BrokenExecutor(type(error).__name__) from None


def _tell(future: Future[Any], started: Future[None]) -> None:
    try:
        _came_of(future)
    except BaseException as error:
        started.set_exception(error)
    else:
        started.set_result(None)
