"""FedProx: FedAvg whose clients are held near the global model by a proximal term.

Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", equation 2.
Travels: the whole model, both ways.
Server half: FedAvg's.
Client half: FedAvg's with (mu/2) ||w - w_global||^2 added to the loss.
Reduces to: FedAvg at mu = 0.
Deviations: none from the method; partial work of slow devices is not modelled.
"""

from typing import Literal

from pydantic import Field

from fedstrata.core.client import Client
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import NotNegative
from fedstrata.core.types import Plan, Update
from fedstrata.methods.averaging import Averaging


class FedProx(Averaging):
    """The method; see the module's docstring."""

    name: Literal["fedprox"] = "fedprox"
    mu: NotNegative = Field(default=0.1, description="Weight of the proximal term.")

    def not_joint(self) -> str:
        """One step from the plan has nothing to be pulled back from."""
        return "method.mu has no effect on one step from what was sent; use fedavg"

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains what trains, pulled towards the plan."""
        return self.trained(plan, client, rng, proximal=self.mu)
