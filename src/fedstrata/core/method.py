"""A federated method: its settings, the server half and the client half, and what the engine asks of it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self

from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.cut import Cut
from fedstrata.core.errors import Problem
from fedstrata.core.model import Layout, Model
from fedstrata.core.preflight import Facts, Growth
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Settings
from fedstrata.core.types import JSON, ClientInfo, Plan, State, Tensors, Update

_HALVES = ("train", "trained", "round")
"""What a method does at a client and at the server; `trained` is what most call in `train`."""
_QUESTIONS = ("not_private", "not_summed")
"""What each class must answer for its own halves."""


def _depth(kind: type, name: str) -> int:
    """Returns how far up among the bases of a class the one is that defines a name; its length if none."""
    return next((depth for depth, base in enumerate(kind.__mro__) if name in vars(base)), len(kind.__mro__))


def _unanswered(question: str) -> Callable[..., str]:
    """Returns what stands for an answer that a class does not give."""

    def unanswered(self: Any, *_: str) -> str:
        """It has a half of its own, for which no base can answer."""
        own = "has a train or round that it does not inherit"
        return f"{type(self).__name__} {own}, and no {question} of its own"

    return unanswered


class Method(Settings):
    """Base of every federated method: a method is its settings, and both of its halves.

    Its fields are the settings of the `method` section: unknown ones are refused, values checked, and it is
    frozen. `round` is the server half. The handlers it names in `cohort.mean` and `cohort.each` are the
    client half: methods with the signature of `train`. Every other member is a question of the engine's,
    answered here as most methods would.
    """

    name: str

    travels: ClassVar[str]
    """One line for people: what travels, in which direction."""
    pooled: ClassVar[bool] = False
    """Whether all training data is pooled into one client: the centralised baseline."""
    adapters: ClassVar[tuple[str, ...]] = ()
    """The kinds of adapters it needs one of, the usual one first; empty if it does without, and with any."""
    usual_adapter: ClassVar[Mapping[str, float]] = {}
    """Settings of the adapter that it has where none is named, as far as they are not the adapter's own."""
    tries_updates: ClassVar[bool] = False
    """Whether its server half asks for the loss of every update (`Cohort.server_loss`)."""
    told_privately: ClassVar[tuple[str, ...]] = ()
    """The values of an update that leave a private client: made of what was noised, or of settings."""
    sends_changes: ClassVar[bool] = False
    """Whether its updates are changes of what came with the plan already, and not values."""
    sums_a_round: ClassVar[int] = 1
    """How often a round has one of its handlers summed at most; a site refuses a masked sum beyond it."""
    begins_in_full: ClassVar[bool] = False
    """Whether a client is sent more until it has delivered once than from then on."""

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Those of `not_private` and `not_summed` that its class must answer for a half of its own."""
        return tuple(name for name in _QUESTIONS if getattr(type(self), name).__name__ == "unanswered")

    @property
    def validates(self) -> bool:
        """Whether its clients score their models on validation documents of their own in the rounds."""
        return False

    @property
    def personal(self) -> bool:
        """Whether a client's model is the global one overlaid with its private store."""
        return False

    @property
    def robust_rule(self) -> str | None:
        """The name of the rule that stands in place of a mean, if one does."""
        return None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Lets no class inherit an answer that was given for another `train` or `round` than its own."""
        super().__pydantic_init_subclass__(**kwargs)
        changed = min(_depth(cls, half) for half in _HALVES)
        for question in _QUESTIONS:
            if _depth(cls, question) > changed:
                setattr(cls, question, _unanswered(question))

    # ---- what trains, and where it is ------------------------------------------------------------------
    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """Returns the names of all parameters that clients train, shared or private.

        Where that is decided as the run goes on, the most that can be.

        Raises:
            ConfigurationError: The settings do not fit this model; asked before anything is loaded.
        """
        return layout.all

    def private(self, layout: Layout) -> tuple[str, ...]:
        """Returns the names of those of them that stay at their client.

        Raises:
            ConfigurationError: As for `trainable`.
        """
        return ()

    def full_parts(self, layout: Layout) -> tuple[str, ...]:
        """Returns the names of what trains of the model itself though there is an adapter.

        Args:
            layout: Of the model without its adapter, or of a side of it.
        """
        return ()

    @property
    def full_setting(self) -> str | None:
        """The setting by which parts of the model itself train beside an adapter; none if none do."""
        return None

    def divides(self, client: str) -> Cut | None:
        """Returns where a client's model is divided; none where it has all of it."""
        return None

    # ---- before a run ----------------------------------------------------------------------------------
    def problems(self, facts: Facts) -> list[Problem]:
        """Returns what of these facts it cannot work with."""
        return []

    def not_private(self, mechanism: str) -> str:
        """Returns why it cannot run under differential privacy; empty if it can.

        A method that can sends nothing of a client's data but what the one training loop has given, and
        what follows from that (`sends`). A class with a `train`, `trained` or `round` of its own must answer
        this itself, by `super().not_private(mechanism)` where the answer of its base still holds; it counts
        as not private otherwise.

        Args:
            mechanism: `local`, each client's patients, or `central`, each client as a whole.
        """
        return "it does not say what else it sends of a client's data"

    def not_summed(self) -> str:
        """Returns why it cannot run under secure aggregation, and what can; empty if it can.

        A method that can sends all clients of a round the same plan, and its server half needs the mean of
        their tensors and of their losses alone (`Cohort.mean`). As for `not_private`, a class with a half of
        its own must answer this itself.
        """
        return "it does not say that the mean of its clients is all that it needs"

    def not_joint(self) -> str:
        """Returns why it cannot run with joint noise, where it can with noise at clients; empty if it can.

        Clients then send one clipped gradient a round in place of what they have trained, of which their sum
        alone is seen, and the mean of a handler (`Cohort.mean`) is the plan after a step of the server's.
        """
        return "it does not say that one step with the mean gradient of its clients can be its round"

    def rehearsed(self) -> Self:
        """Returns the method as two clients can rehearse it."""
        return self

    def held_updates(self, updates: int, size: int) -> tuple[int, int]:
        """Returns how many updates of a round its server half keeps at one time, in memory and in files.

        Args:
            updates: How many there are.
            size: Bytes of one.
        """
        return 0, 0

    def growth(
        self,
        model: Model,
        sizes: Mapping[str, int],
        sampled: Sequence[Sequence[str]],
        delivered: Sequence[Sequence[str]],
    ) -> Growth | None:
        """Returns what grows with the clients of a round, or with the rounds; none if nothing does.

        Args:
            model: The model that the run begins with.
            sizes: Bytes of what a client sends, by name.
            sampled: The clients of every round.
            delivered: Those of them that send something; none of a round that is abandoned.
        """
        return None

    @property
    def cautions(self) -> tuple[str, ...]:
        """What an estimate before the run cannot know, in words."""
        return ()

    # ---- a run -----------------------------------------------------------------------------------------
    @abstractmethod
    def start(self, model: Model) -> State:
        """Returns the state before the first round."""

    @abstractmethod
    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Runs one round and returns the new state."""

    @abstractmethod
    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains one client."""

    def weighs(self, client: ClientInfo) -> float:
        """Returns what an update of a client must weigh."""
        return float(client.examples)

    def sends(
        self, handler: str, plan: Plan, values: Mapping[str, JSON], trained: Tensors, layout: Layout
    ) -> Tensors:
        """Returns what an update of a handler holds, by which one from another process is judged.

        That is what came with the plan, trained, unless a method says otherwise.

        Args:
            handler: Whose update it is.
            plan: What the client was sent.
            values: What the update says beside its tensors.
            trained: What trains at the client: tensors without values, on torch's `meta` device; or, where it
                is private, what its training has released: values, or changes if it `sends_changes`. What
                the update holds must then follow from these, and is compared with what this returns.
            layout: Of the whole model.

        Returns:
            Tensors, without values if `trained` has none.

        Raises:
            FrameError: The values are none that an update of this handler can have.
        """
        return {name: trained[name] for name in plan.tensors if name in trained}

    def seen_by(self, model: Any, rng: Seed) -> Callable[[str], AbstractContextManager[Any]] | None:
        """Returns how a site's documents are answered; none if simply by the shared model.

        Args:
            model: The shared one; what it holds when the context is entered is what answers, as the model
                that the context gives.
            rng: Seed of what is drawn for that.
        """
        return None
