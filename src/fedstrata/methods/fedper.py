"""FedPer: the body is shared, each client keeps a head of its own.

Source: Arivazhagan et al. 2019, "Federated Learning with Personalization Layers", Algorithms 1 and 2; the
    "FedPer" row of Layer-Skipping FL, Table I.
Travels: everything but the head (and the personal blocks, if any), both ways.
Server half: weighted mean of the body; n_k counts training examples (for NER: windows). `aggregation` names
    another rule.
Client half: local training of the whole model; the personal part persists in the client's store.
Reduces to: Layer-Skipping FL with every block and a local head, at `personal_blocks: 0`.
Deviations: the paper trains with SGD and counts its personalisation layers K_P from the classifier down, so
    its K_P is `personal_blocks` + 1 here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedstrata.aggregate.mean import average
from fedstrata.aggregate.rules import AveragingSettings
from fedstrata.core.types import Plan, State, Update
from fedstrata.policies.share import personal_top
from fedstrata.train.local import train_and_send

if TYPE_CHECKING:
    from fedstrata.core.client import Client
    from fedstrata.core.cohort import Cohort
    from fedstrata.core.model import Layout, Model
    from fedstrata.core.seeding import Seed
    from fedstrata.core.settings.run import MethodSettings


class FedPerSettings(AveragingSettings):
    """Settings of FedPer."""

    name: Literal["fedper"] = "fedper"
    personal_blocks: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Blocks, counted from the top, that stay at their client with the head."
    )


class FedPer:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "fedper"
    travels: ClassVar[str] = "everything but the head and the personal blocks, both ways"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ()
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = True
    Settings: ClassVar[type[MethodSettings]] = FedPerSettings

    def __init__(self, settings: FedPerSettings) -> None:
        self.settings = settings

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """Every parameter.

        Raises:
            ConfigurationError: Nothing would be personal, or more blocks than the model has.
        """
        self._private(layout)
        return layout.all

    def start(self, model: Model) -> State:
        """The body."""
        private = self._private(model.layout)
        return State(model.snapshot([name for name in model.layout.all if name not in private]))

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """FedAvg over the body."""
        return average(state, cohort, self.settings.aggregation)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains the whole model; the personal part goes to the client's store."""
        layout = client.model.layout
        return train_and_send(
            plan, client, rng, trainable=self.trainable(layout), private=self._private(layout)
        )

    def _private(self, layout: Layout) -> frozenset[str]:
        return frozenset(
            personal_top(layout, self.settings.personal_blocks, setting="method.personal_blocks")
        )
