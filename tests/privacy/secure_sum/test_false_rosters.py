"""A server that lies of who takes part, or of what they sent: each script ends in its named refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_federation import (
    FIVE,
    IDENTITIES,
    NAME,
    NEXT,
    SITES,
    SUBJECT,
    Federation,
    equal,
    lock_of,
    ring_input,
)
from support import refused

from fedstrata.core.errors import FrameError
from fedstrata.privacy.identity import Identity
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.messages import KeyBundle, ReleasedShares, Roster, Sharers, Survivors
from fedstrata.privacy.secure_sum.refusals import (
    ForgedKeys,
    ForgedShares,
    OutOfOrder,
    ReplayedKeys,
    RosterChanged,
    SecureSumRefusal,
    TooFewSites,
    UnpinnedSite,
    WrongSum,
    WrongThreshold,
)
from fedstrata.privacy.secure_sum.release_guard import ReleaseGuard
from fedstrata.privacy.secure_sum.server import SumServer
from fedstrata.privacy.secure_sum.shares import threshold
from fedstrata.privacy.secure_sum.transcript import signed_keys

Script = Callable[[Roster], Roster]
VICTIM, PEER = FIVE[0], FIVE[1]


def with_bundle(roster: Roster, bundle: KeyBundle) -> Roster:
    bundles = [bundle if each.site == bundle.site else each for each in roster.bundles]
    if bundle.site not in roster.sites:
        bundles.append(bundle)
    return with_bundles(roster, bundles)


def with_bundles(roster: Roster, bundles: list[KeyBundle], needed: int | None = None) -> Roster:
    ordered = tuple(sorted(bundles, key=lambda each: each.site))
    return Roster(sum=roster.sum, threshold=needed or roster.threshold, bundles=ordered)


def signed_by(identity: Identity, bundle: KeyBundle, **changed: Any) -> KeyBundle:
    fields = {**bundle.model_dump(mode="json"), **changed}
    return KeyBundle.model_validate({**fields, "signature": identity.sign(signed_keys(fields)).hex()})


def changed(site: str, **fields: str) -> Script:
    """A server puts keys of its own into what a site has signed."""
    return lambda roster: with_bundle(roster, roster.bundle(site).model_copy(update=fields))


def signed_anew(site: str, identity: Identity | None = None, **fields: Any) -> Script:
    """What a site has not signed is signed by another, or by the site itself where it is with the server."""
    signer = identity or IDENTITIES[site]
    return lambda roster: with_bundle(roster, signed_by(signer, roster.bundle(site), **fields))


def sybils(roster: Roster) -> Roster:
    """The victim among sites that the server has made up."""
    made_up = [signed_by(NOBODY, roster.bundle(PEER), site=f"sybil-{number}") for number in range(4)]
    return with_bundles(roster, [roster.bundle(VICTIM), *made_up])


def keys_renamed_after_signing(roster: Roster) -> Roster:
    """Replayed, and named as if they were of this sum."""
    replayed = replayed_keys(roster).bundle(PEER)
    return with_bundle(roster, replayed.model_copy(update={"sum": roster.sum}))


def with_threshold(needed: int) -> Script:
    return lambda roster: with_bundles(roster, list(roster.bundles), needed)


def of_sites(*sites: str) -> Script:
    return lambda roster: with_bundles(roster, [each for each in roster.bundles if each.site in sites])


NOBODY = Identity(Ed25519PrivateKey.generate())
MINE = {"mask_key": "42" * 32}
EARLIER = NAME.model_copy(update={"round": NAME.round - 1}).model_dump()
replayed_keys = signed_anew(PEER, sum=EARLIER)
SCRIPTS: dict[str, tuple[Script, type[SecureSumRefusal], str]] = {
    "forged key": (changed(PEER, **MINE), ForgedKeys, "not_signed"),
    "forged share key": (changed(PEER, share_key="42" * 32), ForgedKeys, "not_signed"),
    "key signed by another": (signed_anew(PEER, IDENTITIES[FIVE[2]], **MINE), ForgedKeys, "not_signed"),
    "new identity": (signed_anew(PEER, NOBODY), ForgedKeys, "not_signed"),
    "key of low order": (signed_anew(PEER, share_key="00" * 32), ForgedKeys, "weak_key"),
    "sybils": (sybils, UnpinnedSite, "not_pinned"),
    "lowered threshold": (with_threshold(threshold(5) - 1), WrongThreshold, "wrong_threshold"),
    "threshold of more than there are": (with_threshold(6), WrongThreshold, "wrong_threshold"),
    "replayed keys": (replayed_keys, ReplayedKeys, "other_keys"),
    "keys renamed after signing": (keys_renamed_after_signing, ForgedKeys, "not_signed"),
    "without the victim": (of_sites(*FIVE[1:]), RosterChanged, "roster_changed"),
    "other keys of the victim": (signed_anew(VICTIM, **MINE), RosterChanged, "roster_changed"),
    "roster of another sum": (lambda own: own.model_copy(update={"sum": NEXT}), WrongSum, "wrong_sum"),
    "too few": (of_sites(*FIVE[:3]), TooFewSites, "too_few_sites"),
}
OF_SITES = (ForgedKeys, UnpinnedSite, ReplayedKeys)
"""Refusals of a site that an honest server may do without; any other is the end of the sum."""


@pytest.mark.claim("federation#not-in-the-lock")
@pytest.mark.claim("security_review#few-sites")
@pytest.mark.claim("security_review#forged-keys")
@pytest.mark.claim("security_review#replayed-keys")
@pytest.mark.claim("security_review#third-of-the-sites")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_roster_that_does_not_hide_is_refused(
    name: str, tmp_path: Path, guards: Mapping[str, ReleaseGuard]
) -> None:
    script, refusal, code = SCRIPTS[name]
    federation = Federation(FIVE, tmp_path / "sum", guards=guards, minimum=4)
    roster = federation.keys()
    victim = federation.clients[VICTIM]
    if refusal in OF_SITES:
        sent = victim.shares(script(roster))
        assert sent.shares == (), "nothing is shared"
        assert sent.distrusted == tuple(sorted(victim.refusals))
        assert {(type(each), each.code) for each in victim.refusals.values()} == {(refusal, code)}
    else:
        with refused(refusal, code):
            victim.shares(script(roster))
    with pytest.raises(OutOfOrder):
        victim.sign(Survivors(sum=NAME, sites=FIVE))
    assert len(victim.shares(roster).shares) == 4, "the true one is answered still"


SEVEN = SITES[:7]


def lying_of_the_number_of_sites(sites: Sequence[str], said: int, folder: Path) -> Federation:
    """A server that asks some of the sites alone, and takes the threshold from a number of its choice."""
    federation = Federation(sites, folder, known=SEVEN)
    federation.server = SumServer(NAME, SUBJECT, known=said)
    return federation


@pytest.mark.claim("security_review#third-of-the-sites")
@pytest.mark.parametrize(
    ("asked", "said", "refusal"),
    [
        (3, 3, TooFewSites),
        (4, 4, TooFewSites),
        (5, 5, WrongThreshold),
        (6, 5, None),
        (7, 5, None),
        (5, 7, None),
    ],
)
def test_the_threshold_follows_from_the_lock_of_each_site_and_not_from_the_roster(
    asked: int, said: int, refusal: type[Exception] | None, tmp_path: Path, released: list[ReleasedShares]
) -> None:
    """With two of seven sites on its side the server asks the victim and those two alone."""
    federation = lying_of_the_number_of_sites(SEVEN[:asked], said, tmp_path / "sum")
    if refusal is None:
        assert equal(federation.run(), SEVEN[:asked])
        return
    with pytest.raises(refusal):
        federation.run()
    assert not released


@pytest.mark.claim("security_review#third-of-the-sites")
@pytest.mark.parametrize("needed", range(3, 8))
def test_a_threshold_below_the_own_one_is_refused(needed: int, tmp_path: Path) -> None:
    """With t shares of n, sites that lie have to be 2t - n to unmask a single update."""
    federation = Federation(SEVEN, tmp_path / "sum")
    roster = federation.keys()
    victim, asked = federation.clients[VICTIM], with_bundles(roster, list(roster.bundles), needed)
    if needed < threshold(7):
        with pytest.raises(WrongThreshold):
            victim.shares(asked)
        with pytest.raises(OutOfOrder):
            victim.sign(Survivors(sum=NAME, sites=SEVEN))
    else:
        assert len(victim.shares(asked).shares) == 6


def test_a_higher_threshold_is_kept_to_the_end(tmp_path: Path) -> None:
    """A server that knows more sites than a lock has asks for more shares, and five of them it needs."""
    federation = Federation(FIVE, tmp_path / "sum")
    federation.server = SumServer(NAME, SUBJECT, known=7)
    unmasking = federation.proven()
    with pytest.raises(OutOfOrder):
        federation.unmask(unmasking, lost=FIVE[4:])
    unmasking.take(federation.released_by(FIVE[4], unmasking))
    assert equal(unmasking.finish(), FIVE)


@pytest.mark.claim("security_review#other-rosters")
def test_a_second_roster_is_refused(federation: Federation) -> None:
    roster = federation.keys()
    federation.clients[VICTIM].shares(roster)
    for again in (with_bundles(roster, list(roster.bundles[:4])), roster):
        with refused(RosterChanged, "second_roster", values=[VICTIM]):
            federation.clients[VICTIM].shares(again)


def test_a_site_that_its_own_lock_has_not_takes_no_part(federation: Federation) -> None:
    with refused(UnpinnedSite, "self_not_pinned", values=[VICTIM]):
        SumClient(NAME, VICTIM, IDENTITIES[PEER], lock_of(FIVE), SUBJECT, federation.guards[VICTIM])


@pytest.mark.claim("security_review#changed-shares")
@pytest.mark.parametrize(
    "spoil",
    [lambda own, other: "00" * 92, lambda own, other: other, lambda own, other: other[:2] + own[2:]],
    ids=["made", "moved", "changed"],
)
def test_a_share_that_the_server_made_or_moved_is_not_held(
    federation: Federation, spoil: Callable[[str, str], str]
) -> None:
    delivered = federation.shares(federation.keys())
    mine, victim = delivered[VICTIM], federation.clients[VICTIM]
    sealed = spoil(mine.shares[0].sealed, mine.shares[1].sealed)
    moved = (mine.shares[0].model_copy(update={"sealed": sealed}), *mine.shares[1:])
    delivered[VICTIM] = mine.model_copy(update={"shares": moved})
    unmasking = federation.inputs(federation.delivery(delivered))
    assert [type(each) for each in victim.refusals.values()] == [ForgedShares]
    federation.consistency(unmasking)
    released = federation.released_by(VICTIM, unmasking)
    assert [each.site for each in released.self_masks] == [VICTIM, *FIVE[2:]], "and none of its peer"


def test_shares_are_for_the_site_that_gets_them(federation: Federation) -> None:
    delivered = federation.shares(federation.keys())
    mine, victim = delivered[VICTIM], federation.clients[VICTIM]
    with pytest.raises(WrongSum):
        victim.receive(delivered[PEER])
    stranger = mine.shares[0].model_copy(update={"site": "stranger"})
    with pytest.raises(WrongSum):
        victim.receive(mine.model_copy(update={"shares": (*mine.shares, stranger)}))
    with pytest.raises(TooFewSites):
        victim.receive(mine.model_copy(update={"shares": mine.shares[:2]}))
    assert victim.receive(mine).unopened == ()
    with pytest.raises(OutOfOrder):
        victim.receive(mine)


@pytest.mark.claim("security_review#other-sharers")
def test_a_site_masks_with_those_that_have_sent_it_shares(federation: Federation) -> None:
    delivered = federation.shares(federation.keys())
    mine, victim = delivered[VICTIM], federation.clients[VICTIM]
    victim.receive(mine.model_copy(update={"shares": mine.shares[:3]}))
    for sites in (FIVE, FIVE[1:4], (*FIVE[:4], "stranger")):
        with pytest.raises(WrongSum):
            victim.mask(Sharers(sum=NAME, sites=sites), ring_input(0).items())
    with pytest.raises(TooFewSites):
        victim.mask(Sharers(sum=NAME, sites=FIVE[:3]), ring_input(0).items())
    with pytest.raises(WrongSum):
        victim.mask(Sharers(sum=NEXT, sites=FIVE[:4]), ring_input(0).items())
    assert len(dict(victim.mask(Sharers(sum=NAME, sites=FIVE[:4]), ring_input(0).items()))) == 3


def test_masks_are_used_once(federation: Federation) -> None:
    sharers = federation.delivery(federation.shares(federation.keys()))
    victim = federation.clients[VICTIM]
    next(victim.mask(sharers, ring_input(0).items()))
    with pytest.raises(OutOfOrder):
        victim.mask(sharers, ring_input(1).items())
    with refused(OutOfOrder, "out_of_order", values=["consistency"]):
        victim.sign(Survivors(sum=NAME, sites=FIVE))


@pytest.mark.parametrize("change", ["missing", "shape", "dtype", "order", "more"])
def test_an_input_is_what_was_agreed(federation: Federation, change: str) -> None:
    sharers = federation.delivery(federation.shares(federation.keys()))
    tensors = ring_input(0)
    if change == "missing":
        del tensors["empty"]
    elif change == "shape":
        tensors["b"] = tensors["b"].view(7, 1)
    elif change == "dtype":
        tensors["b"] = tensors["b"].long()
    elif change == "order":
        tensors = dict(reversed(tensors.items()))
    else:
        tensors["more"] = tensors["b"]
    with refused(FrameError, "too_long" if change == "more" else "wrong_shape"):
        list(federation.clients[VICTIM].mask(sharers, tensors.items()))
