"""Any t of n shares give the secret, no t - 1 do, and a share is for its receiver alone."""

from __future__ import annotations

import os
from itertools import combinations

import pytest
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from secure_federation import NAME
from support import fewer_examples, refused

from fedstrata.privacy.secure_sum.keys import public_half
from fedstrata.privacy.secure_sum.refusals import ForgedKeys, ForgedShares
from fedstrata.privacy.secure_sum.shares import combine, seal, split, threshold, unseal


@pytest.mark.parametrize(("sites", "needed"), [(3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (9, 7), (64, 43)])
def test_the_threshold_is_more_than_two_thirds(sites: int, needed: int) -> None:
    assert threshold(sites) == needed
    assert 2 * needed - sites > sites / 3 - 1


@pytest.mark.parametrize(
    ("sites", "needed"),
    [(sites, needed) for sites in (3, 4, 5, 6) for needed in range(threshold(sites), sites + 1)],
)
def test_every_subset_of_t_gives_the_secret_and_none_of_t_minus_1(sites: int, needed: int) -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, sites, needed)))
    for chosen in combinations(shares, needed):
        assert combine({place: shares[place] for place in chosen}, needed) == secret
    for chosen in combinations(shares, needed - 1):
        few = {place: shares[place] for place in chosen}
        with pytest.raises(ValueError, match=f"{needed - 1} shares"):
            combine(few, needed)
        half = Shamir.combine([(place + 1, share[:16]) for place, share in few.items()])
        assert half != secret[:16], "whoever goes round the check learns nothing"


@fewer_examples(10)
@given(secret=st.binary(min_size=32, max_size=32), sites=st.integers(3, 16), data=st.data())
def test_shares_are_those_of_another_library(secret: bytes, sites: int, data: st.DataObject) -> None:
    needed = data.draw(st.integers(threshold(sites), sites))
    places = data.draw(st.permutations(range(sites)))[:needed]
    shares, halves = split(secret, sites, needed), (slice(16), slice(16, 32))
    there = [Shamir.combine([(place + 1, shares[place][half]) for place in places]) for half in halves]
    assert b"".join(there) == secret
    split_there = [Shamir.split(needed, sites, secret[half]) for half in halves]
    back = {place: split_there[0][place][1] + split_there[1][place][1] for place in places}
    assert combine(back, needed) == secret


def test_the_corner_of_64_sites() -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, 64, 43)))
    assert combine({place: shares[place] for place in range(21, 64)}, 43) == secret
    with pytest.raises(ValueError, match="42 shares"):
        combine({place: shares[place] for place in range(22, 64)}, 43)


@given(secret=st.binary(min_size=32, max_size=32), sites=st.integers(3, 9), data=st.data())
def test_a_share_that_was_changed_gives_another_secret(
    secret: bytes, sites: int, data: st.DataObject
) -> None:
    needed = threshold(sites)
    shares = dict(enumerate(split(secret, sites, needed)))
    place = data.draw(st.integers(0, needed - 1))
    bit = data.draw(st.integers(0, 255))
    shares[place] = (int.from_bytes(shares[place]) ^ (1 << bit)).to_bytes(32)
    assert combine(shares, needed) != secret


def test_a_sealed_share_opens_only_for_its_receiver_sender_and_sum() -> None:
    one, other, third = (X25519PrivateKey.generate() for _ in range(3))
    sealed = seal(one, public_half(other), NAME, "a", "b", b"text")
    assert b"text" not in sealed
    assert unseal(other, public_half(one), NAME, "a", "b", sealed) == b"text"
    later = NAME.model_copy(update={"attempt": 1})
    damaged = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for key, public, name, sender, receiver, data in (
        (third, public_half(one), NAME, "a", "b", sealed),
        (other, public_half(third), NAME, "a", "b", sealed),
        (other, public_half(one), later, "a", "b", sealed),
        (other, public_half(one), NAME, "b", "a", sealed),
        (other, public_half(one), NAME, "a", "c", sealed),
        (other, public_half(one), NAME, "a", "b", damaged),
    ):
        with refused(ForgedShares, "forged_shares", values=[repr(sender), repr(receiver)]):
            unseal(key, public, name, sender, receiver, data)


def test_a_share_is_not_sealed_to_a_key_that_hides_nothing() -> None:
    with pytest.raises(ForgedKeys):
        seal(X25519PrivateKey.generate(), bytes(32), NAME, "a", "b", b"text")
