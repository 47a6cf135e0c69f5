"""FedSA-LoRA: of each low-rank adapter the first factor is shared, the second stays with its client.

Source: Guo et al. 2025, "Selective Aggregation for Low-Rank Adaptation in Federated Learning", section 3; a
    baseline of Fed-MedLoRA, Table 4.
Travels: A of every adapted layer, both ways: about half of what FedLoRA sends.
Server half: the weighted mean of A; n_k counts training examples (for NER: windows). `aggregation` names
    another rule.
Client half: local training of A, B and the head; B and the head persist in the client's store. Each client
    has a model of its own and is scored with it; global scores are the means over these models.
Reduces to: plain LoRA when there is one client.
Deviations: none; as everywhere here the mean is weighted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fedstrata.adapters.rank import is_first_factor
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


class FedSALoRASettings(AveragingSettings):
    """Settings of FedSA-LoRA; the adapter has its own, `adapter`."""

    name: Literal["fedsa_lora"] = "fedsa_lora"


class FedSALoRA:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "fedsa_lora"
    travels: ClassVar[str] = "A of the low-rank adapters, both ways; B and the head stay"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = True
    Settings: ClassVar[type[MethodSettings]] = FedSALoRASettings

    def __init__(self, settings: FedSALoRASettings) -> None:
        self.settings = settings

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """The adapter and the head."""
        return layout.all

    def start(self, model: Model) -> State:
        """A, which is random."""
        return State(model.snapshot([name for name in model.layout.all if is_first_factor(name)]))

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """One weighted mean, or what `aggregation` says."""
        return average(state, cohort, self.settings.aggregation)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains both factors and the head; B and the head go to the client's store."""
        names = self.trainable(client.model.layout)
        private = [name for name in names if not is_first_factor(name)]
        return train_and_send(plan, client, rng, trainable=names, private=private)
