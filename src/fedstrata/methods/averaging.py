"""What most methods share: clients train by the one loop, and the server takes a mean, or a robust rule."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, field_validator

from fedstrata.aggregate.mean import replace
from fedstrata.aggregate.robust import robust_average
from fedstrata.aggregate.rules import Aggregation, MeanRule
from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import Problem, SettingError
from fedstrata.core.method import Method
from fedstrata.core.model import Layout, Model
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.types import JSON, Message, Plan, State, Tensors, Update
from fedstrata.policies.share import block_count, keeps_some
from fedstrata.train.local import fit, update_of
from fedstrata.train.probe import norms_of

Coupling: TypeAlias = Literal["coupled", "decoupled"]
"""How a proximal term acts."""
HOW_IT_ACTS = (
    "coupled: the proximal term is part of the gradient, which Adam divides by its size; decoupled: each "
    "step goes mu times the learning rate of the way back, whatever the optimizer."
)
"""The same in words."""


class LocalTraining(Method):
    """Base of methods whose clients train by the one loop; the server takes the weighted mean.

    All that can train does, all of it is shared, and the state is what is shared, unless a card says less.
    The mean is weighted by n_k, which counts training examples (for NER: windows).
    """

    travels: ClassVar[str] = "the whole model, both ways"

    def not_private(self, mechanism: str) -> str:
        """Clients send what the one loop has trained; a server that is trusted needs their mean alone."""
        return "" if mechanism == "local" or self.robust_rule is None else "a robust rule needs every update"

    def not_summed(self) -> str:
        """The server needs the mean alone, unless a robust rule stands in its place."""
        rule = self.robust_rule
        return "" if rule is None else f"{rule} compares single updates; use method.aggregation: mean"

    def start(self, model: Model) -> State:
        """What trains and does not stay at its client, as it is before the first round."""
        private = set(self.private(model.layout))
        shared = [name for name in self.trainable(model.layout) if name not in private]
        return State(model.snapshot(shared))

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """FedAvg's server half: sends everybody the state, trains, and takes the mean of what comes back."""
        plan = Plan(state.tensors, state.values)
        mean = cohort.mean("train", lambda _: plan)
        return State(replace(state.tensors, mean.tensors), state.values)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains what trains; what is private goes to the client's store."""
        return self.trained(plan, client, rng)

    def trained(
        self,
        plan: Plan,
        client: Client,
        rng: Seed,
        *,
        trainable: Collection[str] | None = None,
        private: Collection[str] | None = None,
        proximal: float = 0.0,
        decoupled: bool = False,
    ) -> Update:
        """Loads a plan, trains by the one loop, keeps the private tensors and returns the others.

        Args:
            plan: The global values of what is shared.
            client: The client.
            rng: Seed of this client in this round.
            trainable: What trains; if none what the method says of the client's model.
            private: What of it stays in the client's store; if none what the method says.
            proximal: FedProx's mu.
            decoupled: How it acts; both as for `fit`.
        """
        model = client.model
        names = self.trainable(model.layout) if trainable is None else trainable
        own = self.private(model.layout) if private is None else private
        model.load(plan.tensors)
        loss = fit(client, names, rng, private=own, proximal=proximal, decoupled=decoupled)
        if own:
            client.store.write(Message(model.tensors(own)))
        kept = set(own)
        sent = model.tensors([name for name in names if name not in kept])
        return update_of(client, sent, {"loss": loss})


class Probing(LocalTraining):
    """Base of methods whose first round begins with a probe of the gradients (`fedstrata.train.probe`)."""

    def not_private(self, mechanism: str) -> str:
        """The probe reports norms of single clients' gradients."""
        return "its clients report the norms of their gradients"

    def not_summed(self) -> str:
        """How large a norm can be is not known before, so that none fits a sum for certain."""
        return "its clients' norms of gradients have no range that is known before"

    def sends(
        self, handler: str, plan: Plan, values: Mapping[str, JSON], trained: Tensors, layout: Layout
    ) -> Tensors:
        """What came, trained, or norms."""
        if handler == "probe":
            return norms_of(layout)
        return super().sends(handler, plan, values, trained, layout)


class Averaging(LocalTraining):
    """Base of methods whose server half is FedAvg's: the weighted mean, or the rule that is named."""

    aggregation: Aggregation = Field(default=MeanRule(), discriminator="rule")

    @field_validator("aggregation", mode="before")
    @classmethod
    def _mean_unless_named(cls, value: Any) -> Any:
        """Lets the bare name of a rule stand for the rule with its defaults."""
        if isinstance(value, str):
            return {"rule": value}
        return {"rule": "mean", **value} if isinstance(value, Mapping) else value

    def not_private(self, mechanism: str) -> str:
        """A rule needs every update; a mean does not."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """The same holds of a sum."""
        return super().not_summed()

    def not_joint(self) -> str:
        """Its round is the mean of what everybody trains; what stays at a client has no step of its own."""
        own = "what clients keep for themselves would take no step: none is taken at a client"
        return own if self.personal else ""

    @property
    def robust_rule(self) -> str | None:
        """The rule that is named, unless it is the mean."""
        return None if isinstance(self.aggregation, MeanRule) else self.aggregation.rule

    def problems(self, facts: Facts) -> list[Problem]:
        """A robust rule may get fewer updates than it can judge."""
        return self.aggregation.problems(facts)

    def rehearsed(self) -> Self:
        """It averages without a robust rule, for which two clients are too few."""
        return self if self.robust_rule is None else self.model_copy(update={"aggregation": MeanRule()})

    def held_updates(self, updates: int, size: int) -> tuple[int, int]:
        """A robust rule needs all of them."""
        return self.aggregation.held_updates(updates, size)

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """One weighted mean, or what `aggregation` says."""
        if isinstance(self.aggregation, MeanRule):
            return super().round(state, cohort, rng)
        return robust_average(state, cohort, self.aggregation)


class SomeBlocksShared(Method):
    """Base of methods whose clients share the adapters of some blocks and keep those of the others."""

    if TYPE_CHECKING:  # a setting of each of them
        shared_blocks: int | float
        """Blocks that are shared, a count or a share of the model's; 1.0 keeps none."""

    @property
    def personal(self) -> bool:
        """Whether devices keep blocks of their own."""
        return keeps_some(self.shared_blocks)

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """The adapter and the head.

        Raises:
            ConfigurationError: More blocks are to be shared than the model has.
        """
        block_count(self.shared_blocks, layout)
        return layout.all


def without_a_term(mu: float, proximal: Coupling) -> Iterator[SettingError]:
    """Yields that a term that is not there cannot act in any way."""
    if not mu and proximal != "coupled":
        yield SettingError(
            f"proximal {proximal} has no meaning without a proximal term; give mu a number above 0",
            "no_effect",
        )
