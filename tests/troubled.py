"""Methods whose clients are in trouble, for engines that compute them in processes of their own.

A process imports them by name, so they are not in a test.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Literal

import torch

from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.types import Message, Plan, State, Update
from fedstrata.methods.averaging import Averaging
from fedstrata.methods.fedavg import FedAvg


class Troubled(FedAvg):
    """FedAvg, one client of which fails, or its process or machine ends, in its first turn or in all."""

    name: Literal["troubled"] = "troubled"  # type: ignore[assignment]
    client: str
    trouble: Literal["fails", "is killed", "is always killed", "loses its machine", "breaks", "has no room"]
    marks: str

    def not_private(self, mechanism: str) -> str:
        """Clients send what the private loop has trained, and nothing else."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """The server needs the mean of what they send, and nothing else."""
        return super().not_summed()

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains, and then may not live to say so."""
        update = super().train(plan, client, rng)
        client.store.write(Message({"kept": torch.ones(1)}))
        if client.id == self.client:
            self._end(Path(self.marks, client.id))
        return update

    def _end(self, mark: Path) -> None:
        if self.trouble == "breaks":
            raise KeyError("a mistake in the program")
        if self.trouble == "has no room":  # the limit of a file's size is that of shared memory too
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, resource.RLIM_INFINITY))
            return
        if self.trouble == "fails":
            raise TrainingError("diverged")
        if self.trouble == "is always killed" or not mark.exists():
            mark.touch()
            if self.trouble == "loses its machine":  # what has started the worker, which ends with it
                os.kill(os.getppid(), signal.SIGKILL)
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)


class TwoHandlers(Averaging):
    """Clients keep something when they train, and more when they are asked again, where one fails."""

    name: Literal["two_handlers"] = "two_handlers"
    fails_in: int = 2

    def not_private(self, mechanism: str) -> str:
        """Clients send what the private loop has trained, and nothing else."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """The server needs the mean of what they send, and nothing else."""
        return super().not_summed()

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Trains, and asks again."""
        state = super().round(state, cohort, rng)
        for _ in cohort.each("again", lambda info: Plan({}, {"round": 0})):
            pass
        return state

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains, and counts its turns."""
        turns = client.store.read().values.get("turns", 0)
        assert isinstance(turns, int)
        client.store.write(Message({}, {"turns": turns + 1}))
        return super().train(plan, client, rng)

    def again(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Fails in a round of the second client's."""
        turns = client.store.read().values["turns"]
        if client.id == "site-2" and turns == self.fails_in:
            raise TrainingError("diverged")
        return Update({}, {}, weight=float(len(client.examples)))
