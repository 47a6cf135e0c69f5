"""What is read of a message is what was said, byte for byte; all else is refused before it is used."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from secure_federation import NAME, SHAPES, ring_input
from support import refused

from fedstrata.core.errors import FrameError
from fedstrata.core.types import Message
from fedstrata.privacy.secure_sum.messages import (
    HEADER_LIMIT,
    ConsistencyProof,
    ConsistencySignature,
    DeliveredShares,
    KeyBundle,
    MaskedInput,
    OpenedShares,
    OpenShare,
    ReleasedShares,
    Roster,
    SealedShares,
    SentShares,
    Sharers,
    Survivors,
    canonical,
    pack,
    unpack,
)
from fedstrata.wire import frame

DIGEST, SIGNATURE = "ab" * 32, "cd" * 64
FIELDS: Any = dict.fromkeys(("mask_key", "share_key", "seed_commitment", "ledger_head"), DIGEST)
BUNDLES = tuple(KeyBundle(sum=NAME, site=site, signature=SIGNATURE, **FIELDS) for site in "abc")
SEALED = tuple(SealedShares(site=site, sealed="ef" * 92) for site in "bc")
OPEN = tuple(OpenShare(site=site, share=DIGEST) for site in "abc")
CONSISTENCY = ConsistencySignature(sum=NAME, site="a", transcript=DIGEST, signature=SIGNATURE)
MESSAGES: list[Any] = [
    BUNDLES[0],
    Roster(sum=NAME, threshold=3, bundles=BUNDLES),
    SentShares(sum=NAME, site="a", context=DIGEST, shares=SEALED, distrusted=("d", "e")),
    DeliveredShares(sum=NAME, site="a", shares=SEALED),
    OpenedShares(sum=NAME, site="a", unopened=("b", "c")),
    Sharers(sum=NAME, sites=("a", "b", "c")),
    MaskedInput(sum=NAME, site="a"),
    Survivors(sum=NAME, sites=("a", "b", "c")),
    CONSISTENCY,
    ConsistencyProof(sum=NAME, signatures=(CONSISTENCY,)),
    ReleasedShares(sum=NAME, site="a", self_masks=OPEN, mask_keys=OPEN[:1]),
]

OF_NONE: list[Any] = [
    (MESSAGES[2], ("shares",)),
    (MESSAGES[2], ("distrusted",)),
    (MESSAGES[4], ("unopened",)),
    (MESSAGES[10], ("mask_keys",)),
]
"""Lists that may be empty."""


def kind_of(message: BaseModel) -> str:
    return type(message).__name__


@pytest.mark.parametrize("said", MESSAGES, ids=kind_of)
def test_a_message_comes_through_the_wire_as_it_was(said: Any) -> None:
    data = frame.encode(pack(said)).tobytes()
    read = unpack(frame.decode(frame.split(data, HEADER_LIMIT), Message), type(said))
    assert read == said
    assert frame.encode(pack(read)).tobytes() == data


@pytest.mark.parametrize("said", MESSAGES, ids=kind_of)
def test_no_message_is_read_as_another(said: Any) -> None:
    for other in MESSAGES:
        if type(other) is not type(said):
            with refused(FrameError, "malformed_frame", values=[f"a {kind_of(other)} "]):
                unpack(pack(said), type(other))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in JSON values."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def changed(values: Any, path: tuple[Any, ...], new: Any) -> Any:
    copy = json.loads(json.dumps(values))
    *before, last = path
    holder = copy
    for key in before:
        holder = holder[key]
    if new is None:
        del holder[last]
    else:
        holder[last] = new
    return copy


@given(
    said=st.sampled_from(MESSAGES),
    new=st.sampled_from([None, True, -1, 2**31, 1.0, "", [], {}, "\x00", [[1]], "é" * 200]),
    data=st.data(),
)
def test_anything_of_another_kind_or_size_is_refused(said: Any, new: Any, data: st.DataObject) -> None:
    values = pack(said).values
    path = data.draw(st.sampled_from([place for place in places(values) if place]))
    shorter = new is None and (path == ("kind",) or isinstance(path[-1], int))
    empty = new == [] and (said, path) in OF_NONE
    if shorter or empty:
        return  # which may be: the kind is known anyway, and lists have no fixed length
    with pytest.raises(FrameError):
        unpack(Message({}, changed(values, path, new)), type(said))


@pytest.mark.parametrize("said", MESSAGES, ids=kind_of)
def test_keys_hashes_and_shares_have_their_length_in_small_digits(said: Any) -> None:
    values = pack(said).values
    for path in places(values):
        found: Any = values
        for key in path:
            found = found[key]
        if isinstance(found, str) and len(found) >= 64:
            for wrong in (found[2:], found + "00", found.upper(), found[:-1] + "g", found[:-1] + "\n"):
                with refused(
                    FrameError, "malformed_frame", values=["".join(f"{key}." for key in path)[:-1], "pattern"]
                ):
                    unpack(Message({}, changed(values, path, wrong)), type(said))


@pytest.mark.parametrize("said", MESSAGES, ids=kind_of)
def test_a_field_too_many_is_refused(said: Any) -> None:
    with refused(FrameError, "malformed_frame", values=["more: "]):
        unpack(Message({}, {**pack(said).values, "more": 1}), type(said))


@pytest.mark.parametrize(
    ("said", "field"),
    [
        (MESSAGES[1], "bundles"),
        (MESSAGES[2], "shares"),
        (MESSAGES[2], "distrusted"),
        (MESSAGES[3], "shares"),
        (MESSAGES[4], "unopened"),
        (MESSAGES[5], "sites"),
        (MESSAGES[7], "sites"),
        (MESSAGES[10], "self_masks"),
    ],
    ids=["roster", "sent", "distrusted", "delivered", "opened", "sharers", "survivors", "released"],
)
def test_sites_are_in_order_and_each_once(said: Any, field: str) -> None:
    values: dict[str, Any] = dict(pack(said).values)
    entries = list(values[field])
    for wrong in (entries[::-1], [entries[0], *entries]):
        with refused(FrameError, "malformed_frame", values=[f"{field}: "]):
            unpack(Message({}, {**values, field: wrong}), type(said))


@pytest.mark.parametrize("count", [2, 65])
def test_a_roster_has_3_to_64_sites(count: int) -> None:
    bundles = [{**BUNDLES[0].model_dump(mode="json"), "site": f"{number:02d}"} for number in range(count)]
    with refused(FrameError, "malformed_frame", values=["bundles: "]):
        unpack(Message({}, {**pack(MESSAGES[1]).values, "bundles": bundles}), Roster)


def test_an_input_has_the_tensors_that_were_agreed() -> None:
    said, tensors = MESSAGES[6], ring_input(0)
    assert unpack(pack(said, tensors), MaskedInput, SHAPES) == said
    wrong = [
        {},
        {**tensors, "w": tensors["w"].T},
        {**tensors, "w": tensors["w"].float()},
        {**tensors, "more": tensors["w"]},
        dict(reversed(tensors.items())),
    ]
    for each in wrong:
        with refused(FrameError, "not_agreed", values=[f"{len(each)} tensors", "the 3 "]):
            unpack(pack(said, each), MaskedInput, SHAPES)
    with refused(FrameError, "not_agreed", values=["1 tensors", "the 0 "]):
        unpack(pack(MESSAGES[0], {"w": torch.zeros(1, dtype=torch.int32)}), KeyBundle)


def test_a_refusal_never_shows_a_share() -> None:
    secret = "5ec7e7" * 10
    values = changed(pack(MESSAGES[10]).values, ("self_masks", 0, "share"), secret)
    with pytest.raises(FrameError) as raised:
        unpack(Message({}, values), ReleasedShares)
    assert secret not in str(raised.value)
    assert "self_masks.0.share" in str(raised.value)


def test_one_value_has_one_byte_form() -> None:
    assert canonical({"b": 1, "a": ["é", None]}) == b'{"a":["\\u00e9",null],"b":1}'
    with pytest.raises(ValueError, match="JSON"):
        canonical(float("nan"))
