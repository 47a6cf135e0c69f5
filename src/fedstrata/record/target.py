"""Time to accuracy: how long runs take to a score that all of them reach.

The literature on federated learning on devices compares methods by it (Oort, Lai et al. 2021; DropPEFT,
section 6: "we set the target accuracy as the highest achievable accuracy by DropPEFT and all baselines.
Otherwise, some may never reach that target"). Every seed has a target of its own, since seeds divide the
documents differently and one that is hard must not make the target of the others easy. The score is that of
the validation split, as every run recorded it round by round; the time is that of the simulated clock of
emulated devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstrata.record.costs import Column
from fedstrata.record.history import bytes_sent

TARGETS: Mapping[str, Column] = {
    "seconds_to_target": Column("time to target", "lower", time=True),
    "rounds_to_target": Column("rounds to target", "lower"),
    "megabytes_to_target": Column("sent to target, MB", "lower"),
}
"""The columns of time to accuracy."""
ALL_DOCUMENTS, MEAN_OF_CLIENTS = "global", "mean_client"


@dataclass(frozen=True, slots=True)
class Point:
    """What a run had come to after a round in which it was scored.

    Attributes:
        round: The round, counted from 1.
        scores: The score of all documents (`global`) and the mean of the clients' (`mean_client`); methods
            with a model for every client have only the second.
        seconds: What the rounds up to this one took on the simulated clock; none without emulated devices.
        megabytes: What had travelled by then, up and down over all clients.
    """

    round: int
    scores: Mapping[str, float]
    seconds: float | None
    megabytes: float


@dataclass(frozen=True, slots=True)
class Target:
    """The score that all compared runs of a seed reach.

    Attributes:
        score: The score.
        of: Whose it is: `global`, or `mean_client` where not every run has the first.
        falling: Whether less of it is better.
    """

    score: float
    of: str
    falling: bool

    def reached(self, curve: Sequence[Point]) -> dict[str, float | None]:
        """Returns the columns of a run: when it first had the score; none if it never did."""
        sign = -1.0 if self.falling else 1.0
        for point in curve:
            if self.of in point.scores and sign * point.scores[self.of] >= sign * self.score:
                return {
                    "seconds_to_target": point.seconds,
                    "rounds_to_target": point.round,
                    "megabytes_to_target": point.megabytes,
                }
        return dict.fromkeys(TARGETS)


def learning_curve(rounds: Sequence[Mapping[str, Any]], metric: str) -> tuple[Point, ...]:
    """Returns what a run scored, round by round.

    Args:
        rounds: Its `round` events, of committed rounds in order.
        metric: The score.
    """
    points, seconds = [], 0.0
    for event, sent in zip(rounds, bytes_sent(rounds), strict=True):
        own = event.get("simulated_seconds")
        seconds += own or 0.0
        groups = {name: event.get(name) or {} for name in (ALL_DOCUMENTS, MEAN_OF_CLIENTS)}
        scores = {name: float(group[metric]) for name, group in groups.items() if metric in group}
        if scores:
            points.append(Point(event["round"], scores, None if own is None else seconds, sent / 1e6))
    return tuple(points)


def common_targets(curves: Mapping[int, Sequence[Sequence[Point]]], *, falling: bool) -> dict[int, Target]:
    """Returns, for each seed, the best score that every run reaches: the worst of the runs' own best ones.

    Args:
        curves: The learning curves of the runs of each seed.
        falling: Whether less of the score is better.

    Returns:
        The targets by seed, all of the same documents. None if any run was never scored.
    """
    choose, worst = (min, max) if falling else (max, min)
    for group in (ALL_DOCUMENTS, MEAN_OF_CLIENTS):
        scored = {
            seed: [[point.scores[group] for point in curve if group in point.scores] for curve in own]
            for seed, own in curves.items()
            if own
        }
        if scored and all(all(own) for own in scored.values()):
            return {
                seed: Target(worst(choose(scores) for scores in own), group, falling)
                for seed, own in scored.items()
            }
    return {}
