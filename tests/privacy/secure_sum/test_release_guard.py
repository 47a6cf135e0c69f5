"""What was released is released again with the same sites alone, whatever a server calls it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from secure_federation import FIVE, NAME, SITES

from fedstrata.privacy.secure_sum.messages import SumName
from fedstrata.privacy.secure_sum.refusals import AlreadyReleased, AttemptNotHigher, RoundNotNew, WrongSum
from fedstrata.privacy.secure_sum.release_guard import ReleaseGuard

SITE, FOUR = SITES[0], SITES[:4]
CONTENT, OTHER = "aa" * 32, "bb" * 32
NAMES = [
    {"attempt": 1},
    {"round": NAME.round + 1},
    {"handler": "other"},
    {"call": 1},
    {"run": "another"},
    {"run": "another", "round": 1, "handler": "other", "call": 2},
]
"""How else a server may name a sum."""


def named(**change: Any) -> SumName:
    return NAME.model_copy(update=change)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "site.sqlite"


@pytest.fixture
def guard(database: Path) -> ReleaseGuard:
    return ReleaseGuard(database, SITE)


def release(guard: ReleaseGuard, name: SumName, content: str, survivors: Sequence[str]) -> None:
    """One sum from its beginning to its shares."""
    guard.begin(name)
    guard.release(name, content, survivors)


@pytest.mark.parametrize("change", NAMES, ids=str)
def test_the_same_is_released_again_with_the_same_sites(guard: ReleaseGuard, change: dict[str, Any]) -> None:
    release(guard, NAME, CONTENT, FIVE)
    guard.begin(named(**change))
    guard.require_same(named(**change), CONTENT, FIVE)
    guard.release(named(**change), CONTENT, FIVE[::-1])


@pytest.mark.claim("security_review#sum-again")
@pytest.mark.parametrize("change", NAMES, ids=str)
@pytest.mark.parametrize(
    ("survivors", "may_be_masked"),
    [(FOUR, False), (SITES[:6], True), (SITES[1:6], False), (SITES[:3], False)],
    ids=["fewer", "more", "other", "two fewer"],
)
def test_the_same_is_not_released_with_other_sites(
    guard: ReleaseGuard, survivors: Sequence[str], may_be_masked: bool, change: dict[str, Any]
) -> None:
    release(guard, NAME, CONTENT, FIVE)
    name = named(**change)
    guard.begin(name)
    if may_be_masked:  # the sixth may drop out yet
        guard.require_same(name, CONTENT, survivors)
    else:
        with pytest.raises(AlreadyReleased):
            guard.require_same(name, CONTENT, survivors)
    with pytest.raises(AlreadyReleased):
        guard.release(name, CONTENT, survivors)
    guard.release(name, CONTENT, FIVE)


def test_a_refused_release_is_not_recorded(guard: ReleaseGuard) -> None:
    release(guard, NAME, CONTENT, FIVE)
    later = named(round=NAME.round + 1)
    guard.begin(later)
    with pytest.raises(AlreadyReleased):
        guard.release(later, CONTENT, FOUR)
    guard.release(later, OTHER, FOUR)
    guard.begin(named(round=NAME.round, attempt=1))
    guard.release(named(round=NAME.round, attempt=1), CONTENT, FIVE)


@pytest.mark.parametrize("change", NAMES[1:], ids=str)
def test_something_else_is_released_with_any_sites(guard: ReleaseGuard, change: dict[str, Any]) -> None:
    release(guard, NAME, CONTENT, FIVE)
    release(guard, named(**change), OTHER, FOUR)


def test_something_else_under_a_released_name_is_refused(guard: ReleaseGuard) -> None:
    release(guard, NAME, CONTENT, FIVE)
    again = named(attempt=1)
    guard.begin(again)
    with pytest.raises(AlreadyReleased):
        guard.require_same(again, OTHER, FIVE)
    with pytest.raises(AlreadyReleased):
        guard.release(again, OTHER, FIVE)
    guard.release(again, CONTENT, FIVE)


@pytest.mark.claim("secure_aggregation#restored-server")
def test_a_round_below_the_last_released_one_of_a_run_does_not_begin(guard: ReleaseGuard) -> None:
    earlier, later = named(round=2), named(round=5)
    release(guard, earlier, CONTENT, FIVE)
    release(guard, later, OTHER, FIVE)
    for change in ({"round": 4}, {"round": 0}, {"round": 2, "call": 1}, {"round": 2, "handler": "other"}):
        with pytest.raises(RoundNotNew):
            guard.begin(named(**change, attempt=9))
    release(guard, named(round=2, attempt=1), CONTENT, FIVE)  # released before: with the same sites again
    release(guard, named(round=5, call=1), "cc" * 32, FOUR)
    release(guard, named(round=0, run="another"), "dd" * 32, FOUR)


def test_a_round_that_has_begun_and_was_not_released_keeps_no_other_from_beginning(
    guard: ReleaseGuard,
) -> None:
    guard.begin(named(round=9))
    release(guard, named(round=2), CONTENT, FIVE)


@pytest.mark.parametrize("change", NAMES, ids=str)
def test_a_site_may_allow_exactly_the_named_difference(
    database: Path, guard: ReleaseGuard, change: dict[str, Any]
) -> None:
    """Who is missing and who is more count alike: both updates would be known."""
    release(guard, NAME, CONTENT, FIVE)
    name = named(**change)
    guard.begin(name)
    for allowed, survivors in (
        (SITES[3:4], FOUR),
        (SITES[4:5], SITES[:3]),
        (SITES[4:5], (*FOUR, SITES[5])),
        (SITES[4:5], SITES[:6]),
        (SITES[1:4], FOUR),
    ):
        with pytest.raises(AlreadyReleased):
            ReleaseGuard(database, SITE, dict.fromkeys(allowed, "")).release(name, CONTENT, survivors)
    ReleaseGuard(database, SITE, dict.fromkeys([SITES[4]], "")).require_same(name, CONTENT, FOUR)
    ReleaseGuard(database, SITE, dict.fromkeys([SITES[4]], "")).release(name, CONTENT, FOUR)


def test_a_consent_is_of_one_model(database: Path, guard: ReleaseGuard) -> None:
    consents = {SITES[4]: ""}
    own = ReleaseGuard(database, SITE, consents)
    for number, content in ((1, CONTENT), (2, OTHER)):
        release(guard, named(round=NAME.round + number), content, FIVE)
    first, second = named(round=NAME.round + 3), named(round=NAME.round + 4)
    release(own, first, CONTENT, FOUR)
    assert consents == {SITES[4]: CONTENT}
    own.begin(second)
    with pytest.raises(AlreadyReleased):
        own.require_same(second, OTHER, FOUR)
    with pytest.raises(AlreadyReleased):
        own.release(second, OTHER, FOUR)
    own.begin(named(round=NAME.round + 3, attempt=1))
    own.release(named(round=NAME.round + 3, attempt=1), CONTENT, FOUR)


def test_every_earlier_release_counts_whatever_was_allowed_in_between(
    database: Path, guard: ReleaseGuard
) -> None:
    release(guard, NAME, CONTENT, FIVE)
    release(ReleaseGuard(database, SITE, dict.fromkeys([SITES[4]], "")), named(attempt=1), CONTENT, FOUR)
    guard.begin(named(attempt=2))
    for allowed in ((), SITES[3:4], SITES[4:5]):
        with pytest.raises(AlreadyReleased):
            ReleaseGuard(database, SITE, dict.fromkeys(allowed, "")).release(
                named(attempt=2), CONTENT, SITES[:3]
            )
    ReleaseGuard(database, SITE, dict.fromkeys([SITES[3], SITES[4]], "")).release(
        named(attempt=2), CONTENT, SITES[:3]
    )


def test_to_allow_a_site_does_not_allow_something_else_under_a_released_name(
    database: Path, guard: ReleaseGuard
) -> None:
    release(guard, NAME, CONTENT, FIVE)
    guard.begin(named(attempt=1))
    with pytest.raises(AlreadyReleased):
        ReleaseGuard(database, SITE, dict.fromkeys(FIVE, "")).release(named(attempt=1), OTHER, FIVE)


def test_the_clients_of_one_file_are_independent(database: Path, guard: ReleaseGuard) -> None:
    other = ReleaseGuard(database, SITES[1])
    release(guard, named(round=5), CONTENT, FIVE)
    guard.trained_on("train", CONTENT)
    release(other, named(round=4), CONTENT, FOUR)
    release(other, named(round=5), OTHER, FOUR)
    assert other.trained_on("upload", None) == ""
    with pytest.raises(AlreadyReleased):
        release(guard, named(round=6), CONTENT, FOUR)


def test_an_attempt_begins_once_and_in_order_also_after_a_release(guard: ReleaseGuard) -> None:
    guard.begin(named(attempt=2))
    guard.release(named(attempt=2), CONTENT, FIVE)
    for attempt in (0, 1, 2):
        with pytest.raises(AttemptNotHigher):
            guard.begin(named(attempt=attempt))
    guard.begin(named(attempt=3))
    with pytest.raises(AttemptNotHigher):
        guard.release(named(attempt=2), CONTENT, FIVE)
    guard.release(named(attempt=3), CONTENT, FIVE)


@pytest.mark.parametrize("attempt", [0, 2])
def test_shares_of_an_attempt_that_has_not_begun_do_not_leave(guard: ReleaseGuard, attempt: int) -> None:
    with pytest.raises(AttemptNotHigher):
        guard.release(NAME, CONTENT, FIVE)
    guard.begin(named(attempt=1))
    with pytest.raises(AttemptNotHigher):
        guard.release(named(attempt=attempt), CONTENT, FIVE)


def test_the_same_shares_leave_as_often_as_they_are_asked_for(guard: ReleaseGuard) -> None:
    release(guard, NAME, CONTENT, FIVE)
    guard.release(NAME, CONTENT, FIVE)


def test_a_plan_without_tensors_continues_from_the_last_ones(database: Path) -> None:
    assert ReleaseGuard(database, SITE).trained_on("upload", None) == ""
    assert ReleaseGuard(database, SITE).trained_on("train", CONTENT) == CONTENT
    assert ReleaseGuard(database, SITE).trained_on("upload", None) == CONTENT, (
        "also in a process that was started again"
    )
    assert ReleaseGuard(database, SITE).trained_on("train", OTHER) == OTHER
    assert ReleaseGuard(database, SITE).trained_on("upload", None) == OTHER


@pytest.mark.parametrize("first", [CONTENT, None], ids=["with", "without"])
def test_plans_of_a_handler_have_tensors_always_or_never(database: Path, first: str | None) -> None:
    """Or one without would train from the model as all have it, under the name of the tensors before it."""
    guard = ReleaseGuard(database, SITE)
    guard.trained_on("train", first)
    with pytest.raises(WrongSum):
        guard.trained_on("train", None if first else CONTENT)
    assert ReleaseGuard(database, SITES[1]).trained_on("train", None if first else CONTENT) is not None
