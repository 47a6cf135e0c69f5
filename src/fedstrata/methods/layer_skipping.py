"""Layer-Skipping FL: freeze the lower blocks, train and send only the top k.

Source: Zhang and Li, "Federated Learning with Layer Skipping", equations 1 to 3 and section IV.C.
Travels: the top k blocks, the final norm and, with a shared head, the head; the same both ways. On
LLaMA-3.2-1B (16
    blocks, tied embedding) top 8 is 39.4 % of the parameters and top 4 is 19.7 %.
Server half: weighted mean of what travels (equation 2); n_k counts training examples (for NER: windows).
Client half: local training of what travels and of the head (equation 1).
Reduces to: FedAvg at k = L, where nothing is left to freeze and the embedding trains too.
Deviations: the paper does not say where the final norm belongs (here it trains and travels with the
blocks), nor
    whether its "head added and trained per client" is shared: `head: shared` is the default, `head: local`
    keeps it at the client. The paper gives LLaMA-3.2-1B 32 blocks; it has 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedstrata.aggregate.mean import average
from fedstrata.core.config import Count, MethodSettings
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.types import Plan, State, Update
from fedstrata.policies.freeze import top_count, train_top
from fedstrata.train.local import train_and_send

if TYPE_CHECKING:
    from fedstrata.core.method import Client, Cohort, Layout, Model
    from fedstrata.core.seeding import Seed


class LayerSkippingSettings(MethodSettings):
    """Settings of Layer-Skipping FL."""

    name: Literal["layer_skipping"] = "layer_skipping"
    top: Count | Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.25, description="Blocks that train: a count (2) or a fraction of the model's blocks (0.25)."
    )
    head: Literal["shared", "local"] = "shared"


class LayerSkipping:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "layer_skipping"
    travels: ClassVar[str] = "the top k blocks, the final norm and the head (unless local), both ways"
    pooled: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = LayerSkippingSettings

    def __init__(self, settings: LayerSkippingSettings) -> None:
        self.settings = settings

    @property
    def personal(self) -> bool:
        """With a local head every client has a model of its own."""
        return self.settings.head == "local"

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """The top k blocks, the final norm and the head.

        Raises:
            ConfigurationError: k is greater than the number of blocks.
        """
        k, blocks = top_count(self.settings.top, len(layout.blocks)), len(layout.blocks)
        if k > blocks:
            message = f"must be at most {blocks}, the number of blocks of the model, not {k}"
            raise ConfigurationError([Problem("method.top", message)])
        return train_top(layout, k)

    def start(self, model: Model) -> State:
        """The shared parameters as they are before the first round."""
        private = self._private(model.layout)
        return State(model.snapshot([name for name in self.trainable(model.layout) if name not in private]))

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """FedAvg over what is shared."""
        return average(state, cohort)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains the top blocks; a local head goes to the client's store."""
        layout = client.model.layout
        return train_and_send(
            plan, client, rng, trainable=self.trainable(layout), private=self._private(layout)
        )

    def _private(self, layout: Layout) -> tuple[str, ...]:
        return layout.head if self.settings.head == "local" else ()
