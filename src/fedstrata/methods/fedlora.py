"""FedLoRA: FedAvg over low-rank adapters; the model itself is frozen and stays where it is.

Source: Zhang et al. 2023, "FedPETuning", section 3; the "FedLoRA" rows of DropPEFT; the adapters are those of
    Hu et al. 2022, "LoRA", equation 3.
Travels: A and B of every adapted layer and the task head, both ways. With rank 8 in all linear layers of
    LLaMA-3.2-1B that is 0.5 % of the model.
Server half: the weighted means of A and of B, each by itself; n_k counts training examples (for NER:
    windows). `aggregation` names another rule.
Client half: local training of the adapter and the head.
Reduces to: plain LoRA when there is one client.
Deviations: none. The product of two means is not the mean of the products; `flora` and `ffa_lora` are about
    that.
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


class FedLoRASettings(AveragingSettings):
    """Settings of FedLoRA; the adapter has its own, `adapter`."""

    name: Literal["fedlora"] = "fedlora"


class FedLoRA:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "fedlora"
    travels: ClassVar[str] = "the low-rank adapters and the head, both ways"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = FedLoRASettings

    def __init__(self, settings: FedLoRASettings) -> None:
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
