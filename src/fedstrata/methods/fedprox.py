"""FedProx: FedAvg whose clients are held near the global model by a proximal term.

Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", equation 2.
Travels: the whole model, both ways.
Server half: FedAvg's.
Client half: FedAvg's with (mu/2) ||w - w_global||^2 added to the loss (`proximal: coupled`), or with mu times
    the learning rate of the way back taken in each step (`decoupled`, as AdamW's weight decay; ours).
Reduces to: FedAvg at mu = 0. Decoupled is coupled with SGD that has no momentum and clips nothing.
Deviations: none from the method; partial work of slow devices is not modelled.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from fedstrata.core.client import Client
from fedstrata.core.errors import SettingError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import NotNegative
from fedstrata.core.types import Plan, Update
from fedstrata.methods.averaging import HOW_IT_ACTS, Averaging, Coupling, without_a_term


class FedProx(Averaging):
    """The method; see the module's docstring."""

    name: Literal["fedprox"] = "fedprox"
    mu: NotNegative = Field(default=0.1, description="Weight of the proximal term.")

    proximal: Coupling = Field(default="coupled", description=HOW_IT_ACTS)

    def _misfits(self) -> Iterator[SettingError]:
        yield from without_a_term(self.mu, self.proximal)

    def not_private(self, mechanism: str) -> str:
        """The proximal term is made of weights alone."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """What clients send is averaged as FedAvg's."""
        return super().not_summed()

    def not_joint(self) -> str:
        """One step from the plan has nothing to be pulled back from."""
        return "method.mu has no effect on one step from what was sent; use fedavg"

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains what trains, pulled towards the plan."""
        return self.trained(plan, client, rng, proximal=self.mu, decoupled=self.proximal == "decoupled")
