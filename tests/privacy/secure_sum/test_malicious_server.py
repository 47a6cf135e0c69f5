"""A server that lies once it has a sum: each script ends in its named refusal, and no share has left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from secure_federation import FIVE, NAME, NEXT, SUBJECT, Federation, equal
from support import refused

from fedstrata.core.errors import FrameError
from fedstrata.privacy.secure_sum.messages import (
    ConsistencyProof,
    ConsistencySignature,
    ReleasedShares,
    SumName,
    Survivors,
)
from fedstrata.privacy.secure_sum.refusals import (
    AlreadyReleased,
    AttemptNotHigher,
    BothShares,
    OutOfOrder,
    RoundNotNew,
    TooFewSignatures,
    TooFewSites,
    TranscriptMismatch,
    WrongSum,
)
from fedstrata.privacy.secure_sum.release_guard import ReleaseGuard

VICTIM, PEER = FIVE[0], FIVE[1]


def survivors_of(*sites: str) -> Survivors:
    return Survivors(sum=NAME, sites=tuple(sorted(sites)))


def proof_of(*signatures: ConsistencySignature) -> ConsistencyProof:
    ordered = tuple(sorted(signatures, key=lambda each: each.site))
    return ConsistencyProof(sum=signatures[0].sum, signatures=ordered)


def signed(
    federation: Federation, survivors: Survivors, sites: tuple[str, ...]
) -> list[ConsistencySignature]:
    return [federation.clients[site].sign(survivors) for site in sites]


def require_unreleased(guards: Mapping[str, ReleaseGuard]) -> None:
    """The victim has not recorded that a share left: it releases the same with other sites."""
    guards[VICTIM].begin(NEXT)
    guards[VICTIM].release(NEXT, SUBJECT.plan, FIVE[:4])


@pytest.mark.claim("security_review#other-rosters")
@pytest.mark.claim("security_review#both-shares")
def test_two_sets_of_survivors_give_no_share(
    federation: Federation, released: list[ReleasedShares], guards: Mapping[str, ReleaseGuard]
) -> None:
    federation.masked_sum()
    one, other = survivors_of(*FIVE), survivors_of(*FIVE[:4])
    first = signed(federation, one, FIVE[:3])
    second = signed(federation, other, FIVE[3:4])
    with refused(TranscriptMismatch, "transcript_mismatch", values=[repr(FIVE[3]), repr(VICTIM)]):
        federation.clients[VICTIM].unmask(proof_of(*first, *second))
    with refused(TooFewSignatures, "too_few_signatures", values=["3 sites", "4 have"]):
        federation.clients[VICTIM].unmask(proof_of(*first))
    with pytest.raises(TranscriptMismatch):
        federation.clients[FIVE[3]].unmask(proof_of(*first, *second))
    assert not released
    require_unreleased(guards)


@pytest.mark.claim("security_review#both-shares")
def test_both_shares_of_a_site_never_leave(federation: Federation, released: list[ReleasedShares]) -> None:
    unmasking = federation.masked_sum()
    federation.consistency(unmasking)
    with refused(BothShares, "would_reveal", values=[repr(VICTIM)]):
        federation.clients[VICTIM].sign(survivors_of(*FIVE[:4]))
    assert equal(federation.unmask(unmasking), FIVE)
    count = len(released)
    with pytest.raises(BothShares):
        federation.clients[VICTIM].sign(survivors_of(*FIVE[:4]))
    assert unmasking.proof is not None
    for site in FIVE:
        assert federation.clients[site].unmask(unmasking.proof) in released[:count], "the same, and no others"
    for each in released:
        mine = [share.site for share in (*each.self_masks, *each.mask_keys)]
        assert sorted(mine) == list(FIVE)


@pytest.mark.claim("security_review#replayed-keys")
def test_a_replayed_signature_is_none(
    tmp_path: Path, released: list[ReleasedShares], guards: Mapping[str, ReleaseGuard]
) -> None:
    earlier = Federation(FIVE, tmp_path / "earlier", guards=guards)
    earlier.masked_sum()
    old = signed(earlier, survivors_of(*FIVE), FIVE)
    later = Federation(FIVE, tmp_path / "later", NEXT, guards)
    later.masked_sum()
    now = Survivors(sum=NEXT, sites=FIVE)
    new = signed(later, now, FIVE)
    replayed = [each.model_copy(update={"sum": NEXT}) for each in old]
    renamed = [
        each.model_copy(update={"transcript": right.transcript})
        for each, right in zip(replayed, new, strict=True)
    ]
    for forged in (replayed, renamed, [new[0], *renamed[1:]]):
        with pytest.raises(TranscriptMismatch):
            later.clients[VICTIM].unmask(proof_of(*forged))
    another = [each.model_copy(update={"signature": new[0].signature}) for each in new]
    with pytest.raises(TranscriptMismatch):
        later.clients[VICTIM].unmask(proof_of(*another))
    with pytest.raises(WrongSum):
        later.clients[VICTIM].unmask(proof_of(*old))
    assert not released


def test_enough_signatures_of_others_are_not_enough_without_ones_own(
    federation: Federation, released: list[ReleasedShares]
) -> None:
    federation.masked_sum()
    others = signed(federation, survivors_of(*FIVE), FIVE)[1:]
    with pytest.raises(TooFewSignatures):
        federation.clients[VICTIM].unmask(proof_of(*others))
    assert not released


@pytest.mark.claim("security_review#other-rosters")
@pytest.mark.parametrize("field", ["agreed", "model", "plan"])
def test_split_settings_a_split_model_or_plan_are_found_before_a_share_leaves(
    field: str, tmp_path: Path, released: list[ReleasedShares], guards: Mapping[str, ReleaseGuard]
) -> None:
    subjects = {VICTIM: replace(SUBJECT, **{field: "cc" * 32})}
    federation = Federation(FIVE, tmp_path / "sum", guards=guards, subjects=subjects)
    federation.server.unusable = lambda sent: {}  # type: ignore[method-assign] # it does not look
    federation.masked_sum()
    signatures = signed(federation, survivors_of(*FIVE), FIVE)
    with pytest.raises(TranscriptMismatch):
        federation.clients[VICTIM].unmask(proof_of(*signatures))
    for site in FIVE[1:4]:
        with pytest.raises(TranscriptMismatch):
            federation.clients[site].unmask(proof_of(*signatures[:4]))
    with pytest.raises(TranscriptMismatch):
        federation.clients[VICTIM].unmask(proof_of(*signatures[:2]))
    with pytest.raises(TooFewSignatures):
        federation.clients[VICTIM].unmask(proof_of(*signatures[:1]))
    assert not released
    require_unreleased(guards)


@pytest.mark.claim("security_review#few-sites")
def test_too_few_survivors_are_not_signed(
    tmp_path: Path, released: list[ReleasedShares], guards: Mapping[str, ReleaseGuard]
) -> None:
    federation = Federation(FIVE, tmp_path / "sum", guards=guards, minimum=5)
    federation.masked_sum()
    with refused(TooFewSites, "too_few_sites", values=["5 sites", "4 sent"]):
        federation.clients[VICTIM].sign(survivors_of(*FIVE[:4]))
    for wrong in (survivors_of(*FIVE[1:], "stranger"), survivors_of(*FIVE, "stranger")):
        with pytest.raises(WrongSum):
            federation.clients[VICTIM].sign(wrong)
    with pytest.raises(OutOfOrder):
        federation.clients[VICTIM].unmask(proof_of(federation.clients[PEER].sign(survivors_of(*FIVE))))
    assert not released


def test_three_survivors_are_too_few_for_a_threshold_of_four(federation: Federation) -> None:
    federation.masked_sum()
    with pytest.raises(TooFewSites):
        federation.clients[VICTIM].sign(survivors_of(*FIVE[:3]))


OTHER_NAMES: list[dict[str, Any]] = [
    {"attempt": 1},
    {"round": 4},
    {"handler": "other"},
    {"call": 1},
    {"run": "b"},
]


@pytest.mark.parametrize(
    ("lost", "change"),
    [
        pytest.param(
            {exchange: FIVE[4:]},
            change,
            marks=pytest.mark.slow if change in known else (),
            id=f"{exchange}-{change}",
        )
        for exchange, known in (("keys", OTHER_NAMES[1:]), ("input", []))
        for change in OTHER_NAMES
    ],
)
def test_the_same_without_one_site_is_refused_under_any_name(
    lost: Mapping[str, tuple[str, ...]],
    change: dict[str, Any],
    federation: Federation,
    tmp_path: Path,
    released: list[ReleasedShares],
) -> None:
    """A server claims a crash, another round or another run: the difference would be the fifth's input."""
    assert equal(federation.run(), FIVE)
    count, name = len(released), NAME.model_copy(update=change)
    again = Federation(FIVE, tmp_path / "again", name, federation.guards)
    unmasking = again.masked_sum(lost)
    again.consistency(unmasking)
    with pytest.raises(AlreadyReleased):
        again.unmask(unmasking)
    assert len(released) == count


