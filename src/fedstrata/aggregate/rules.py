"""How updates become one: the rules a configuration can name, and how many updates each of them needs.

`mean` is the weighted mean. The others are for federations some of whose clients may send anything at all,
by accident or on purpose; `fedstrata.aggregate.robust` says what they do. A rule withstands only so many
hostile updates among those that arrive; what that takes is known before the run and checked there
(`fedstrata.engine.prepare`), and again on what arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator

from fedstrata.core.settings.base import Count, Positive, Settings
from fedstrata.core.settings.federation import share_of
from fedstrata.core.settings.run import MethodSettings

Hostile = Annotated[float, Field(ge=0.0, lt=0.5)]

OUTVOTE = 3
"""The least number of updates of which the majority can be right and one wrong."""


class MeanRule(Settings):
    """The mean, weighted by n_k; the server never sees a single update."""

    rule: Literal["mean"] = "mean"


class RobustRule(Settings):
    """Base of the rules that need every single update."""

    rule: str
    memory_gigabytes: Positive = Field(
        default=1.0,
        description="Memory for the updates of a round; what is more waits in files of a temporary folder.",
    )

    def hostile_among(self, clients: int) -> int:
        """Returns f, how many of a round's clients the rule takes to be hostile; 0 if it is not told."""
        return 0

    def needed(self, clients: int) -> int:
        """Returns how many updates must arrive of a round of so many clients."""
        return OUTVOTE

    @property
    def condition(self) -> str:
        """What `needed` stands for, in words."""
        return f"at least {OUTVOTE}, so that one can be outvoted"


class MedianRule(RobustRule):
    """The median of every coordinate."""

    rule: Literal["median"] = "median"


class CountingRule(RobustRule):
    """Base of the rules that are told how many clients may be hostile."""

    hostile: Hostile = Field(
        default=0.1, description="Share of a round's clients that may be hostile; f is rounded up."
    )

    def hostile_among(self, clients: int) -> int:
        """Returns f = ceil(hostile n)."""
        return share_of(self.hostile, clients)


class TrimmedMeanRule(CountingRule):
    """The mean of every coordinate without its f smallest and f largest values."""

    rule: Literal["trimmed_mean"] = "trimmed_mean"

    def needed(self, clients: int) -> int:
        """Returns the least n > 2f."""
        return 2 * self.hostile_among(clients) + 1

    @property
    def condition(self) -> str:
        """See `RobustRule.condition`."""
        return "more than 2f"


class KrumScoringRule(CountingRule):
    """Base of the rules that go by Krum's scores."""

    def needed(self, clients: int) -> int:
        """Returns the least n >= 2f + 3."""
        return 2 * self.hostile_among(clients) + 3

    @property
    def condition(self) -> str:
        """See `RobustRule.condition`."""
        return "at least 2f + 3"


class KrumRule(KrumScoringRule):
    """The one update that is nearest to its n - f - 2 nearest others."""

    rule: Literal["krum"] = "krum"


class MultiKrumRule(KrumScoringRule):
    """The mean, weighted by n_k, of the updates with the best Krum scores."""

    rule: Literal["multi_krum"] = "multi_krum"
    keep: Count | None = Field(
        default=None, description="How many updates are kept; n - f if null, which is the most allowed."
    )


class NormClippingRule(RobustRule):
    """The mean, weighted by n_k, of changes none of which is longer than those of the past."""

    rule: Literal["norm_clipping"] = "norm_clipping"
    multiple: Annotated[float, Field(ge=1.0)] = Field(
        default=2.0, description="Longest change allowed, in medians of the past rounds' norms."
    )
    rounds: Count = Field(default=10, description="Past rounds that count.")


class CosineRule(RobustRule):
    """The mean, weighted by n_k, of the changes that point where most do."""

    rule: Literal["cosine"] = "cosine"
    threshold: Annotated[float, Field(ge=-1.0, lt=1.0)] = Field(
        default=0.0,
        description="Least cosine of a change with the sum of all, each of which counts with length 1.",
    )


Aggregation: TypeAlias = (
    MeanRule | MedianRule | TrimmedMeanRule | KrumRule | MultiKrumRule | NormClippingRule | CosineRule
)


class AveragingSettings(MethodSettings):
    """Base of the settings of methods whose server half is FedAvg's: the rule in place of the mean."""

    aggregation: Aggregation = Field(default=MeanRule(), discriminator="rule")

    @field_validator("aggregation", mode="before")
    @classmethod
    def _mean_unless_named(cls, value: Any) -> Any:
        """Lets the bare name of a rule stand for the rule with its defaults."""
        if isinstance(value, str):
            return {"rule": value}
        return {"rule": "mean", **value} if isinstance(value, Mapping) else value
