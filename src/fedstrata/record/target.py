"""Time to accuracy: how long runs take to a score that all of them reach.

The literature on federated learning on devices compares methods by it (Oort, Lai et al. 2021; DropPEFT,
section 6: "we set the target accuracy as the highest achievable accuracy by DropPEFT and all baselines.
Otherwise, some may never reach that target"). Every seed has a target of its own, since seeds divide the
documents differently and one that is hard must not make the target of the others easy. The score is that of
the validation split, as every run recorded it round by round; the time is that of the simulated clock of
emulated devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedstrata.record.costs import Column

TARGETS: Mapping[str, Column] = {
    "seconds_to_target": Column("time to target", "lower", time=True),
    "rounds_to_target": Column("rounds to target", "lower"),
    "megabytes_to_target": Column("sent up and down to target, MB", "lower", travels=True),
}
"""The columns of time to accuracy."""
MEAN_OF_CLIENTS = "mean_client"
WHOSE: Mapping[str, str] = {"global": "global", MEAN_OF_CLIENTS: "mean"}
"""Whose score may be compared, the first that all runs have, and its name in `record.history.round_rows`."""

Curve: TypeAlias = Sequence[Mapping[str, Any]]
"""What a run had come to after each round, as `record.history.round_rows` gives it."""


@dataclass(frozen=True, slots=True)
class Target:
    """The scores that all compared runs of a seed reach.

    Attributes:
        of: Whose they are: `global`, or `mean_client` where not every run has the first: methods with a model
            for every client have only the second.
        falling: Whether less of them is better.
        by_seed: The score of each seed.
    """

    of: str
    falling: bool
    by_seed: Mapping[str, float]

    def reached(self, seed: int, curve: Curve) -> dict[str, float | None]:
        """Returns the columns of a run: when it first had the score of its seed; none if it never did."""
        sign, score, key = -1.0 if self.falling else 1.0, self.by_seed.get(str(seed)), WHOSE[self.of]
        for row in curve:
            if score is not None and row[key] is not None and sign * row[key] >= sign * score:
                return {
                    "seconds_to_target": row["simulated"],
                    "rounds_to_target": row["round"],
                    "megabytes_to_target": row["bytes"] / 1e6,
                }
        return dict.fromkeys(TARGETS)


def common_target(curves: Mapping[int, Sequence[Curve]], *, falling: bool) -> Target | None:
    """Returns, for each seed, the best score that every run reaches: the worst of the runs' own best ones.

    Args:
        curves: Those of the runs of each seed.
        falling: Whether less of the score is better.

    Returns:
        The target, of the same documents for all seeds. None if any run was never scored.
    """
    choose, worst = (min, max) if falling else (max, min)
    for of, key in WHOSE.items():
        scored = {
            str(seed): [[row[key] for row in curve if row[key] is not None] for curve in own]
            for seed, own in curves.items()
            if own
        }
        if scored and all(all(own) for own in scored.values()):
            return Target(of, falling, {seed: worst(map(choose, own)) for seed, own in scored.items()})
    return None