@pytest.mark.parametrize("change", OTHER_NAMES, ids=str)
def test_the_same_without_one_site_is_refused_before_anything_is_masked(
    change: dict[str, Any], federation: Federation, tmp_path: Path
) -> None:
    federation.run()
    name = NAME.model_copy(update=change)
    again = Federation(FIVE[:4], tmp_path / "again", name, federation.guards, known=FIVE)
    sharers = again.delivery(again.shares(again.keys()))
    with pytest.raises(AlreadyReleased):
        again.clients[VICTIM].require_new(SUBJECT.plan, sharers)


def test_a_sum_is_of_what_the_site_recognises_and_not_of_the_plan_s_name_alone(
    federation: Federation, tmp_path: Path, released: list[ReleasedShares]
) -> None:
    """The terms of a plan have the sum's name in them; what a site trains on has not."""
    content, rest = "ee" * 32, {FIVE[4]: ReleaseGuard(tmp_path / "fifth.sqlite", FIVE[4])}
    sharers = federation.delivery(federation.shares(federation.keys()))
    federation.clients[VICTIM].require_new(content, sharers)
    unmasking = federation.inputs(sharers)
    federation.consistency(unmasking)
    federation.unmask(unmasking)
    count, other = len(released), replace(SUBJECT, plan="dd" * 32)
    later = Federation(
        FIVE,
        tmp_path / "later",
        NAME.model_copy(update={"round": 4}),
        {**federation.guards, **rest},
        subject=other,
    )
    sharers = later.delivery(later.shares(later.keys()))
    later.clients[VICTIM].require_new(content, sharers)
    unmasking = later.inputs(sharers, lost=FIVE[3:4])
    later.consistency(unmasking)
    with pytest.raises(AlreadyReleased):
        later.unmask(unmasking)
    assert len(released) == count


