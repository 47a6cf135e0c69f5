"""A run that is watched: somebody sees every plan and every update, and then the final model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.errors import ClientsLostError, FedstrataError, Problem
from fedstrata.core.types import Plan, State, Tensors, Update
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.run import Run
from fedstrata.privacy.attacks.canaries import Canaries
from fedstrata.privacy.attacks.membership import UpdateScores, losses, ridge_of
from fedstrata.record.log import Listener
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
        super().__init__(experiment, folder, listen, partial(WatchedEngine, watch=watch))
        self.last = State()

    def _finish(self, state: State) -> dict[str, Any]:
        self.last = state
        self.engine.end()
        return {}

    def _score(self, number: int, state: State, part: str, *, final: bool) -> dict[str, Any]:
        return {}

    def _scored_when_trained(self, number: int) -> Sequence[str]:
        return ()

    def _report(self) -> None:
        """Writes none."""

    def _tell_privacy(self) -> None:
        """Tells nobody: nothing of the run is kept."""


class CanaryRun(WatchedRun):
    """A watched run with canaries.

    Args:
        experiment: The experiment; canaries that are trained on are in it.
        folder: A scratch folder.
        listen: Told of every event.
        canaries: All canaries.

    Attributes:
        scorers: What updates tell, by the client that sends them; of clients that hold canaries.
        by_losses: How far the loss of each canary has fallen, once the run is over.
        epsilon: What is claimed of the client of them that has spent most, once the run is over; none without
            noise.
    """

    def __init__(self, experiment: Experiment, folder: Path, listen: Listener, canaries: Canaries) -> None:
        super().__init__(experiment, folder, listen, self._see)
        self._canaries = canaries
        task, tokenizer = experiment.task, experiment.model.tokenizer
        self._units = [task.training_examples([document], tokenizer) for document in canaries.documents]
        everybody = list(range(len(self._units)))
        self._numbers = {
            name: everybody if experiment.method.pooled else canaries.of(name)
            for name in self.engine.clients()
        }
        self.scorers = {
            name: self._scorer(name, numbers) for name, numbers in self._numbers.items() if numbers
        }
        self.by_losses = self._losses()
        self.epsilon: float | None = None

    def _scorer(self, client: str, numbers: Sequence[int]) -> UpdateScores:
        experiment, privacy = self.experiment, self.experiment.privacy
        clip, ridge = inf, 0.0
        if privacy.rates is not None:
            clip = privacy.settings.clip
            ridge = ridge_of(privacy.sigma * clip, privacy.steps, privacy.rates[client])
        seed = experiment.seed.child("membership", "coordinates", client)
        units = [self._units[number] for number in numbers]
        return UpdateScores(experiment.model, experiment.task, units, clip, ridge, seed)

    def _see(self, client: str, plan: Plan, update: Tensors) -> None:
        if client not in self.scorers:
            return
        model = self.experiment.model
        model.restore()
        model.load_known(plan.tensors)
        self.scorers[client].see(update)
        model.train_only(())
        model.restore()

    def by_updates(self) -> NDArray[np.float64]:
        """Returns what updates have told of each canary."""
        scores = np.zeros(len(self._units))
        for client, scorer in self.scorers.items():
            scores[self._numbers[client]] = scorer.scores
        return scores

    def _claimed(self) -> float | None:
        if not self.experiment.privacy.settings.spends:
            return None
        spent = self._spent(self.committed)
        return max(spent[client]["epsilon"] or 0.0 for client in self.scorers)

    def _losses(self) -> NDArray[np.float64]:
        return losses(self.experiment.model, self.experiment.task, self._units)

    def _finish(self, state: State) -> dict[str, Any]:
        """Takes the losses of the final model, and what is spent."""
        self.epsilon = self._claimed()
        self.engine.enter(None, self.committed, state.tensors)
        self.by_losses = self.by_losses - self._losses()
        self.experiment.model.restore()
        return super()._finish(state)


def canary_run(experiment: Experiment, canaries: Canaries, listen: Listener) -> CanaryRun:
    """Makes the run; nothing of it is left but what was seen.

    Raises:
        FedstrataError: It failed, or nothing of the model has left a client that holds canaries.
    """
    with TemporaryDirectory(prefix="fedstrata-attack-") as folder:
        run = CanaryRun(experiment, Path(folder), listen, canaries)
        run_to_its_end(run)
        unseen = [name for name, own in run.scorers.items() if not own.seen]
        if unseen:
            message = (
                f"no parameter of the model has left {unseen[0]}, which holds canaries: nothing to judge"
            )
            raise FedstrataError(f"{message} ({experiment.method.name}, {run.committed} rounds)")
    return run


def divided(experiment: Experiment) -> list[Problem]:
    """Returns why updates of a run are not looked at: a model that is divided sends other things."""
    method = experiment.method
    if all(method.divides(name) is None for name in experiment.clients):
        return []
    message = f"{method.name} divides the model, and hidden states leave its clients; use: fedstrata "
    return [Problem("method.name", f"{message}attack hidden")]


def run_to_its_end(run: WatchedRun) -> None:
    """Executes a watched run.

    Raises:
        FedstrataError: It failed.
    """
    try:
        run.execute()
    except ClientsLostError as error:  # there is no run to go on with: the client's own error says more
        raise error.__cause__ or error from None
