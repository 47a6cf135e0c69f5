"""A server that lies once it has a sum: each script ends in its named refusal, and no share has left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from secure_federation import NAME, SITES, SUBJECT, Federation, equal

from fedstrata.core.errors import FrameError
from fedstrata.privacy.secure_sum.attempts import SumAttempts
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
    TooFewSignatures,
    TooFewSites,
    TranscriptMismatch,
    WrongSum,
)
from fedstrata.privacy.secure_sum.transcript import Subject

FIVE = SITES[:5]
VICTIM, PEER = FIVE[0], FIVE[1]
NEXT = NAME.model_copy(update={"attempt": 1})
OTHER_SUBJECT = Subject(model="cc" * 32, plan=SUBJECT.plan, shapes=SUBJECT.shapes)


def survivors_of(*sites: str) -> Survivors:
    return Survivors(sum=NAME, sites=tuple(sorted(sites)))


def proof_of(*signatures: ConsistencySignature) -> ConsistencyProof:
    ordered = tuple(sorted(signatures, key=lambda each: each.site))
    return ConsistencyProof(sum=signatures[0].sum, signatures=ordered)


def signed(
    federation: Federation, survivors: Survivors, sites: tuple[str, ...]
) -> list[ConsistencySignature]:
    return [federation.clients[site].sign(survivors) for site in sites]


def require_unreleased(attempts: Mapping[str, SumAttempts]) -> None:
    """The victim has not taken down that a share left: it begins another attempt."""
    attempts[VICTIM].begin(NEXT)


def test_two_sets_of_survivors_give_no_share(
    federation: Federation, released: list[ReleasedShares], attempts: Mapping[str, SumAttempts]
) -> None:
    federation.masked_sum()
    one, other = survivors_of(*FIVE), survivors_of(*FIVE[:4])
    first = signed(federation, one, FIVE[:3])
    second = signed(federation, other, FIVE[3:4])
    with pytest.raises(TranscriptMismatch, match="nothing was released"):
        federation.clients[VICTIM].unmask(proof_of(*first, *second))
    with pytest.raises(TooFewSignatures, match=r"3 sites have signed .* and 4 have to"):
        federation.clients[VICTIM].unmask(proof_of(*first))
    with pytest.raises(TranscriptMismatch):
        federation.clients[FIVE[3]].unmask(proof_of(*first, *second))
    assert not released
    require_unreleased(attempts)


def test_both_shares_of_a_site_never_leave(federation: Federation, released: list[ReleasedShares]) -> None:
    unmasking = federation.masked_sum()
    federation.consistency(unmasking)
    with pytest.raises(BothShares, match="both shares would leave"):
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


def test_a_replayed_signature_is_none(
    tmp_path: Path, released: list[ReleasedShares], attempts: Mapping[str, SumAttempts]
) -> None:
    earlier = Federation(FIVE, tmp_path / "earlier", attempts=attempts)
    earlier.masked_sum()
    old = signed(earlier, survivors_of(*FIVE), FIVE)
    later = Federation(FIVE, tmp_path / "later", NEXT, attempts)
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


@pytest.mark.parametrize("subject", [OTHER_SUBJECT, Subject(SUBJECT.model, "dd" * 32, SUBJECT.shapes)])
def test_a_split_model_or_plan_is_found_before_a_share_leaves(
    subject: Subject, tmp_path: Path, released: list[ReleasedShares], attempts: Mapping[str, SumAttempts]
) -> None:
    federation = Federation(FIVE, tmp_path / "sum", attempts=attempts, subjects={VICTIM: subject})
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
    require_unreleased(attempts)


def test_too_few_survivors_are_not_signed(
    tmp_path: Path, released: list[ReleasedShares], attempts: Mapping[str, SumAttempts]
) -> None:
    federation = Federation(FIVE, tmp_path / "sum", attempts=attempts, minimum=5)
    federation.masked_sum()
    with pytest.raises(TooFewSites, match="needs 5 sites here and 4 sent their updates"):
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


def test_a_crash_claimed_after_unmasking_gets_no_second_sum(
    federation: Federation, tmp_path: Path, released: list[ReleasedShares]
) -> None:
    assert equal(federation.run(), FIVE)
    count = len(released)
    for number, name in enumerate((NEXT, NAME, NAME.model_copy(update={"attempt": 7}))):
        again = Federation(FIVE[:4], tmp_path / f"again-{number}", name, federation.attempts)
        with pytest.raises(AlreadyReleased, match="the difference of two sums would be one site's input"):
            again.keys()
    assert len(released) == count


@pytest.mark.parametrize(
    "change", [{"round": 4}, {"handler": "train/weights"}, {"call": 1}, {"run": "another"}]
)
def test_other_sums_go_on_after_a_release(
    change: dict[str, Any], federation: Federation, tmp_path: Path
) -> None:
    federation.run()
    name = SumName.model_validate({**NAME.model_dump(), **change})
    assert equal(Federation(FIVE, tmp_path / "next", name, federation.attempts).run(), FIVE)


def test_an_attempt_that_is_not_higher_is_refused(federation: Federation, tmp_path: Path) -> None:
    federation.keys()
    Federation(FIVE, tmp_path / "two", NAME.model_copy(update={"attempt": 2}), federation.attempts).keys()
    for attempt in (0, 1, 2):
        name = NAME.model_copy(update={"attempt": attempt})
        with pytest.raises(AttemptNotHigher, match="must have a higher number"):
            Federation(FIVE, tmp_path / "again", name, federation.attempts).keys()


def test_an_older_session_releases_nothing_once_a_newer_attempt_has_begun(
    federation: Federation, tmp_path: Path, released: list[ReleasedShares]
) -> None:
    unmasking = federation.masked_sum()
    federation.consistency(unmasking)
    newer = Federation(FIVE, tmp_path / "newer", NEXT, federation.attempts)
    assert equal(newer.run(), FIVE)
    count = len(released)
    with pytest.raises(AttemptNotHigher, match="no share leaves"):
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
    with pytest.raises(FrameError, match="other sites than this sum needs"):
        unmasking.take(true.model_copy(update={"mask_keys": true.self_masks}))
    with pytest.raises(OutOfOrder, match="0 sites have released shares, and 4 have to"):
        unmasking.finish()
