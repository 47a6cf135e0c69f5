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

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedstrata.adapters.rank import is_lora
from fedstrata.aggregate.rules import MeanRule
from fedstrata.core.cohort import Cohort
from fedstrata.core.model import Model
from fedstrata.core.seeding import Seed
from fedstrata.core.types import State
from fedstrata.methods.averaging import Averaging, LocalTraining

logger = logging.getLogger(__name__)

USUAL_ADAPTER: Mapping[str, float] = {"rank": 16, "alpha": 64, "dropout": 0.05}
"""The paper's adapter where none is named: of its methods, FedSA-LoRA, FFA-LoRA and FLoRA."""
_PRINTED = "The printed formulas, which divide the mean adapters by the sites of a round once more."
Printed = Annotated[bool, Field(description=_PRINTED)]
"""The setting `literal`."""


class MedLoRA(LocalTraining):
    """Base of both methods of the paper: their adapter, and the printed formulas where these are wanted."""

    if TYPE_CHECKING:  # a setting of each of them
        literal: bool
        """Whether the printed formulas count, which divide the mean adapters by the sites once more."""

    travels: ClassVar[str] = "the low-rank adapters and the head, both ways"
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    usual_adapter: ClassVar[Mapping[str, float]] = USUAL_ADAPTER

    def start(self, model: Model) -> State:
        """The adapter, which changes nothing yet, and the head."""
        if self.literal:
            what = "each round divides A and B by its number of sites, and their product by the square of it"
            logger.warning("%s: with method.literal %s", self.name, what)
        return super().start(model)

    def as_printed(self, tensors: Mapping[str, Tensor], sites: int) -> Mapping[str, Tensor]:
        """Returns merged tensors; `literal` with A and B of every LoRA divided by m, the sites of a round."""
        if not self.literal:
            return tensors
        return {name: tensor / sites if is_lora(name) else tensor for name, tensor in tensors.items()}


class FedMedLoRA(MedLoRA, Averaging):
    """The method; see the module's docstring. The adapter has settings of its own, `adapter`."""

    name: Literal["fedmedlora"] = "fedmedlora"
    literal: Printed = False

    def _misfits(self) -> Iterator[str]:
        if self.literal and not isinstance(self.aggregation, MeanRule):
            yield f"literal stands for a printed mean, and aggregation is {self.aggregation.rule}"

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """One weighted mean, or what `aggregation` says."""
        merged = super().round(state, cohort, rng)
        return State(self.as_printed(merged.tensors, len(cohort.clients)), merged.values)
