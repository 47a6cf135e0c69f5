"""Fed-MedLoRA: sites fine-tune low-rank adapters of one language model, the server averages them.

Source: Li et al., "A Federated and Parameter-Efficient Framework for Large Language Model Training in
    Medicine", section 5.2.1 and Algorithm 1.
Travels: A and B of every adapted layer and the task head, where the task has one, both ways. With rank 16 in
    the seven linear layers of each block of LLaMA-3-8B that is 0.5 % of the model.
Server half: the weighted means of A and of B, each by itself; w_k = n_k / sum n over the sites of the round,
    n_k counts training examples. `aggregation` names another rule.
Client half: local training of the adapter and the head.
Reduces to: FedLoRA, to the last bit.
Deviations: the printed formulas multiply the mean by 1/m, m being the sites of a round, which shrinks A and B
    m-fold every round and their product with the square. Only `literal: true` does that here, and warns. The
    printed N counts the examples of all sites and not those of the round's, which is the same where every
    site takes part. The mean of A and that of B multiply to something else than the mean of B A; `flora` and
    `ffa_lora` are about that. `literal` keeps the weights of the round's sites: with `federation.sample`
    below 1 the printed N would shrink the mean further. Without `adapter` there is the paper's (rank 16,
    alpha 64, dropout 0.05); its other numbers are settings of `training`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from fedstrata.adapters.rank import is_lora
from fedstrata.aggregate.mean import average
from fedstrata.aggregate.rules import AveragingSettings, MeanRule
from fedstrata.core.types import Plan, State, Update
from fedstrata.train.local import train_and_send

if TYPE_CHECKING:
    from torch import Tensor

    from fedstrata.core.client import Client
    from fedstrata.core.cohort import Cohort
    from fedstrata.core.model import Layout, Model
    from fedstrata.core.seeding import Seed
    from fedstrata.core.settings.run import MethodSettings

logger = logging.getLogger(__name__)

USUAL_ADAPTER: Mapping[str, float] = {"rank": 16, "alpha": 64, "dropout": 0.05}
"""The paper's adapter where none is named: of its methods, FedSA-LoRA, FFA-LoRA and FLoRA."""


class FedMedLoRASettings(AveragingSettings):
    """Settings of Fed-MedLoRA; the adapter has its own, `adapter`."""

    name: Literal["fedmedlora"] = "fedmedlora"
    literal: bool = Field(
        default=False,
        description="The printed formulas, which divide the mean adapters by the sites of a round once more.",
    )

    @model_validator(mode="after")
    def _literal_is_a_mean(self) -> FedMedLoRASettings:
        if self.literal and not isinstance(self.aggregation, MeanRule):
            raise ValueError(f"literal stands for a printed mean, and aggregation is {self.aggregation.rule}")
        return self


class FedMedLoRA:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "fedmedlora"
    travels: ClassVar[str] = "the low-rank adapters and the head, both ways"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = FedMedLoRASettings

    def __init__(self, settings: FedMedLoRASettings) -> None:
        self.settings = settings

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """The adapter and the head."""
        return layout.all

    def start(self, model: Model) -> State:
        """The adapter, which changes nothing yet, and the head."""
        if self.settings.literal:
            warn_of_shrinking(self.name)
        return State(model.snapshot(self.trainable(model.layout)))

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """One weighted mean, or what `aggregation` says."""
        merged = average(state, cohort, self.settings.aggregation)
        if not self.settings.literal:
            return merged
        return State(shrunk(merged.tensors, len(cohort.clients)), merged.values)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains the adapter and the head."""
        return train_and_send(plan, client, rng, trainable=self.trainable(client.model.layout))


def shrunk(tensors: Mapping[str, Tensor], sites: int) -> dict[str, Tensor]:
    """Returns tensors with A and B of every LoRA divided by m, the sites of a round, as is printed."""
    return {name: tensor / sites if is_lora(name) else tensor for name, tensor in tensors.items()}


def warn_of_shrinking(method: str) -> None:
    """Says, when a run begins, what the printed formulas do."""
    what = "each round divides A and B by its number of sites, and their product by the square of it"
    logger.warning("%s: with method.literal %s", method, what)
