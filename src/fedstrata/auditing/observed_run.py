"""A run that is watched: somebody sees every plan and every update, and then the final model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.errors import ClientsLostError, Problem
from fedstrata.core.types import Plan, State, Tensors, Update
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.run import Run
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
