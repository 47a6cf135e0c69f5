"""Lengths in place of masks."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.errors import FrameError
from fedstrata.split.rows import Rows

CPU = torch.device("cpu")


def naive_mask(length: int, padding: list[int], side: str) -> torch.Tensor:
    rows = []
    for count in padding:
        zeros, ones = [0] * count, [1] * (length - count)
        rows.append(zeros + ones if side == "left" else ones + zeros)
    return torch.tensor(rows)


@given(
    length=st.integers(1, 9),
    padding=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    side=st.sampled_from(["left", "right"]),
)
def test_a_mask_is_read_and_made_again(length: int, padding: list[int], side: str) -> None:
    padding = [min(count, length) for count in padding]
    mask = naive_mask(length, padding, side)
    rows = Rows.of(mask, len(padding), length)
    again = rows.mask(CPU)
    assert torch.equal(torch.ones_like(mask) if again is None else again, mask)
    assert (again is None) == (not any(padding))
    assert Rows.from_json(json.loads(json.dumps(rows.to_json()))) == rows


@given(
    length=st.integers(2, 9),
    padding=st.lists(st.integers(0, 1), min_size=1, max_size=4),
    more=st.integers(0, 4),
)
def test_positions_count_from_the_first_token(length: int, padding: list[int], more: int) -> None:
    """As `generate` of transformers counts them: the running sum of the mask, less one."""
    rows = Rows(length, tuple(padding), "left").longer(length + more)
    mask = naive_mask(length + more, padding, "left")
    expected = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
    last = more or length
    assert torch.equal(rows.positions(CPU, last), expected[:, -last:])


def test_without_a_mask_nothing_is_padding() -> None:
    rows = Rows.of(None, 3, 7)
    assert rows == Rows(7, (0, 0, 0), "right")
    assert rows.mask(CPU) is None and rows.positions(CPU, 7) is None


@pytest.mark.parametrize("mask", [[[1, 0, 1]], [[1, 1, 0], [0, 1, 1]], [[0, 1, 0]]])
def test_a_mask_that_lengths_cannot_say_is_refused(mask: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="padded"):
        Rows.of(torch.tensor(mask), len(mask), 3)


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        Rows.of(torch.ones(2, 3), 2, 4)


@pytest.mark.parametrize(
    "change", [{"length": None}, {"padding": [4]}, {"padding": [-1]}, {"padding": 0}, {"side": "up"}]
)
def test_what_are_no_lengths_is_refused(change: dict[str, object]) -> None:
    with refused(FrameError, "invalid"):
        Rows.from_json({"length": 3, "padding": [0, 1], "side": "left", **change})
