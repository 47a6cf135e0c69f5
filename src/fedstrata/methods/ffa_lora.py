"""FFA-LoRA: the first factor of each low-rank adapter is frozen at its random values, the second is averaged.

Source: Sun et al. 2024, "Improving LoRA in Privacy-preserving Federated Learning", section 4.
Travels: B of every adapted layer and the task head, both ways: about half of what FedLoRA sends. A never: the
    seed of the run gives it to everybody.
Server half: the weighted mean of B, with which (mean B) A is exactly the mean of all B A; n_k counts training
    examples (for NER: windows). `aggregation` names another rule.
Client half: local training of B and the head.
Reduces to: LoRA with a frozen A when there is one client.
Deviations: A is drawn as PEFT draws it (uniform, Kaiming), and the head trains. The differential privacy that
    the paper is about is none of this card.
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


class FFALoRASettings(AveragingSettings):
    """Settings of FFA-LoRA; the adapter has its own, `adapter`."""

    name: Literal["ffa_lora"] = "ffa_lora"


class FFALoRA:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "ffa_lora"
    travels: ClassVar[str] = "B of the low-rank adapters and the head, both ways; A is frozen"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = FFALoRASettings

    def __init__(self, settings: FFALoRASettings) -> None:
        self.settings = settings

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """B, which is zero at first, and the head."""
        return tuple(name for name in layout.all if not is_first_factor(name))

    def start(self, model: Model) -> State:
        """B and the head."""
        return State(model.snapshot(self.trainable(model.layout)))

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """One weighted mean, or what `aggregation` says."""
        return average(state, cohort, self.settings.aggregation)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains B and the head."""
        return train_and_send(plan, client, rng, trainable=self.trainable(client.model.layout))
