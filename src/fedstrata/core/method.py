"""A federated method: the server half and the client half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.model import Layout, Model
from fedstrata.core.types import Plan, State, Update

if TYPE_CHECKING:
    from fedstrata.core.seeding import Seed
    from fedstrata.core.settings.run import MethodSettings


class Method(Protocol):
    """A federated method, both halves.

    `round` is the server half. The handlers it names in `cohort.mean` and `cohort.each` are the client
    half: methods of the same object with the signature of `train`. The class of its settings is `Settings`.
    """

    name: ClassVar[str]
    travels: ClassVar[str]
    """One line for people: what travels, in which direction."""
    pooled: ClassVar[bool]
    """Whether all training data is pooled into one client: the centralised baseline."""
    adapters: ClassVar[tuple[str, ...]]
    """The kinds of adapters it needs one of, the usual one first; empty if it does without, and with any."""
    Settings: ClassVar[type[MethodSettings]]
    """The class of its settings."""

    def __init__(self, settings: Any) -> None: ...

    @property
    def settings(self) -> MethodSettings:
        """Its settings."""

    @property
    def validates(self) -> bool:
        """Whether its clients score their models on validation documents of their own in the rounds."""

    @property
    def personal(self) -> bool:
        """Whether a client's model is the global one overlaid with its private store."""

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """Returns the names of all parameters that clients train, shared or private.

        Where that is decided as the run goes on, the most that can be.

        Raises:
            ConfigurationError: The settings do not fit this model; asked before anything is loaded.
        """

    def start(self, model: Model) -> State:
        """Returns the state before the first round."""

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Runs one round and returns the new state."""

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains one client."""
