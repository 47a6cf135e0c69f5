"""Local-only: every client trains alone; the floor that federation must beat.

Source: the "Local-only" row of Layer-Skipping FL, Table II.
Travels: no tensors; an update carries the client's loss only.
Server half: none.
Client half: local training of the whole model, which persists in the client's store.
Reduces to: plain training on one client's data.
Deviations: none. "Global" scores of a run are the mean, over clients, of each client's model on everybody's
test data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fedstrata.aggregate.mean import average
from fedstrata.core.settings.run import MethodSettings
from fedstrata.core.types import Plan, State, Update
from fedstrata.train.local import train_and_send

if TYPE_CHECKING:
    from fedstrata.core.client import Client
    from fedstrata.core.cohort import Cohort
    from fedstrata.core.model import Layout, Model
    from fedstrata.core.seeding import Seed


class LocalOnlySettings(MethodSettings):
    """Local-only has no settings of its own."""

    name: Literal["local_only"] = "local_only"


class LocalOnly:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "local_only"
    travels: ClassVar[str] = "nothing but a loss"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ()
    validates: ClassVar[bool] = False
    personal: ClassVar[bool] = True
    Settings: ClassVar[type[MethodSettings]] = LocalOnlySettings

    def __init__(self, settings: LocalOnlySettings) -> None:
        self.settings = settings

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """Every parameter."""
        return layout.all

    def start(self, model: Model) -> State:
        """Nothing is shared."""
        return State()

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Lets every client train; there is nothing to average."""
        return average(state, cohort)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Goes on from the client's own model and keeps it."""
        everything = self.trainable(client.model.layout)
        return train_and_send(plan, client, rng, trainable=everything, private=everything)
