"""Masks cancel in a sum, are what the paper says, and differ wherever what they are bound to does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from secure_federation import NAME, SHAPES, SITES, SUBJECT, Federation, ring_input
from support import refused
from torch import Tensor

from fedstrata.privacy.secure_sum.keys import public_half
from fedstrata.privacy.secure_sum.masks import Mask, MaskStream, pairwise, self_mask
from fedstrata.privacy.secure_sum.messages import KeyBundle, Roster
from fedstrata.privacy.secure_sum.quantization import largest_value
from fedstrata.privacy.secure_sum.refusals import ForgedKeys
from fedstrata.privacy.secure_sum.transcript import Subject, context_of

LARGEST = largest_value(32)

CONTEXT = bytes(range(32))


def key_stream(seed: bytes, count: int) -> NDArray[np.uint32]:
    """The stream by itself, in one piece."""
    cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * count)), dtype="<u4").astype(np.uint32)


@given(
    sizes=st.lists(st.one_of(st.integers(0, 40), st.integers(32760, 32780), st.just(70001)), max_size=4),
    signs=st.lists(st.booleans(), min_size=1, max_size=3),
)
def test_a_stream_goes_on_from_tensor_to_tensor(sizes: list[int], signs: list[bool]) -> None:
    masks = [Mask(hashlib.sha256(bytes([number])).digest(), added) for number, added in enumerate(signs)]
    expected = np.arange(sum(sizes), dtype=np.uint32) * np.uint32(2654435761)
    tensors = np.split(expected.copy(), np.cumsum(sizes)[:-1]) if sizes else []
    for seed, added in masks:
        stream = key_stream(seed, sum(sizes))
        expected = expected + stream if added else expected - stream
    maskers = MaskStream(masks)
    for tensor in tensors:
        maskers.add_to(tensor)
    assert np.array_equal(np.concatenate([*tensors, np.empty(0, np.uint32)]), expected)


def test_64_sites_masks_cancel_and_extremes_do_not_overflow() -> None:
    keys = {f"{number:02d}": X25519PrivateKey.generate() for number in range(64)}
    total, own = np.zeros(4, np.uint32), []
    for site, key in keys.items():
        own.append(self_mask(hashlib.sha256(site.encode()).digest(), site, CONTEXT))
        pairs = [
            pairwise(key, site, public_half(other_key), other, CONTEXT)
            for other, other_key in keys.items()
            if other != site
        ]
        sent = np.array([LARGEST, -LARGEST, 0, 1], np.int32).view(np.uint32)
        MaskStream([own[-1], *pairs]).add_to(sent)
        total += sent
    assert total.view(np.int32).tolist() != [64 * LARGEST, -64 * LARGEST, 0, 64]
    MaskStream([Mask(mask.seed, not mask.added) for mask in own]).add_to(total)
    assert total.view(np.int32).tolist() == [64 * LARGEST, -64 * LARGEST, 0, 64]


def test_both_sites_of_a_pair_have_one_seed_and_opposite_signs() -> None:
    one, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    first = pairwise(one, "a", public_half(other), "b", CONTEXT)
    second = pairwise(other, "b", public_half(one), "a", CONTEXT)
    assert first.seed == second.seed
    assert (first.added, second.added) == (True, False)


def test_a_seed_is_bound_to_its_context_pair_and_kind() -> None:
    own, public = X25519PrivateKey.generate(), public_half(X25519PrivateKey.generate())
    seeds = {
        pairwise(own, "a", public, "b", CONTEXT).seed,
        pairwise(own, "a", public, "b", bytes(32)).seed,
        pairwise(own, "a", public, "c", CONTEXT).seed,
        self_mask(CONTEXT, "a", CONTEXT).seed,
        self_mask(CONTEXT, "b", CONTEXT).seed,
        self_mask(CONTEXT, "a", bytes(32)).seed,
        self_mask(bytes(32), "a", CONTEXT).seed,
    }
    assert len(seeds) == 7


def test_a_site_masks_one_tensor_after_the_other_in_its_place(federation: Federation) -> None:
    sharers, made = federation.delivery(federation.shares(federation.keys())), list[tuple[str, int]]()

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in ring_input(0).items():
            made.append((name, tensor.data_ptr()))
            yield name, tensor

    for name, masked in federation.clients[SITES[0]].mask(sharers, tensors()):
        assert made[-1] == (name, masked.data_ptr())
    assert len(made) == len(SHAPES)


def test_a_key_of_low_order_is_refused() -> None:
    with refused(ForgedKeys, "weak_key", values=["'b'"]):
        pairwise(X25519PrivateKey.generate(), "a", bytes(32), "b", CONTEXT)


def bundle_of(site: str, **changed: str) -> KeyBundle:
    fields = {"mask_key": "11", "share_key": "22", "seed_commitment": "33", "ledger_head": "44"}
    texts = {name: byte * 32 for name, byte in {**fields, **changed}.items()}
    return KeyBundle(sum=NAME, site=site, signature="55" * 64, **texts)


def roster_of(*bundles: KeyBundle, sum: object = NAME, threshold: int = 3) -> Roster:
    return Roster.model_validate({"sum": sum, "threshold": threshold, "bundles": bundles})


@pytest.mark.parametrize(
    "changed",
    [
        {"run": "other"},
        {"round": 4},
        {"handler": "train/weights"},
        {"call": 1},
        {"attempt": 1},
        {"agreed": "cc" * 32},
        {"model": "cc" * 32},
        {"plan": "cc" * 32},
        {"shapes": {"w": (3, 5), "b": (7,), "empty": (0, 2)}},
        {"shapes": {"v": (5, 3), "b": (7,), "empty": (0, 2)}},
        {"shapes": {"b": (7,), "w": (5, 3), "empty": (0, 2)}},
        {"threshold": 2},
        {"site": "d"},
        {"mask_key": "aa"},
        {"share_key": "aa"},
        {"seed_commitment": "aa"},
        {"ledger_head": "aa"},
    ],
    ids=str,
)
def test_everything_that_sites_have_to_agree_on_changes_the_context(changed: dict[str, object]) -> None:
    name = NAME.model_copy(update={k: v for k, v in changed.items() if hasattr(NAME, k)})
    subject = Subject(
        **{k: changed.get(k, getattr(SUBJECT, k)) for k in ("agreed", "model", "plan", "shapes")}  # type: ignore[arg-type]
    )
    keys = {k: str(v) for k, v in changed.items() if k.endswith(("_key", "_head", "_commitment"))}
    bundles = [bundle_of("a"), bundle_of("b"), bundle_of(str(changed.get("site", "c")), **keys)]
    usual = context_of(SUBJECT, roster_of(*map(bundle_of, "abc")))
    assert usual == context_of(SUBJECT, roster_of(*map(bundle_of, "abc")))
    roster = roster_of(*bundles, sum=name, threshold=int(str(changed.get("threshold", 3))))
    assert context_of(subject, roster) != usual
