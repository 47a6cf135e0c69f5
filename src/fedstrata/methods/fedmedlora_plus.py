"""Fed-MedLoRA+: low-rank adapters averaged by how well each does on a few documents of the server's.

Source: Li et al., "A Federated and Parameter-Efficient Framework for Large Language Model Training in
    Medicine", section 5.2.2 and Algorithm 2.
Travels: A and B of every adapted layer and the task head, where the task has one, both ways.
Server half: the loss l_k of the base model with each site's adapter and head on `data.split.server` documents
    of the server's own; the mean of A, of B and of the head by C_k = n_k I_k / sum n_i I_i with I =
    softmax(-l / temperature), over the sites of the round. Needs single updates, to try them; one at a time,
    so the server holds one payload whatever the number of sites (`fedstrata.aggregate.influence`), and
    ceil(1 / cap) with a `cap` on a site's share. No secure aggregation, which hides all but the sum.
    `weighting: influence` is the mean by I_k alone, as the authors' released code has it (FL_LLM_Med,
    loss_avg_algorithm.py).
Client half: local training of the adapter and the head.
Reduces to: Fed-MedLoRA with equal losses, to the last bit; by influence alone to the mean of equal weights.
Deviations: the printed 1/m is left out but with `literal: true` (see `fedmedlora`). A site whose model has no
    finite loss is lost to the round like one that fails (`federation.min_clients`). With `loss: tokens` l_k
    is the mean over the loss terms (tokens, in token tasks) of all the server's documents, as in the authors'
    code; the paper prints one over records (`loss: records`). The temperature is ours. The paper subtracts
    the least of the -l_i for stability, which is the wrong end; here it is the greatest, as the softmax
    needs. `cap` is ours.
"""

import dataclasses
import math
from typing import ClassVar, Literal

from pydantic import Field

from fedstrata.aggregate.influence import InfluenceMean, room_for, unusable
from fedstrata.aggregate.mean import replace
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import Problem
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Fraction, Positive
from fedstrata.core.types import JSON, Plan, State
from fedstrata.methods.medlora import MedLoRA


class FedMedLoRAPlus(MedLoRA):
    """The method; see the module's docstring. The adapter has settings of its own, `adapter`."""

    name: Literal["fedmedlora_plus"] = "fedmedlora_plus"
    cap: Fraction | None = Field(
        default=None,
        description="Maximum weight of a site; the excess is distributed over the other sites in "
        "proportion. No limit if null.",
    )
    weighting: Literal["influence_examples", "influence"] = Field(
        default="influence_examples",
        description="Weight of a site: its influence times its number of training examples, as in the "
        "paper, or its influence alone, as in the authors' code, where a site with few documents counts "
        "as much as any other.",
    )
    loss: Literal["tokens", "records"] = Field(
        default="tokens",
        description="Mean loss of a site: over tokens, as in the authors' code, or over records, as "
        "printed in the paper, where each record counts the summed loss of its answer. That is larger by "
        "the length of an answer, so a site with a slightly higher loss gets almost no weight.",
    )
    temperature: Positive = Field(
        default=1.0,
        description="Losses are divided by the temperature before they become weights; larger values make "
        "weights more equal.",
    )
    tries_updates: ClassVar[bool] = True

    def problems(self, facts: Facts) -> list[Problem]:
        """The cap is below the equal share, or the server has nothing to judge by."""
        if facts.sampled is not None and (cap := self.cap or 1.0) * facts.sampled < 1:
            allowed = f"must be at least 1/{facts.sampled}, the equal share of the clients of a round"
            return [Problem("method.cap", f"{allowed} ({facts.sampling}), not {cap:g}", code="out_of_range")]
        if facts.server_documents == 0:
            weighs = (
                f"must be 1 or more with {self.name}, which weighs clients by their loss on such documents"
            )
            return [Problem("data.split.server", f"{weighs} (its paper has 5)", code="out_of_range")]
        if facts.server_examples == 0:
            own = f"their loss on the {facts.server_documents} documents of the server"
            none = f"none has an example for task {facts.task}"
            return [
                Problem(
                    "data.split.server",
                    f"{self.name} weighs clients by {own}, and {none}",
                    code="not_enough_data",
                )
            ]
        return []

    def not_private(self, mechanism: str) -> str:
        """Its weights tell of every update how it does on the server's documents, which nothing protects."""
        return "it weighs every update by its loss on documents of the server, which epsilon does not cover"

    def not_summed(self) -> str:
        """Its weights are losses of single updates."""
        return "it tries every update on the server's documents; use fedmedlora"

    def held_updates(self, updates: int, size: int) -> tuple[int, int]:
        """With a cap those of the heaviest sites, and else one."""
        return min(updates, room_for(self.cap)), 0

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Tries each update on the server's documents, and averages them by what that gave."""
        plan, mean, losses = Plan(state.tensors), InfluenceMean(self.cap), dict[str, float]()
        for client, update in cohort.each("train", lambda _: plan):
            loss = cohort.server_loss(update.tensors, "terms" if self.loss == "tokens" else "records")
            if math.isfinite(loss):
                own = dataclasses.replace(update, weight=1.0) if self.weighting == "influence" else update
                mean.add(client.id, own, loss / self.temperature)
                losses[client.id] = loss
            else:
                cohort.reject(client.id, unusable(client.id, loss))
        result, influences = mean.finish()
        merged = self.as_printed(replace(state.tensors, result.tensors), len(cohort.clients))
        facts: JSON = {
            client: {**dataclasses.asdict(own), "loss": losses[client]} for client, own in influences.items()
        }
        return State(merged, {"influence": facts})
