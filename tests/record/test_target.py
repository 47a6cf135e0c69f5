"""Time to accuracy on histories made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.record.history import round_rows
from fedstrata.record.target import Curve, Target, common_target


def rounds(scores: Sequence[float | None], seconds: float | None = 10.0, of: str = "global") -> list[Any]:
    """Rounds with these scores, none for one that was not scored, that each take so many seconds."""
    events: list[dict[str, Any]] = []
    for number, score in enumerate(scores, start=1):
        groups = {"global": None, "mean_client": None} | ({of: {"f1": score}} if score is not None else {})
        exchanges = {
            "a": {"bytes_up": 10**6, "bytes_down": 2 * 10**6},
            "b": {"bytes_up": 0, "bytes_down": 10**6},
        }
        events.append(event(number, seconds, exchanges=exchanges, **groups))
    return events


def event(number: int, seconds: float | None, **facts: Any) -> dict[str, Any]:
    return {"round": number, "loss": 1.0, "seconds": 0.1, "simulated_seconds": seconds, **facts}


def curve(scores: Sequence[float | None], seconds: float | None = 10.0, of: str = "global") -> Curve:
    return round_rows(rounds(scores, seconds, of), "f1")


def both_scores() -> Curve:
    """One round, in which the clients' mean is below the score of all documents."""
    groups = {"global": {"f1": 0.9}, "mean_client": {"f1": 0.4}}
    return round_rows([event(1, 1.0, exchanges={}, **groups)], "f1")


def target_of(score: float, of: str = "global", *, falling: bool = False) -> Target:
    """The target of one seed, 3."""
    return Target(of, falling, {"3": score})


def target_to(curves: Sequence[Curve], *, falling: bool) -> Target | None:
    """What these runs of one seed, 3, all reach."""
    return common_target({3: curves}, falling=falling)


def test_every_seed_has_a_target_of_its_own() -> None:
    """The second is hard for one row; that makes nothing easier on the first."""
    curves = {0: [curve([0.4, 0.8]), curve([0.5, 0.9])], 1: [curve([0.1, 0.2]), curve([0.6, 0.7])], 2: []}
    assert common_target(curves, falling=False) == Target("global", False, {"0": 0.8, "1": 0.2})


def test_all_seeds_are_judged_by_the_same_documents() -> None:
    curves = {0: [curve([0.4, 0.8])], 1: [curve([0.3], of="mean_client")]}
    assert common_target(curves, falling=False) is None
    curves[0] = [both_scores()]
    assert common_target(curves, falling=False) == Target("mean_client", False, {"0": 0.4, "1": 0.3})


def test_the_target_is_the_best_score_that_every_run_reaches() -> None:
    curves = [curve([0.1, 0.5, 0.7, 0.6]), curve([0.2, 0.6], seconds=40.0), curve([0.3, 0.8])]
    target = target_to(curves, falling=False)
    assert target == target_of(0.6)
    assert [target.reached(3, own) for own in curves] == [
        {"seconds_to_target": 30.0, "rounds_to_target": 3, "megabytes_to_target": 12.0},
        {"seconds_to_target": 80.0, "rounds_to_target": 2, "megabytes_to_target": 8.0},
        {"seconds_to_target": 20.0, "rounds_to_target": 2, "megabytes_to_target": 8.0},
    ]


def test_who_never_reaches_it_has_none() -> None:
    target = target_of(0.9)
    never = dict.fromkeys(("seconds_to_target", "rounds_to_target", "megabytes_to_target"))
    assert target.reached(3, curve([0.1, 0.8])) == target.reached(3, ()) == never


def test_rounds_that_were_not_scored_take_their_time() -> None:
    reached = target_of(0.5).reached(3, curve([None, None, 0.6]))
    assert reached == {"seconds_to_target": 30.0, "rounds_to_target": 3, "megabytes_to_target": 12.0}


def test_like_is_compared_with_like_where_a_run_has_no_score_of_all_documents() -> None:
    """Methods with a model for every client have the mean of their clients; so have all others."""
    target = target_to([both_scores(), curve([0.6], of="mean_client")], falling=False)
    assert target == target_of(0.4, "mean_client")


@pytest.mark.parametrize("curves", [[], [()], [curve([0.1]), curve([None, None])]])
def test_without_scores_there_is_no_target(curves: list[Curve]) -> None:
    assert target_to(curves, falling=False) is None


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=1, max_size=4), st.booleans())
def test_every_run_reaches_the_target_and_none_better_is_reached_by_all(
    scores: list[list[float]], falling: bool
) -> None:
    target = target_to([curve(own) for own in scores], falling=falling)
    assert target is not None
    assert all(target.reached(3, curve(own))["rounds_to_target"] is not None for own in scores)
    sign = -1.0 if falling else 1.0
    better = [score for own in scores for score in own if sign * score > sign * target.by_seed["3"]]
    for score in better:
        harder = target_of(score, falling=falling)
        assert any(harder.reached(3, curve(own))["rounds_to_target"] is None for own in scores)
