"""Layer-Skipping FL: freeze the lower blocks, train and send only the top k.

Source: Zhang and Li, "Federated Learning with Layer Skipping", equations 1 to 3 and section IV.C; `top: auto`
    is the adaptive depth that the paper leaves as future work, by a rule of ours.
Travels: the top k blocks, the final norm and, with a shared head, the head; the same both ways. On
    LLaMA-3.2-1B (16 blocks, tied embedding) top 8 is 39.4 % of the parameters and top 4 is 19.7 %. With
    `top: auto`, once, a number a block from each client.
Server half: weighted mean of what travels (equation 2); n_k counts training examples (for NER: windows).
    `aggregation` names another rule; the probe's numbers are averaged whatever it says.
    With `top: auto` the first round begins with a probe: the mean of the clients' gradient norms by block. k
    is the smallest number of top blocks that holds `share` of their sum, or the largest that `budget` lets
    clients send if that is smaller.
Client half: local training of what travels and of the head (equation 1). The probe is a few batches forward
    and back through the whole model, without a step.
Reduces to: FedAvg at k = L, where nothing is left to freeze and the embedding trains too. `top: auto` with
    share 1 is k = L, and in general the fixed k it chose.
Deviations: the paper does not say where the final norm belongs (here it trains and travels with the blocks),
    nor whether its "head added and trained per client" is shared: `head: shared` is the default, `head:
    local` keeps it at the client. The paper gives LLaMA-3.2-1B 32 blocks; it has 16.
"""

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import refused
from fedstrata.core.model import Layout, Model
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count, Fraction, Settings
from fedstrata.core.types import JSON, Plan, State, Update
from fedstrata.methods.averaging import Averaging, Probing
from fedstrata.policies.freeze import largest_top, smallest_top, top_count, train_top
from fedstrata.policies.share import personal_top
from fedstrata.train.probe import NORMS, asked_norms, send_norms


class AutomaticDepth(Settings):
    """How `top: auto` chooses the number of blocks."""

    share: Fraction = Field(
        default=0.5,
        description="Fraction of the summed gradient norms of all blocks that the trained blocks must hold.",
    )
    budget: Fraction = Field(default=1.0, description="Maximum size of an update as a fraction of the model.")
    batches: Count = Field(default=8, description="Batches of each client used to measure gradient norms.")


class LayerSkipping(Probing, Averaging):
    """The method; see the module's docstring."""

    name: Literal["layer_skipping"] = "layer_skipping"
    top: Count | Annotated[float, Field(gt=0.0, le=1.0)] | Literal["auto"] | AutomaticDepth = Field(
        default=0.25,
        description="Number of top blocks that train: a count (2), a fraction of the model's blocks "
        "(0.25), `auto`, or the settings of auto: {share: 0.5, budget: 1.0, batches: 8}.",
    )
    head: Literal["shared", "local"] = Field(
        default="shared", description="Share the head with the server, or keep it local to each client."
    )
    travels: ClassVar[str] = "the top k blocks, the final norm and the head (unless local), both ways"

    def not_private(self, mechanism: str) -> str:
        """With `top: auto` clients report the norms of their gradients."""
        norms = "with method.top auto clients report the norms of their gradients; give a number"
        return norms if self._automatic else Averaging.not_private(self, mechanism)

    def not_summed(self) -> str:
        """With a number nothing is probed."""
        if self._automatic:
            return f"{super().not_summed()}; give method.top a number"
        return Averaging.not_summed(self)

    @property
    def personal(self) -> bool:
        """With a local head every client has a model of its own."""
        return self.head == "local"

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """The top k blocks, the final norm and the head; with `top: auto` those of the largest k allowed.

        Raises:
            ConfigurationError: k is greater than the number of blocks, the budget is too small for one block,
                or a local head is asked of a model whose head is tied.
        """
        return train_top(layout, self._largest(layout))

    def private(self, layout: Layout) -> tuple[str, ...]:
        """A local head."""
        return personal_top(layout, 0, setting="method.head") if self.head == "local" else ()

    def start(self, model: Model) -> State:
        """The shared parameters as they are before the first round."""
        state, layout = super().start(model), model.layout
        if not self._automatic:
            return state
        # The server half sees no layout, so the state says from which k on a tensor trains.
        trains_from: dict[str, int] = {}
        for k in range(self._largest(layout), 0, -1):
            trains_from |= dict.fromkeys(train_top(layout, k), k)
        return State(state.tensors, {"trains_from": {name: trains_from[name] for name in state.tensors}})

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """FedAvg over what is shared; with `top: auto` the first round chooses k before it."""
        if "trains_from" in state.values:
            state = self._choose(state, cohort)
        return super().round(state, cohort, rng)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains the top blocks; a local head goes to the client's store."""
        if not self._automatic:
            return self.trained(plan, client, rng)
        top = train_top(client.model.layout, cast("int", plan.values["top"]))
        return self.trained(plan, client, rng, trainable=top)

    def probe(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Reports the gradient norm of every block of the model as it is before the first round."""
        return send_norms(client, (self._automatic or AutomaticDepth()).batches, rng)

    def _choose(self, state: State, cohort: Cohort) -> State:
        """Keeps of the state what trains at the k that the clients' gradient norms ask for."""
        automatic = self._automatic or AutomaticDepth()
        norms = asked_norms(cohort)
        trains_from = cast("dict[str, int]", state.values["trains_from"])
        k = min(smallest_top(norms, automatic.share), max(trains_from.values()))
        kept = {name: tensor for name, tensor in state.tensors.items() if trains_from[name] <= k}
        return State(kept, {"top": k, NORMS: list[JSON](norms)})

    @property
    def _automatic(self) -> AutomaticDepth | None:
        top = self.top
        return AutomaticDepth() if top == "auto" else top if isinstance(top, AutomaticDepth) else None

    def _largest(self, layout: Layout) -> int:
        """Returns k, or the largest that `top: auto` may choose."""
        blocks, automatic = len(layout.blocks), self._automatic
        private = self.private(layout)
        if automatic:
            k = largest_top(layout, automatic.budget, private=private)
            if k == 0:
                least = sum(layout.sizes[name] for name in train_top(layout, 1) if name not in private)
                share = least / sum(layout.sizes.values())
                message = f"{automatic.budget:g} of the model is less than one block needs, {share:.4f}"
                raise refused("method.top.budget", message, "out_of_range")
            return k
        k = top_count(cast("int | float", self.top), blocks)
        if k > blocks:
            message = f"must be at most {blocks}, the number of blocks of the model, not {k}"
            raise refused("method.top", message, "out_of_range")
        return k