@pytest.mark.parametrize("change", OTHER_NAMES, ids=str)
def test_the_same_with_the_same_sites_may_be_summed_again(
    change: dict[str, Any], federation: Federation, tmp_path: Path
) -> None:
    federation.run()
    name = SumName.model_validate({**NAME.model_dump(), **change})
    assert equal(Federation(FIVE, tmp_path / "next", name, federation.guards).run(), FIVE)


@pytest.mark.parametrize("change", OTHER_NAMES[1:], ids=str)
def test_something_else_may_be_summed_with_fewer_sites(
    change: dict[str, Any], federation: Federation, tmp_path: Path
) -> None:
    federation.run()
    name, other = NAME.model_copy(update=change), replace(SUBJECT, plan="dd" * 32)
    later = Federation(FIVE, tmp_path / "next", name, federation.guards, subject=other)
    assert equal(later.run({"input": FIVE[4:]}), FIVE[:4])


def test_something_else_under_a_released_name_is_refused(
    federation: Federation, tmp_path: Path, released: list[ReleasedShares]
) -> None:
    federation.run()
    count, other = len(released), replace(SUBJECT, plan="dd" * 32)
    again = Federation(FIVE, tmp_path / "again", NEXT, federation.guards, subject=other)
    with pytest.raises(AlreadyReleased):
        again.run()
    assert len(released) == count


def test_an_earlier_round_does_not_begin(federation: Federation, tmp_path: Path) -> None:
    federation.run()
    earlier = NAME.model_copy(update={"round": NAME.round - 1, "attempt": 9})
    with pytest.raises(RoundNotNew):
        Federation(FIVE, tmp_path / "earlier", earlier, federation.guards).keys()


def test_an_attempt_that_is_not_higher_is_refused(federation: Federation, tmp_path: Path) -> None:
    federation.keys()
    Federation(FIVE, tmp_path / "two", NAME.model_copy(update={"attempt": 2}), federation.guards).keys()
    for attempt in (0, 1, 2):
        name = NAME.model_copy(update={"attempt": attempt})
        with refused(AttemptNotHigher, "attempt_not_higher", values=["attempt 2"]):
            Federation(FIVE, tmp_path / "again", name, federation.guards).keys()


def test_an_older_session_releases_nothing_once_a_newer_attempt_has_begun(
    federation: Federation, tmp_path: Path, released: list[ReleasedShares]
) -> None:
    unmasking = federation.masked_sum()
    federation.consistency(unmasking)
    newer = Federation(FIVE, tmp_path / "newer", NEXT, federation.guards)
    assert equal(newer.run(), FIVE)
    count = len(released)
    with refused(AttemptNotHigher, "attempt_over", values=[f"attempt {NEXT.attempt}"]):
        federation.unmask(unmasking)
    assert len(released) == count


def test_the_server_takes_one_answer_of_each_site_that_is_in_the_sum(federation: Federation) -> None:
    unmasking = federation.masked_sum({"input": FIVE[4:]})
    federation.consistency(unmasking)
    assert unmasking.proof is not None
    true = federation.clients[VICTIM].unmask(unmasking.proof)
    with pytest.raises(WrongSum):
        unmasking.take(true.model_copy(update={"site": FIVE[4]}))
    with pytest.raises(WrongSum):
        unmasking.take(true.model_copy(update={"sum": NEXT}))
    with refused(FrameError, "not_agreed", values=[repr(VICTIM)]):
        unmasking.take(true.model_copy(update={"mask_keys": true.self_masks}))
    with refused(OutOfOrder, "out_of_order", values=["0 sites", "4 have"]):
        unmasking.finish()
