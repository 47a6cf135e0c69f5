"""FedAvg: every client trains the whole model, the server takes the weighted mean.

Source: McMahan et al. 2017, Algorithm 1; the baseline of every paper here.
Travels: the whole model, both ways.
Server half: weighted mean; n_k counts training examples (for NER: windows). `aggregation` names another rule.
Client half: local training of every parameter.
Reduces to: plain training when there is one client.
Deviations: the local optimiser is a setting (AdamW by default) rather than SGD; its state starts anew each
round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fedstrata.aggregate.mean import average
from fedstrata.aggregate.rules import AveragingSettings
from fedstrata.core.types import Plan, State, Update
from fedstrata.train.local import train_and_send

if TYPE_CHECKING:
    from fedstrata.core.client import Client
    from fedstrata.core.cohort import Cohort
    from fedstrata.core.model import Layout, Model
    from fedstrata.core.seeding import Seed
    from fedstrata.core.settings.run import MethodSettings


class FedAvgSettings(AveragingSettings):
    """Settings of FedAvg."""

    name: Literal["fedavg"] = "fedavg"


class FedAvg:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "fedavg"
    travels: ClassVar[str] = "the whole model, both ways"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ()
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = FedAvgSettings

    def __init__(self, settings: FedAvgSettings) -> None:
        self.settings = settings

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """Every parameter."""
        return layout.all

    def start(self, model: Model) -> State:
        """The whole model."""
        return State(model.snapshot(self.trainable(model.layout)))

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """One weighted mean, or what `aggregation` says."""
        return average(state, cohort, self.settings.aggregation)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains every parameter."""
        return train_and_send(plan, client, rng, trainable=self.trainable(client.model.layout))
