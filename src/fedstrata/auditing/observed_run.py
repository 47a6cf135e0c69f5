"""A run that is watched: somebody sees every plan and every update, and then the final model."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from torch import Tensor

from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.errors import ClientsLostError, ConfigurationError, Problem
from fedstrata.core.settings.source import Source
from fedstrata.core.types import Plan, State, Tensors, Update
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.run import Run
from fedstrata.engine.sites import sites_of
from fedstrata.privacy.attacks.changes import change_of, load_plan
from fedstrata.record.log import Listener
from fedstrata.train.local import rate_factor
from fedstrata.wire import frame

Watch: TypeAlias = Callable[[str, Plan, Tensors], None]
"""Told of each update: whose it is, the plan that it answers, and what it holds."""


class WatchedEngine(LocalEngine):
    """Computes as ever, and shows somebody what leaves.

    Args:
        experiment, folder, listen: As for `LocalEngine`.
        watch: Told of each update.
    """

    def __init__(self, experiment: Experiment, folder: Path, listen: Listener, watch: Watch) -> None:
        super().__init__(experiment, folder, listen)
        self._watch = watch

    def compute(self, order: Order) -> Done | Failed:
        """Computes one turn."""
        done = super().compute(order)
        if not isinstance(done, Done):
            return done
        update = frame.decode(done.update, Update)
        # Whoever watches uses the model, of which an update may be a view.
        own = {name: tensor.clone() for name, tensor in update.tensors.items()}
        self._watch(order.client, frame.decode(order.plan, Plan), own)
        return replace(done, update=frame.encode(Update(own, update.values, update.weight)))


class WatchedRun(Run[WatchedEngine]):
    """A run of which nothing is scored or saved, and of which somebody sees what leaves.

    Args:
        experiment: The experiment.
        folder: A scratch folder.
        listen: Told of every event.
        watch: Told of each update.

    Attributes:
        last: What is shared once the run is over.
    """

    def __init__(self, experiment: Experiment, folder: Path, listen: Listener, watch: Watch) -> None:
        federation = experiment.settings.federation.model_copy(update={"score_clients": False})
        settings = experiment.settings.model_copy(update={"federation": federation})
        unscored = replace(experiment, settings=settings)
        super().__init__(unscored, folder, listen, partial(WatchedEngine, watch=watch))
        self.last = State()

    def _finish(self, state: State) -> dict[str, Any]:
        self.last = state
        self.engine.end()
        return {}

    def _score(self, number: int, state: State, part: str, *, final: bool) -> dict[str, Any]:
        return {}

    def _report(self) -> None:
        """Writes none."""

    def _tell_privacy(self) -> None:
        """Tells nobody: nothing of the run is kept."""


SUM = "all clients, summed"
"""What a server sees of a round with secure aggregation."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a server sees of one client, or of all of them together.

    Attributes:
        name: The client's, or `SUM`.
        plan: What came with the plan.
        tensors: The update, or the mean of all.
        examples: What was trained on, as the task encodes it: what the server does not know.
        clients: Of how many clients it is.
    """

    name: str
    plan: Tensors
    tensors: Tensors
    examples: Sequence[Any]
    clients: int = 1


@dataclass(frozen=True, slots=True)
class ObservedRound:
    """The first round of a run, as an honest but curious server sees it.

    Attributes:
        experiment: The experiment.
        seen: What was sent by each client, and their sum where there are several; with secure aggregation
            the sum alone.
    """

    experiment: Experiment
    seen: Sequence[Seen]

    @property
    def made_up(self) -> bool:
        """Whether its texts are synthetic, so that everybody may see them."""
        return self.experiment.settings.data.format == "synthetic"

    @property
    def rate_is_known(self) -> bool:
        """Whether the size of a change says how large gradients were: with SGD that clips nothing."""
        training = self.experiment.settings.training
        return training.optimizer == "sgd" and training.clip_norm is None

    def rate(self, seen: Seen) -> float | None:
        """Returns what gradients were multiplied by until they became a change; none with Adam.

        The server knows the settings, and how many examples clients count. Clipped gradients make it less.
        """
        training = self.experiment.settings.training
        if training.optimizer != "sgd":
            return None
        batches = ceil(len(seen.examples) / seen.clients / training.batch_size / training.accumulation)
        steps, gathered, total = training.epochs * batches, 0.0, 0.0
        for step in range(steps):  # what the gradients of all steps so far move the weights by in this one
            gathered = training.momentum * gathered + 1.0
            total += gathered * rate_factor(training, step, steps)
        return training.learning_rate * total

    def changes(self) -> Iterator[tuple[Seen, Mapping[str, Tensor]]]:
        """Yields what the server sees with what it is a change by, while the model holds what came before."""
        model = self.experiment.model
        for own in self.seen:
            model.restore()
            load_plan(model, own.plan)
            model.module.train(False)
            changes = own.name != SUM and self.experiment.method.sends_changes
            yield own, change_of(model, own.tensors, changes=changes)
        model.restore()


def observe_round(source: Source, listen: Listener) -> ObservedRound:
    """Makes the first round of a run in a scratch folder, and keeps what leaves its clients.

    Args:
        source: The run's configuration.
        listen: Told of the run's events.

    Raises:
        ConfigurationError: The configuration is wrong, or its updates cannot be attacked.
        FedstrataError: The run failed.
    """
    experiment = prepare(source)
    if problems := [*unseen(experiment), *unread(experiment)]:
        raise ConfigurationError(source.located(problems))
    one_round = experiment.settings.federation.model_copy(update={"rounds": 1})
    settings = experiment.settings.model_copy(update={"federation": one_round})
    experiment = replace(experiment, settings=settings, workers=1)
    examples = {site.id: site.encode() for site in sites_of(experiment)[1]}
    found: dict[str, Seen] = {}

    def watch(client: str, plan: Plan, update: Tensors) -> None:
        known = {name: tensor.clone() for name, tensor in plan.tensors.items()}
        found.setdefault(client, Seen(client, known, update, examples[client]))

    with scratch_folder() as folder:
        run = WatchedRun(experiment, folder, listen, watch)
        run_to_its_end(run)
    hidden, seen = experiment.settings.privacy.secure_aggregation, list(found.values())
    together = []
    if hidden or (len(seen) > 1 and not experiment.method.not_summed()):
        everything = [example for own in seen for example in own.examples]
        together.append(Seen(SUM, seen[0].plan, run.last.tensors, everything, len(seen)))
    return ObservedRound(experiment, [*(() if hidden else seen), *together])


def unseen(experiment: Experiment) -> list[Problem]:
    """Returns why a run has no updates that could be looked at."""
    method, layout = experiment.method, experiment.model.layout
    if not experiment.settings.federation.rounds:
        return [
            Problem(
                "federation.rounds",
                "must be 1 or more for an attack on what leaves clients",
                code="out_of_range",
            )
        ]
    if any(method.divides(name) is not None for name in experiment.clients):
        message = f"{method.name} divides the model: hidden states leave its clients, and no update that"
        return [
            Problem(
                "method.name",
                f"{message} span, invert or membership reads; use: fedstrata attack hidden",
                code="divides_model",
            )
        ]
    if not method.pooled and set(method.trainable(layout)) <= set(method.private(layout)):
        message = f"with {method.name} nothing of the model leaves a client for span, invert or membership"
        return [Problem("method.name", message, code="nothing_sent")]
    return []


def unread(experiment: Experiment) -> Iterator[Problem]:
    """Yields that nothing has to be read out of updates where the documents themselves travel."""
    if experiment.method.pooled:
        message = f"with {experiment.method.name} the documents themselves travel, and no update for span or "
        yield Problem("method.name", f"{message}invert", code="documents_sent")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Gives a folder for a run of which nothing is kept, as texts can be read of what it caches.

    A process that is told to end takes it away before it does.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    mine = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if mine else None
    try:
        with TemporaryDirectory(prefix="fedstrata-attack-") as folder:
            yield Path(folder)
    finally:
        if mine:
            signal.signal(signal.SIGTERM, before)


def run_to_its_end(run: WatchedRun) -> None:
    """Executes a watched run.

    Raises:
        FedstrataError: It failed.
    """
    try:
        run.execute()
    except ClientsLostError as error:  # there is no run to go on with: the client's own error says more
        raise error.__cause__ or error from None
