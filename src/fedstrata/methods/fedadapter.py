"""FedAdapter: FedAvg over bottleneck adapters; the model itself is frozen and stays where it is.

Source: Zhang et al. 2023, "FedPETuning", section 3; the "FedAdapter" rows of DropPEFT; the adapters are those
    of Houlsby et al. 2019, figure 2.
Travels: the two matrices and biases of every adapter, two adapters a block, and the task head, both ways.
Server half: weighted mean; n_k counts training examples (for NER: windows). `aggregation` names another rule.
Client half: local training of the adapters and the head.
Reduces to: plain adapter tuning when there is one client.
Deviations: Houlsby's adapters stand behind the dropout of a sublayer and also train its norm; here they stand
    before the dropout and the norm is frozen, as in the federated literature (OpenDelta).
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


class FedAdapterSettings(AveragingSettings):
    """Settings of FedAdapter; the adapter has its own, `adapter`."""

    name: Literal["fedadapter"] = "fedadapter"


class FedAdapter:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "fedadapter"
    travels: ClassVar[str] = "the bottleneck adapters and the head, both ways"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ("bottleneck",)
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = FedAdapterSettings

    def __init__(self, settings: FedAdapterSettings) -> None:
        self.settings = settings

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """The adapter and the head."""
        return layout.all

    def start(self, model: Model) -> State:
        """The adapter, which changes nothing yet, and the head."""
        return State(model.snapshot(self.trainable(model.layout)))

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """One weighted mean, or what `aggregation` says."""
        return average(state, cohort, self.settings.aggregation)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains the adapter and the head."""
        return train_and_send(plan, client, rng, trainable=self.trainable(client.model.layout))
