"""How updates become one: the rules a configuration can name, and how many updates each of them needs.

`mean` is the weighted mean. The others are for federations some of whose clients may send anything at all,
by accident or on purpose; `fedstrata.aggregate.robust` says what they do. A rule withstands only so many
hostile updates among those that arrive; what that takes is known before the run and checked then
(`RobustRule.problems`), and again on what arrived.
"""

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from fedstrata.core.errors import Problem
from fedstrata.core.preflight import Facts
from fedstrata.core.settings.base import Count, Positive, Settings
from fedstrata.core.settings.federation import share_of

OUTVOTE = 3
"""The least number of updates of which the majority can be right and one wrong."""


class MeanRule(Settings):
    """The mean, weighted by n_k; the server never sees a single update."""

    rule: Literal["mean"] = "mean"

    def problems(self, facts: Facts) -> list[Problem]:
        """Returns nothing: a mean is one of any number of updates."""
        return []

    def held_updates(self, updates: int, size: int) -> tuple[int, int]:
        """Returns how many updates are kept at one time, in memory and in files: none."""
        return 0, 0


class RobustRule(Settings):
    """Base of the rules that need every single update."""

    condition: ClassVar[str] = f"at least {OUTVOTE}, so that one can be outvoted"
    """What `needed` stands for, in words."""

    rule: str
    memory_gigabytes: Positive = Field(
        default=1.0,
        description="Memory for the updates of a round; more is stored in temporary files.",
    )

    def hostile_among(self, clients: int) -> int:
        """Returns f, how many of a round's clients the rule takes to be hostile; 0 if it is not told."""
        return 0

    def needed(self, clients: int) -> int:
        """Returns how many updates must arrive of a round of so many clients."""
        return OUTVOTE

    def problems(self, facts: Facts) -> list[Problem]:
        """Returns the problem that the rule may get fewer updates than it can judge, if it may."""
        if facts.sampled is None or facts.federation is None:
            return []
        sampled, least, dropout = facts.sampled, facts.federation.min_clients, facts.federation.dropout
        hostile, needed = self.hostile_among(sampled), self.needed(sampled)
        told = f", with f = {hostile}" if hostile else ""
        condition = f"{self.rule} needs {needed} updates a round ({self.condition}{told})"
        if sampled < needed:
            message = f"{condition}, and {sampled} clients take part in one ({facts.sampling})"
            return [Problem("method.aggregation", message, code="not_enough_data")]
        if least is not None and least < needed:
            message = f"must be at least {needed}, not {least}: {condition}"
            return [Problem("federation.min_clients", message, code="out_of_range")]
        if least is None and dropout > 0:
            message = f"must be set, to {needed} or more, when clients drop out: {condition}"
            return [Problem("federation.min_clients", message, code="missing")]
        return []

    def held_updates(self, updates: int, size: int) -> tuple[int, int]:
        """Returns how many updates are kept at one time, in memory and in files.

        Args:
            updates: How many there are in a round.
            size: Bytes of one.
        """
        in_memory = min(updates, int(self.memory_gigabytes * 1e9 / max(1, size)))
        return in_memory, updates - in_memory


class MedianRule(RobustRule):
    """The median of every coordinate."""

    rule: Literal["median"] = "median"


class CountingRule(RobustRule):
    """Base of the rules that are told how many clients may be hostile."""

    beyond: ClassVar[int]
    """How many updates must arrive besides two for each hostile one."""

    hostile: Annotated[float, Field(ge=0.0, lt=0.5)] = Field(
        default=0.1, description="Fraction of a round's clients that may be hostile; f is rounded up."
    )

    def hostile_among(self, clients: int) -> int:
        """Returns f = ceil(hostile n)."""
        return share_of(self.hostile, clients)

    def needed(self, clients: int) -> int:
        """Returns 2f, and what there must be beyond it."""
        return 2 * self.hostile_among(clients) + self.beyond


class TrimmedMeanRule(CountingRule):
    """The mean of every coordinate without its f smallest and f largest values."""

    rule: Literal["trimmed_mean"] = "trimmed_mean"
    beyond: ClassVar[int] = 1
    condition: ClassVar[str] = "more than 2f"


class KrumScoringRule(CountingRule):
    """Base of the rules that go by Krum's scores."""

    beyond: ClassVar[int] = 3
    condition: ClassVar[str] = "at least 2f + 3"


class KrumRule(KrumScoringRule):
    """The one update that is nearest to its n - f - 2 nearest others."""

    rule: Literal["krum"] = "krum"


class MultiKrumRule(KrumScoringRule):
    """The mean, weighted by n_k, of the updates with the best Krum scores."""

    rule: Literal["multi_krum"] = "multi_krum"
    keep: Count | None = Field(
        default=None, description="Number of updates to keep; n - f if null, the maximum."
    )

    def problems(self, facts: Facts) -> list[Problem]:
        """Returns that of every such rule, or that more updates are to be kept than there may be."""
        found = super().problems(facts)
        if found or facts.sampled is None or self.keep is None:
            return found
        most = facts.sampled - self.hostile_among(facts.sampled)
        if self.keep <= most:
            return []
        return [
            Problem(
                "method.aggregation.keep",
                f"must be at most {most}, n - f, not {self.keep}",
                code="out_of_range",
            )
        ]


class NormClippingRule(RobustRule):
    """The mean, weighted by n_k, of changes none of which is longer than those of the past."""

    rule: Literal["norm_clipping"] = "norm_clipping"
    multiple: Annotated[float, Field(ge=1.0)] = Field(
        default=2.0, description="Maximum norm of an update in multiples of the median norm of past rounds."
    )
    rounds: Count = Field(default=10, description="Number of past rounds that count.")


class CosineRule(RobustRule):
    """The mean, weighted by n_k, of the changes that point where most do."""

    rule: Literal["cosine"] = "cosine"
    threshold: Annotated[float, Field(ge=-1.0, lt=1.0)] = Field(
        default=0.0,
        description="Minimum cosine between an update and the sum of all normalized updates.",
    )


Aggregation: TypeAlias = (
    MeanRule | MedianRule | TrimmedMeanRule | KrumRule | MultiKrumRule | NormClippingRule | CosineRule
)
