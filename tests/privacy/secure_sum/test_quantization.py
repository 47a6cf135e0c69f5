"""Rounding is unbiased and in place, its error is the declared one, and 64 sites fit the ring."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import Same, refused

from fedstrata.core.errors import FrameError, TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.privacy import MOST_SITES
from fedstrata.privacy.randomness import SecureRandomness, SeededRandomness
from fedstrata.privacy.secure_sum.quantization import (
    LARGEST_WEIGHT,
    LIMBS,
    bound_for,
    count_elements,
    counts_in,
    dequantize_,
    largest_value,
    most_counted,
    number_elements,
    numbers_in,
    packed,
    quantize_,
    rounding_error,
    unpacked,
    weight_element,
)

BITS = (32, 24)
EXTREMES = [Same(0.0), Same(1.0 - 2.0**-53)]


@given(
    seed=st.integers(0, 2**31),
    sites=st.integers(1, 64),
    bound=st.floats(1e-12, 1e12),
    count=st.integers(0, 70),
    bits=st.sampled_from(BITS),
)
def test_a_sum_is_within_the_declared_error(
    seed: int, sites: int, bound: float, count: int, bits: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    exact, total = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.int64)
    for site in range(sites):
        change = (
            (2 * torch.rand(count, generator=generator, dtype=torch.float64) - 1) * bound * 0.999
        ).float()
        exact += change
        elements, saturated = quantize_(change, bound, SeededRandomness(Seed(seed).child(site)), bits)
        assert saturated == 0
        total += elements
    assert bool((total.abs() < 2 ** (bits - 1)).all()), "nothing overflowed"
    other = (total + (seed << bits)).to(torch.int32)  # what is above the ring's bits is no part of it
    found = dequantize_(other, bound, bits)
    error = rounding_error(bound, sites, bits)
    assert bool(((found - exact).abs() <= error.largest + 2.0**-24 * exact.abs() + 1e-40).all())


@pytest.mark.parametrize("source", [SecureRandomness(), SeededRandomness(Seed(0))], ids=["secure", "seeded"])
def test_rounding_is_unbiased(source: SecureRandomness | SeededRandomness) -> None:
    """A third of a step: the mean of a million is off by less than six of its standard deviations."""
    step, count = rounding_error(1.0, 1).step, 1_000_000
    for part in (1 / 3, -1 / 3, 0.9):
        elements, _ = quantize_(torch.full((count,), part * step), 1.0, source)
        exact = float(torch.tensor(part * step).double()) / step
        spread = (exact % 1 * (1 - exact % 1)) ** 0.5
        assert abs(float(elements.double().mean()) - exact) < 6 * spread / count**0.5
        assert spread * step <= rounding_error(1.0, 1).deviation


@pytest.mark.parametrize("source", EXTREMES)
@pytest.mark.parametrize("bound", [1.0, 0.1, 1e-8, 3.3e7, 1e30])
@pytest.mark.parametrize("bits", BITS)
def test_extremes_of_64_sites_do_not_overflow(source: Same, bound: float, bits: int) -> None:
    most = float(np.nextafter(np.float32(bound), np.float32(0)))
    change = torch.tensor([most, -most, 100 * bound, -100 * bound, 0.0])
    elements, saturated = quantize_(change, bound, source, bits)
    assert saturated == 2
    assert elements[2:].tolist() == [largest_value(bits), -largest_value(bits), 0]
    assert elements.abs().max() <= largest_value(bits)
    total = sum(elements.clone() for _ in range(MOST_SITES))
    assert torch.equal(total.long(), MOST_SITES * elements.long())
    assert MOST_SITES * largest_value(bits) == 2 ** (bits - 1) - 64


def test_saturated_values_are_counted_over_all_blocks() -> None:
    change = torch.zeros(100_000)
    change[::1000] = 2.0
    change[500::1000] = -1.0
    _, saturated = quantize_(change, 1.0, SecureRandomness())
    assert saturated == 100


def test_no_second_copy_is_made() -> None:
    change = torch.rand(6, 5)
    place = change.data_ptr()
    elements, _ = quantize_(change, 1.0, SecureRandomness())
    assert (elements.data_ptr(), elements.shape, elements.dtype) == (place, (6, 5), torch.int32)
    back = dequantize_(elements, 1.0)
    assert (back.data_ptr(), back.shape, back.dtype) == (place, (6, 5), torch.float32)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with refused(TrainingError, "diverged"):
        quantize_(torch.tensor([0.0, value]), 1.0, SecureRandomness())


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_has_to_be_one(bound: float) -> None:
    with refused(TrainingError, "out_of_range", values=[bound]):
        quantize_(torch.zeros(1), bound, SecureRandomness())


def test_bounds_follow_the_last_change() -> None:
    assert bound_for(None, 0.5) == 0.5
    assert bound_for(torch.empty(0), 0.5) == 0.5
    assert bound_for(torch.full((10,), 1e-6), 0.5) == 0.5
    assert bound_for(torch.tensor([3.0, -4.0]), 0.5) == pytest.approx(64 * 12.5**0.5)


@given(
    st.lists(
        st.lists(
            st.one_of(st.integers(0, 10**15), st.floats(0.0, 1e15), st.floats(0.0, 1e-5)),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=MOST_SITES,
    )
)
def test_numbers_add_up_under_masks_to_the_last_bit_of_a_millionth(sites: list[list[float]]) -> None:
    total = torch.zeros(3, LIMBS, dtype=torch.int32)
    for numbers in sites:
        total += number_elements(numbers)
    for found, *own in zip(numbers_in(total), *sites, strict=True):
        exact = sum(map(Fraction, own))
        assert abs(Fraction(found) - exact) <= Fraction(len(own), 2**21) + abs(exact) / 2**53
        if all(isinstance(number, int) for number in own):
            assert found == exact


@pytest.mark.parametrize("number", [-1, -1e-9, 1.1e15, float("nan"), float("inf")])
def test_a_number_that_cannot_be_summed_is_refused(number: float) -> None:
    """The message goes to the server, and says nothing of the number: a model can be made to ask for one."""
    with refused(TrainingError, "out_of_range", values=["1e+15"]) as caught:
        number_elements([1, number])
    assert str(number) not in str(caught.value)


@pytest.mark.parametrize(("bits", "most"), [(32, LARGEST_WEIGHT), (24, 2**18 - 1)])
def test_weights_and_counts_are_exact_at_64_sites(bits: int, most: int) -> None:
    total = sum(weight_element(most, bits) for _ in range(MOST_SITES))
    assert counts_in(total, bits) == [MOST_SITES * most]
    counts = sum(count_elements([2**40, 3, 0], bits) for _ in range(MOST_SITES))
    assert counts_in(counts, bits) == [MOST_SITES * most_counted(bits), 3 * MOST_SITES, 0]
    for examples in (0, -1, most + 1):
        with refused(TrainingError, "out_of_range", values=[examples, f"{bits} bits", f"1 to {most}"]):
            weight_element(examples, bits)


@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=24),
    columns=st.sampled_from([1, 2, 3]),
    bits=st.sampled_from(BITS),
)
def test_elements_travel_without_what_is_above_their_ring(values: list[int], columns: int, bits: int) -> None:
    """And are added there: with a mask of 32 bits, which is then taken off."""
    elements = torch.tensor(values[: len(values) // columns * columns], dtype=torch.int32).view(-1, columns)
    sent = packed(elements, bits)
    assert sent.nbytes * 32 == elements.nbytes * bits
    back = unpacked(sent, elements.shape, bits)
    assert back.shape == elements.shape
    assert torch.equal((back.long() - elements.long()) % 2**bits, torch.zeros_like(elements).long())


@pytest.mark.parametrize(
    "sent", [torch.zeros(5, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(6)]
)
def test_what_is_no_elements_of_24_bits_is_refused(sent: torch.Tensor) -> None:
    with refused(FrameError, "wrong_shape", values=["2 elements", "3 bytes"]):
        unpacked(sent, (2,), 24)
