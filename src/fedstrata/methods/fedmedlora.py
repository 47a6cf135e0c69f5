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

from collections.abc import Iterator
from typing import Literal

from fedstrata.aggregate.rules import MeanRule
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import SettingError
from fedstrata.core.seeding import Seed
from fedstrata.core.types import State
from fedstrata.methods.averaging import Averaging
from fedstrata.methods.medlora import MedLoRA


class FedMedLoRA(MedLoRA, Averaging):
    """The method; see the module's docstring. The adapter has settings of its own, `adapter`."""

    name: Literal["fedmedlora"] = "fedmedlora"

    def _misfits(self) -> Iterator[SettingError]:
        if self.literal and not isinstance(self.aggregation, MeanRule):
            yield SettingError(
                f"literal stands for a printed mean, and aggregation is {self.aggregation.rule}", "conflict"
            )

    def not_private(self, mechanism: str) -> str:
        """The printed factors are made of counts of sites."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """Every mean is multiplied by the same factor."""
        return super().not_summed()

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """One weighted mean, or what `aggregation` says."""
        merged = super().round(state, cohort, rng)
        return State(self.as_printed(merged.tensors, len(cohort.clients)), merged.values)
