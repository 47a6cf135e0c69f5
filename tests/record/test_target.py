"""Time to accuracy on histories made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.record.target import Point, Target, common_target, learning_curve


def rounds(scores: Sequence[float | None], seconds: float | None = 10.0, of: str = "global") -> list[Any]:
    """Rounds with these scores, none for one that was not scored, that each take so many seconds."""
    events: list[dict[str, Any]] = []
    for number, score in enumerate(scores, start=1):
        groups = {"global": None, "mean_client": None} | ({of: {"f1": score}} if score is not None else {})
        events.append({"round": number, "simulated_seconds": seconds, **groups})
    return events


def curve(
    scores: Sequence[float | None], seconds: float | None = 10.0, of: str = "global"
) -> tuple[Point, ...]:
    return learning_curve(rounds(scores, seconds, of), "f1")


def test_the_target_is_the_best_score_that_every_run_reaches() -> None:
    curves = [curve([0.1, 0.5, 0.7, 0.6]), curve([0.2, 0.6], seconds=40.0), curve([0.3, 0.8])]
    target = common_target(curves, falling=False)
    assert target == Target(0.6, "global", falling=False)
    assert [target.reached(own) for own in curves] == [
        {"seconds_to_target": 30.0, "rounds_to_target": 3},
        {"seconds_to_target": 80.0, "rounds_to_target": 2},
        {"seconds_to_target": 20.0, "rounds_to_target": 2},
    ]


def test_of_a_score_of_which_less_is_better_the_lowest_that_all_reach() -> None:
    curves = [curve([90.0, 40.0, 50.0]), curve([70.0, 60.0, 55.0])]
    target = common_target(curves, falling=True)
    assert target == Target(55.0, "global", falling=True)
    assert [target.reached(own)["rounds_to_target"] for own in curves] == [2, 3]


def test_who_never_reaches_it_has_none() -> None:
    target = Target(0.9, "global", falling=False)
    assert target.reached(curve([0.1, 0.8])) == {"seconds_to_target": None, "rounds_to_target": None}
    assert target.reached(()) == {"seconds_to_target": None, "rounds_to_target": None}


def test_rounds_that_were_not_scored_take_their_time() -> None:
    target = Target(0.5, "global", falling=False)
    assert target.reached(curve([None, None, 0.6])) == {"seconds_to_target": 30.0, "rounds_to_target": 3}


def test_without_emulated_devices_there_are_rounds_and_no_seconds() -> None:
    own = curve([0.2, 0.4], seconds=None)
    target = common_target([own], falling=False)
    assert target is not None
    assert target.reached(own) == {"seconds_to_target": None, "rounds_to_target": 2}


def test_like_is_compared_with_like_where_a_run_has_no_score_of_all_documents() -> None:
    """Methods with a model for every client have the mean of their clients; so have all others."""
    both = learning_curve(
        [{"round": 1, "global": {"f1": 0.9}, "mean_client": {"f1": 0.4}, "simulated_seconds": 1.0}], "f1"
    )
    target = common_target([both, curve([0.6], of="mean_client")], falling=False)
    assert target == Target(0.4, "mean_client", falling=False)


@pytest.mark.parametrize("curves", [[], [()], [curve([0.1]), curve([None, None])]])
def test_without_scores_there_is_no_target(curves: list[tuple[Point, ...]]) -> None:
    assert common_target(curves, falling=False) is None


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=1, max_size=4), st.booleans())
def test_every_run_reaches_the_target_and_none_better_is_reached_by_all(
    scores: list[list[float]], falling: bool
) -> None:
    target = common_target([curve(own) for own in scores], falling=falling)
    assert target is not None
    assert all(target.reached(curve(own))["rounds_to_target"] is not None for own in scores)
    sign = -1.0 if falling else 1.0
    better = [score for own in scores for score in own if sign * score > sign * target.score]
    for score in better:
        harder = Target(score, "global", falling)
        assert any(harder.reached(curve(own))["rounds_to_target"] is None for own in scores)
