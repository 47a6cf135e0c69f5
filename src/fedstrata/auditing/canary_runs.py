"""Runs with canaries in them: the one that is judged, and shadow runs that an attacker could make."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.auditing.observed_run import Watch, WatchedRun, run_to_its_end, scratch_folder
from fedstrata.core.errors import FedstrataError
from fedstrata.core.seeding import Seed
from fedstrata.core.types import Plan, State, Tensors
from fedstrata.engine.prepare import Experiment
from fedstrata.privacy.accounting import sigma_for
from fedstrata.privacy.attacks.canaries import Canaries
from fedstrata.privacy.attacks.changes import load_plan
from fedstrata.privacy.attacks.membership import UpdateScores, losses, ridge_of
from fedstrata.privacy.mechanism import Privacy
from fedstrata.record.log import Listener


@dataclass(frozen=True, slots=True)
class Spent:
    """What a client has spent of its units' privacy.

    Attributes:
        epsilon: At the delta of the run; of seeded noise that of the same noise, were it secure.
        turns: In how many turns.
    """

    epsilon: float
    turns: int


class CanaryRun(WatchedRun):
    """A watched run with canaries, of which the final model is asked for their losses.

    Args:
        experiment: The experiment; canaries that are trained on are in it.
        folder: A scratch folder.
        listen: Told of every event.
        watch: Told of each update.
        canaries: All canaries.

    Attributes:
        units: The examples of each canary.
        first: The loss of each canary with the first model, (canaries,).
        final: The same with the last model, once the run is over.
    """

    def __init__(
        self, experiment: Experiment, folder: Path, listen: Listener, watch: Watch, canaries: Canaries
    ) -> None:
        super().__init__(experiment, folder, listen, watch)
        task, tokenizer = experiment.task, experiment.model.tokenizer
        self.units = [task.training_examples([document], tokenizer) for document in canaries.documents]
        self.first = self.final = self._losses()

    def _losses(self) -> NDArray[np.float64]:
        return losses(self.experiment.model, self.experiment.task, self.units)

    def _finish(self, state: State) -> dict[str, Any]:
        """Takes the losses of the final model."""
        self.engine.enter(None, self.committed, state.tensors)
        self.final = self._losses()
        self.experiment.model.restore()
        return super()._finish(state)


class AttackedRun(CanaryRun):
    """A run with canaries of which updates are judged too, and that something may be claimed of.

    Args:
        experiment, folder, listen, canaries: As for `CanaryRun`.
        claimed: The mechanism that whoever judges updates takes for the run's.

    Attributes:
        scorers: What updates tell, by the client that sends them; of clients that hold canaries.
        spent: What these clients have spent, once the run is over; nothing without noise.
    """

    def __init__(
        self, experiment: Experiment, folder: Path, listen: Listener, canaries: Canaries, claimed: Privacy
    ) -> None:
        super().__init__(experiment, folder, listen, self._see, canaries)
        everybody = list(range(len(self.units)))
        self._claimed = claimed
        self._numbers = {
            name: everybody if experiment.method.pooled else canaries.of(name)
            for name in self.engine.clients()
        }
        self.scorers = {
            name: self._scorer(name, numbers) for name, numbers in self._numbers.items() if numbers
        }
        self.spent: dict[str, Spent] = {}

    def _scorer(self, client: str, numbers: Sequence[int]) -> UpdateScores:
        experiment, privacy = self.experiment, self._claimed
        clip, ridge = inf, 0.0
        if privacy.rates is not None:
            clip = privacy.settings.clip
            ridge = ridge_of(privacy.sigma * clip, privacy.steps, privacy.rates[client])
        seed = experiment.seed.child("membership", "coordinates", client)
        units = [self.units[number] for number in numbers]
        sends = experiment.method.sends_changes
        return UpdateScores(experiment.model, experiment.task, units, clip, ridge, seed, sends)

    def _see(self, client: str, plan: Plan, update: Tensors) -> None:
        if client not in self.scorers:
            return
        model = self.experiment.model
        model.restore()
        load_plan(model, plan.tensors)
        self.scorers[client].see(update)
        model.train_only(())
        model.restore()

    def by_updates(self) -> NDArray[np.float64]:
        """Returns what updates have told of each canary."""
        scores = np.zeros(len(self.units))
        for client, scorer in self.scorers.items():
            scores[self._numbers[client]] = scorer.scores
        return scores

    @property
    def epsilon(self) -> float | None:
        """What is claimed of the client of them that has spent most; none without noise."""
        return max((own.epsilon for own in self.spent.values()), default=None)

    def sigma_at(self, times: float) -> float:
        """Returns the noise with which the client that has spent most would have spent so many times as much.

        Args:
            times: How many times.
        """
        client, own = max(self.spent.items(), key=lambda each: each[1].epsilon)
        privacy = self._claimed
        assert privacy.rates is not None and privacy.settings.delta is not None  # noqa: S101 - there is noise
        steps = privacy.steps * own.turns
        return sigma_for(times * own.epsilon, privacy.settings.delta, privacy.rates[client], steps)

    def _claims(self) -> dict[str, Spent]:
        if not self.experiment.privacy.settings.spends:
            return {}
        turns, epsilon = self._turns(), self.experiment.privacy.nominal_epsilon
        return {
            client: Spent(epsilon(client, turns[client]) or 0.0, turns[client]) for client in self.scorers
        }

    def _finish(self, state: State) -> dict[str, Any]:
        """Takes what is spent, too."""
        self.spent = self._claims()
        return super()._finish(state)


def attacked_run(
    experiment: Experiment, canaries: Canaries, listen: Listener, claimed: Privacy
) -> AttackedRun:
    """Makes the run; nothing of it is left but what was seen.

    Args:
        experiment: The experiment; canaries that are trained on are in it.
        canaries: All canaries.
        listen: Told of every event.
        claimed: The mechanism that whoever judges updates takes for the run's.

    Raises:
        FedstrataError: It failed, or nothing of the model has left a client that holds canaries.
    """
    with scratch_folder() as folder:
        run = AttackedRun(experiment, folder, listen, canaries, claimed)
        run_to_its_end(run)
        unseen = [name for name, own in run.scorers.items() if not own.seen]
        if unseen:
            message = (
                f"no parameter of the model has left {unseen[0]}, which holds canaries: nothing to judge"
            )
            raise FedstrataError(
                f"{message} ({experiment.method.name}, {run.committed} rounds)", code="nothing_sent"
            )
    return run


def shadow_losses(experiment: Experiment, canaries: Canaries, seed: Seed) -> NDArray[np.float64]:
    """Makes a run that an attacker could make, and returns the loss of each canary with its last model.

    All that a server knows is as in the experiment: the first model, who takes part when, and who drops out.
    What clients draw, and only they see, is drawn anew: the order of examples, dropout and noise.

    Args:
        experiment: The experiment; canaries that are trained on are in it.
        canaries: All canaries.
        seed: Of what clients draw.

    Returns:
        Mean losses, (canaries,).

    Raises:
        FedstrataError: It failed.
    """
    with scratch_folder() as folder:
        run = CanaryRun(experiment, folder, lambda *_: None, lambda *_: None, canaries)
        run.engine.workplace.seed = seed
        run_to_its_end(run)
    return run.final
