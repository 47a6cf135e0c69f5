"""Centralised training: all data in one place; what federation is measured against.

Source: the "Centralized" row of Layer-Skipping FL, Table II.
Travels: every note, once; no model.
Server half: none.
Client half: one client holds the pooled training data and trains the whole model.
Reduces to: FedAvg with one client.
Deviations: a "round" is `training.epochs` epochs over the pooled data, so that a run sees as many examples as
    the federated one of the same configuration with every client taking part; like every client's, its
    optimiser starts anew each round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fedstrata.aggregate.mean import average
from fedstrata.core.settings.run import MethodSettings
from fedstrata.core.types import Plan, State, Update
from fedstrata.train.local import train_and_send

if TYPE_CHECKING:
    from fedstrata.core.client import Client
    from fedstrata.core.cohort import Cohort
    from fedstrata.core.model import Layout, Model
    from fedstrata.core.seeding import Seed


class CentralizedSettings(MethodSettings):
    """Centralised training has no settings of its own."""

    name: Literal["centralized"] = "centralized"


class Centralized:
    """FedAvg with a single client that holds everything."""

    name: ClassVar[str] = "centralized"
    travels: ClassVar[str] = "every note, to one place; no model"
    pooled: ClassVar[bool] = True
    adapters: ClassVar[tuple[str, ...]] = ()
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = CentralizedSettings

    def __init__(self, settings: CentralizedSettings) -> None:
        self.settings = settings

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """Every parameter."""
        return layout.all

    def start(self, model: Model) -> State:
        """The whole model."""
        return State(model.snapshot(self.trainable(model.layout)))

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """The mean of one model is that model."""
        return average(state, cohort)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains every parameter on the pooled data."""
        return train_and_send(plan, client, rng, trainable=self.trainable(client.model.layout))
