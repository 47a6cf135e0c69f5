"""One site that lies to an honest server: the others have their sum, without it or with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from secure_federation import FIVE, NEXT, SITES, SUBJECT, Federation, equal
from support import refused

from fedstrata.privacy.identity import Identity
from fedstrata.privacy.secure_sum import client as secure_client
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.messages import KeyBundle, ReleasedShares, Sharers
from fedstrata.privacy.secure_sum.refusals import SharesDoNotFit, TooFewSites, TranscriptMismatch
from fedstrata.privacy.secure_sum.server import left_out
from fedstrata.privacy.secure_sum.shares import SECRET_BYTES, split
from fedstrata.privacy.secure_sum.transcript import signed_keys

LIAR = FIVE[2]
HONEST = tuple(site for site in FIVE if site != LIAR)


def lying(federation: Federation, name: str, change: Callable[[Any], Any]) -> None:
    own = federation.clients[LIAR]
    answer = getattr(own, name)
    setattr(own, name, lambda said: change(answer(said)))


def spoilt(entries: Any, field: str, count: int, size: int) -> Any:
    """Returns the first entries with what is in them made up."""
    bad = [each.model_copy(update={field: secrets.token_hex(size)}) for each in entries[:count]]
    return (*bad, *entries[count:])


@pytest.mark.parametrize(("count", "left"), [(4, HONEST), (3, HONEST), (2, HONEST), (1, FIVE)])
def test_who_garbles_most_of_its_shares_is_left_out(
    federation: Federation, count: int, left: tuple[str, ...]
) -> None:
    """One costs neither its sender nor its receiver anything: who of the two lies nobody else can tell."""
    garble = lambda sent: sent.model_copy(update={"shares": spoilt(sent.shares, "sealed", count, 92)})  # noqa: E731
    lying(federation, "shares", garble)
    assert equal(federation.run(), left)


def test_who_says_that_it_can_open_no_share_loses_nothing_for_the_others(federation: Federation) -> None:
    lying(federation, "receive", lambda opened: opened.model_copy(update={"unopened": HONEST}))
    assert equal(federation.run(), FIVE)


def test_shares_that_are_none_are_not_delivered(federation: Federation) -> None:
    lying(federation, "shares", lambda sent: sent.model_copy(update={"shares": sent.shares[:-1]}))
    assert equal(federation.run(), HONEST)
    assert list(federation.unusable) == [LIAR]


@pytest.mark.parametrize("field", ["agreed", "model", "plan"])
def test_a_site_with_other_settings_or_model_is_found_before_anybody_masks(
    field: str, tmp_path: Path
) -> None:
    """It may be an honest one; with its masks in it the sum of the others would be none."""
    federation = Federation(FIVE, tmp_path / "sum", subjects={LIAR: replace(SUBJECT, **{field: "cc" * 32})})
    assert equal(federation.run(), HONEST)
    assert isinstance(federation.unusable[LIAR], TranscriptMismatch)


def test_sites_of_which_no_group_is_large_enough_are_all_named(tmp_path: Path) -> None:
    other = replace(SUBJECT, model="cc" * 32)
    federation = Federation(FIVE, tmp_path / "sum", subjects={FIVE[0]: other, FIVE[1]: other})
    with refused(
        TranscriptMismatch,
        "transcript_mismatch",
        values=[f"{FIVE[0]}, {FIVE[1]} | {FIVE[2]}, {FIVE[3]}, {FIVE[4]}"],
    ):
        federation.run()


@pytest.mark.parametrize("what", ["transcript", "signature"])
def test_who_signs_something_else_counts_and_keeps_nobody_from_the_sum(
    federation: Federation, what: str
) -> None:
    """A signature of the right transcript that is none the server cannot tell; the sites do."""
    size = {"transcript": 32, "signature": 64}[what]
    lying(federation, "sign", lambda said: said.model_copy(update={what: secrets.token_hex(size)}))
    unmasking = federation.proven()
    assert equal(federation.unmask(unmasking, lost=(LIAR,)), FIVE)


@pytest.mark.parametrize("field", ["self_masks", "mask_keys"])
@pytest.mark.parametrize("count", [1, 5])
def test_false_shares_that_one_site_releases_are_done_without(tmp_path: Path, field: str, count: int) -> None:
    sites = SITES[:7]
    federation = Federation(sites, tmp_path / "sum")
    change = lambda said: said.model_copy(update={field: spoilt(getattr(said, field), "share", count, 32)})  # noqa: E731
    lying(federation, "unmask", change)
    unmasking = federation.proven({"input": sites[6:]})
    assert equal(federation.unmask(unmasking), sites[:6])
    assert unmasking.false == {LIAR}


def test_a_false_share_among_as_many_as_are_needed_names_nobody(federation: Federation) -> None:
    """Whether who dealt it lies or who released it, one more share would tell, and there is none."""
    lying(
        federation,
        "unmask",
        lambda said: said.model_copy(update={"self_masks": spoilt(said.self_masks, "share", 1, 32)}),
    )
    unmasking = federation.proven()
    with refused(SharesDoNotFit, "shares_do_not_fit", values=[repr(FIVE[0])]) as caught:
        federation.unmask(unmasking, lost=FIVE[4:])
    assert isinstance(caught.value, SharesDoNotFit)
    assert caught.value.dealer is None
    unmasking.take(federation.released_by(FIVE[4], unmasking))
    assert equal(unmasking.finish(), FIVE), "the fifth share makes up for the false one"


@pytest.mark.parametrize("lost", [(), (LIAR,)], ids=["its own mask", "its mask key"])
def test_who_deals_shares_of_other_secrets_is_named(
    federation: Federation, lost: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That sum is lost, and nobody could have seen it before; the next is made without it."""
    shares = federation.clients[LIAR].shares

    def false(roster: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(
                secure_client, "split", lambda _, *of: split(secrets.token_bytes(SECRET_BYTES), *of)
            )
            return shares(roster)

    federation.clients[LIAR].shares = false  # type: ignore[method-assign]
    unmasking = federation.proven({"input": lost})
    with pytest.raises(SharesDoNotFit) as caught:
        federation.unmask(unmasking)
    assert caught.value.dealer == (LIAR if not lost else None), "of four shares none can be left out"


@pytest.mark.parametrize(
    ("accused_by", "sites", "out"),
    [
        ({"b": ("a",), "c": ("a",), "d": ("a",), "a": ()}, 4, {"a"}),
        ({"a": ("b", "c", "d")}, 4, set()),
        ({"a": ("b",), "b": ("a",)}, 4, set()),
        ({"a": ("b", "b", "b")}, 4, set()),
        ({"a": ("g",), "b": ("g",)}, 7, set()),
        ({"a": ("g",), "b": ("g",), "c": ("g",)}, 7, {"g"}),
        ({"a": ("b",)}, 3, set()),
        ({"a": ("b",), "c": ("b",)}, 3, {"b"}),
    ],
)
def test_whom_fewer_accuse_than_may_lie_stays(
    accused_by: dict[str, tuple[str, ...]], sites: int, out: set[str]
) -> None:
    assert left_out(accused_by, sites) == out


@given(st.integers(4, 9), st.data())
def test_one_site_never_convicts_another(count: int, data: st.DataObject) -> None:
    sites = SITES[:count]
    liar = data.draw(st.sampled_from(sites))
    said = {liar: data.draw(st.lists(st.sampled_from(sites)).map(tuple))}
    for site in sites:
        if site != liar and data.draw(st.booleans()):
            said[site] = (liar,)
    assert left_out(said, count) <= {liar}


def forged(bundle: KeyBundle) -> KeyBundle:
    return bundle.model_copy(update={"signature": secrets.token_hex(64)})


def of_another_identity(bundle: KeyBundle) -> KeyBundle:
    stranger = Identity(Ed25519PrivateKey.generate())
    return bundle.model_copy(update={"signature": stranger.sign(signed_keys(bundle)).hex()})


@pytest.mark.parametrize("spoil", [forged, of_another_identity])
def test_all_honest_sites_name_who_sent_false_keys(
    federation: Federation, spoil: Callable[[KeyBundle], KeyBundle], released: list[ReleasedShares]
) -> None:
    own = federation.clients[LIAR]
    keys = own.keys
    own.keys = lambda: spoil(keys())  # type: ignore[method-assign]
    roster = federation.keys()
    sent = {site: federation.clients[site].shares(roster) for site in HONEST}
    assert {each.distrusted for each in sent.values()} == {(LIAR,)}
    assert left_out({site: each.distrusted for site, each in sent.items()}, 5) == {LIAR}
    again = Federation(HONEST, federation.folder, NEXT, federation.guards, known=FIVE)
    assert equal(again.run(), HONEST)


def test_too_few_are_left_to_mask(tmp_path: Path) -> None:
    federation = Federation(SITES[:3], tmp_path / "sum")
    delivered = federation.shares(federation.keys())
    with refused(TooFewSites, "too_few_sites", values=["3 sites", "2 sent"]):
        federation.delivery(delivered, lost=SITES[:1])
    client: SumClient = federation.clients[SITES[1]]
    with pytest.raises(TooFewSites):
        client.mask(Sharers.model_construct(sum=federation.name, sites=SITES[1:3]), [])
