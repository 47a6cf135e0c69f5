"""FedProx: FedAvg whose clients are held near the global model by a proximal term.

Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", equation 2.
Travels: the whole model, both ways.
Server half: FedAvg's.
Client half: FedAvg's with (mu/2) ||w - w_global||^2 added to the loss.
Reduces to: FedAvg at mu = 0.
Deviations: none from the method; partial work of slow devices is not modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fedstrata.aggregate.mean import average
from fedstrata.aggregate.rules import AveragingSettings
from fedstrata.core.settings.base import NotNegative
from fedstrata.core.types import Plan, State, Update
from fedstrata.train.local import train_and_send

if TYPE_CHECKING:
    from fedstrata.core.client import Client
    from fedstrata.core.cohort import Cohort
    from fedstrata.core.model import Layout, Model
    from fedstrata.core.seeding import Seed
    from fedstrata.core.settings.run import MethodSettings


class FedProxSettings(AveragingSettings):
    """Settings of FedProx."""

    name: Literal["fedprox"] = "fedprox"
    mu: NotNegative = 0.1


class FedProx:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "fedprox"
    travels: ClassVar[str] = "the whole model, both ways"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ()
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = FedProxSettings

    def __init__(self, settings: FedProxSettings) -> None:
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
        """Trains every parameter, pulled towards the plan."""
        return train_and_send(
            plan, client, rng, trainable=self.trainable(client.model.layout), proximal=self.settings.mu
        )
