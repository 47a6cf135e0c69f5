from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.seeding import Seed
from fedstrata.wire.quantize import dequantize, quantize, relative_error


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    exponent=st.integers(-20, 20),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_each_number_is_off_by_half_a_step_at_most(
    shape: list[int], exponent: int, dtype: torch.dtype
) -> None:
    states = (torch.randn(*shape, 16, generator=Seed(len(shape)).torch()) * 2.0**exponent).to(dtype)
    values, scales = quantize(states)
    assert (values.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert (values.shape, scales.shape) == (states.shape, (*shape, 1))
    again = dequantize(values, scales, torch.float32)
    step = states.float().abs().amax(dim=-1, keepdim=True) / 127
    assert ((again - states.float()).abs() <= step * 0.501).all()
    assert relative_error(states, values, scales) < 0.02
    assert dequantize(values, scales, dtype).dtype == dtype


def test_a_large_token_takes_nothing_from_the_others() -> None:
    states = torch.randn(4, 64, generator=Seed(0).torch())
    with_one = torch.cat([states, 1000 * states[:1]])
    assert torch.equal(quantize(with_one)[0][:4], quantize(states)[0])


def test_zeros_stay_zeros() -> None:
    values, scales = quantize(torch.zeros(2, 3, 4))
    assert not values.any() and not scales.any()
    assert relative_error(torch.zeros(2, 3, 4), values, scales) == 0.0


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_does_not_come_back_as_a_number(number: float) -> None:
    states = torch.ones(2, 4)
    states[0, 1] = number
    again = dequantize(*quantize(states), torch.float32)
    assert again[0].isnan().all()
    assert torch.equal(again[1], states[1])
