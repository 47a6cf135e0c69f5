"""Joint noise: rounded gradients are never too long, shares carry what is asked for, and sums have room."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from privacy.conftest import LIMIT
from support import Same, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.privacy.joint import (
    COARSEST,
    TOO_LONG,
    JointNoise,
    Rounding,
    Sharing,
    largest_scale,
    round_,
    solved,
    usual_colluders,
)
from fedstrata.privacy.randomness import Randomness, SecureRandomness, SeededRandomness
from fedstrata.privacy.secure_sum.shares import threshold
from fedstrata.privacy.skellam import SkellamMechanism, epsilon_of

SITES = range(3, 65)

SOURCES = [Same(0.0), Same(1.0 - 2.0**-53), SecureRandomness(), SeededRandomness(Seed(1))]


def gradients(numbers: int, length: float, seed: int, *, sparse: bool = False) -> list[torch.Tensor]:
    """A gradient of three tensors and a length."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(numbers, generator=generator, dtype=torch.float64)
    if sparse:
        flat[1:] = 0.0
    flat *= length / max(float(flat.norm()), 1e-300)
    return [each.float().contiguous() for each in torch.tensor_split(flat, 3)]


def lengths(rounded: list[torch.Tensor]) -> tuple[int, int]:
    """The sum of squares and of sizes, in whole numbers."""
    flat = [abs(int(each)) for tensor in rounded for each in tensor.view(-1)]
    return sum(each * each for each in flat), sum(flat)


@given(
    numbers=st.integers(1, 60),
    clip=st.floats(1e-3, 1e3),
    scaled=st.floats(0.01, 1e6),
    length=st.sampled_from([0.0, 0.3, 1.0, 1.0 + 2.0**-17, 1.1, 10.0, 1e30]),
    seed=st.integers(0, 2**31),
    source=st.sampled_from(SOURCES),
    sparse=st.booleans(),
)
def test_no_rounded_gradient_is_too_long(
    numbers: int, clip: float, scaled: float, length: float, seed: int, source: Randomness, sparse: bool
) -> None:
    rounding = Rounding(clip, scaled / clip, numbers)
    most = rounding.sensitivity
    rounded, counts = round_(gradients(numbers, length * clip, seed, sparse=sparse), 1.0, rounding, source)
    squared, size = lengths(rounded)
    assert squared <= most.l2**2
    assert size <= most.l1 * (1 + 1e-12)
    assert counts or squared == 0
    if length <= 1.0 + 2.0**-17 and (isinstance(source, SecureRandomness | SeededRandomness)):
        assert counts, "rounding is longer than its bound once in 10^12 times"
        assert all(int(each.abs().max()) <= rounding.largest for each in rounded if each.numel())


def test_rounding_that_always_goes_up_is_too_long_and_does_not_count() -> None:
    """A vector within the clip of which every number happened to be rounded away from 0."""
    numbers = 10_000
    rounding = Rounding(1.0, 50.0, numbers)
    up, counts = round_([torch.full((numbers,), 1e-2)], 1.0, rounding, Same(1.0 - 2.0**-53))
    assert not counts
    assert int(up[0].abs().max()) == 0
    assert numbers > rounding.sensitivity.l2**2
    down, counts = round_([torch.full((numbers,), 1e-2)], 1.0, rounding, Same(0.0))
    assert counts
    assert int(down[0].abs().max()) == 0


def test_the_bound_is_what_hoeffding_gives() -> None:
    """Of 1e5 roundings of the worst vector, all numbers half a step off, the share that is longer."""
    scaled, numbers, trials = 3.0, 36, 100_000
    vector = np.full(numbers, scaled / numbers**0.5)
    rounded = np.floor(vector + np.random.default_rng(0).random((trials, numbers)))
    squares = (rounded**2).sum(1)
    for chance in (0.5, 0.1, 1e-3):
        slack = math.sqrt(2 * math.log(1 / chance)) * (scaled + numbers**0.5 / 2)
        assert (squares > scaled**2 + numbers / 4 + slack).mean() <= chance
    rounding = Rounding(1.0, scaled, numbers)
    by_hand = rounding.scaled**2 + 9.0 + math.sqrt(2 * math.log(1 / TOO_LONG)) * (rounding.scaled + 3.0)
    assert rounding.most_squared == math.floor(min(by_hand, (rounding.scaled + 6.0) ** 2))
    assert scaled <= rounding.scaled < 1.0001 * scaled


@pytest.mark.parametrize("source", [SecureRandomness(), SeededRandomness(Seed(2))], ids=["secure", "seeded"])
def test_rounding_is_unbiased(source: Randomness) -> None:
    count = 1_000_000
    rounding = Rounding(1.0, 2000.0, count)
    for part in (1 / 3, -1 / 3, 0.9):
        rounded, counts = round_([torch.full((count,), 2 * part / 2000.0)], 0.5, rounding, source)
        assert counts
        exact = float(torch.tensor(2 * part / 2000.0).double()) * 1000.0
        spread = math.sqrt(exact % 1 * (1 - exact % 1) / count)
        assert abs(float(rounded[0].double().mean()) - exact) < 6 * spread
    assert rounding.bias < 1e-11


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_as_zero(value: float) -> None:
    rounded, counts = round_(
        [torch.tensor([0.1, 0.2]), torch.tensor([[value]])], 1.0, Rounding(1.0, 100.0, 3), SecureRandomness()
    )
    assert not counts
    assert lengths(rounded) == (0, 0)


def test_no_second_copy_is_made() -> None:
    tensors = [torch.rand(6, 5) / 100, torch.rand(100_000) / 1000]
    places = [each.data_ptr() for each in tensors]
    rounded, counts = round_(tensors, 1.0, Rounding(1.0, 1e6, 100_030), SecureRandomness())
    assert counts
    assert [each.data_ptr() for each in rounded] == places
    assert [each.shape for each in rounded] == [(6, 5), (100_000,)]
    assert {each.dtype for each in rounded} == {torch.int32}


@pytest.mark.parametrize("sites", SITES)
def test_the_usual_colluders_are_fewer_than_a_sum_bears(sites: int) -> None:
    sharing = Sharing(sites, usual_colluders(sites))
    assert sharing.carriers == threshold(sites) - (sites - 1) // 3 >= 2
    most = 2 * threshold(sites) - sites
    for colluders in (-1, most):
        with refused(ConfigurationError, "out_of_range", at="privacy.colluders", values=[f"0 to {most - 1}"]):
            Sharing(sites, colluders)
    assert Sharing(sites, most - 1).carriers >= 1


@pytest.mark.parametrize("sites", [1, 2])
def test_two_sites_are_no_secure_sum(sites: int) -> None:
    with refused(
        ConfigurationError, "out_of_range", at="privacy.colluders", values=[f"{sites} sites", "3 or more"]
    ):
        Sharing(sites, 0)


@pytest.mark.parametrize(
    ("sites", "colluders", "joint"), [(10, 0, 1.20), (10, 3, 1.58), (30, 9, 1.58), (64, 21, 1.71)]
)
def test_what_joint_noise_costs(sites: int, colluders: int, joint: float) -> None:
    sharing = Sharing(sites, colluders)
    assert sharing.cost == pytest.approx(joint, abs=0.005)
    assert sharing.cost < math.sqrt(sites)


@pytest.mark.parametrize(("sites", "colluders"), [(10, 0), (10, 3), (5, 1)])
def test_the_fewest_honest_survivors_carry_the_noise(sites: int, colluders: int) -> None:
    """What is drawn, not what is said: the variance of the shares of t - c sites, and of all of them."""
    noise = JointNoise(Sharing(sites, colluders), Rounding(1.0, 1e5, 400), 0.8)
    count, asked = 400_000, 0.8 * noise.rounding.sensitivity.l2
    shares = [noise.share().draw(count, SecureRandomness()) for _ in range(sites)]

    def squares(carriers: int) -> float:
        return float((np.sum(shares[:carriers], axis=0) / asked).astype(np.float64).__pow__(2).sum())

    fewest = threshold(sites) - colluders
    limit = LIMIT * math.sqrt(2 * count)
    assert abs(squares(fewest) - count) < limit
    assert squares(fewest - 1) < count - limit, "one fewer would not"
    assert abs(squares(sites) / noise.sharing.cost**2 - count) < limit


@given(
    sites=st.integers(3, 64),
    clip=st.floats(1e-3, 1e3),
    numbers=st.integers(1, 10**7),
    sigma=st.floats(0.5, 5),
    units=st.integers(1, 500),
)
def test_the_finest_scale_fills_the_ring_and_no_more(
    sites: int, clip: float, numbers: int, sigma: float, units: int
) -> None:
    sharing = Sharing(sites, usual_colluders(sites))
    scale = largest_scale(sharing, clip, numbers, sigma, units)

    def filled(scale: float) -> float:
        noise = JointNoise(sharing, Rounding(clip, scale, numbers), sigma)
        largest = sites * units * noise.rounding.largest
        return largest + 12 * math.sqrt(sites * noise.share_variance)

    assert filled(scale) < 2**31 <= filled(1.001 * scale) + sites * units


@pytest.mark.parametrize(
    ("numbers", "sigma", "units"), [(243_000_000, 1.0, 10**6), (1000, 1e-4, 10**6), (1000, 1.0, 10**9)]
)
def test_a_ring_without_room_is_refused(numbers: int, sigma: float, units: int) -> None:
    with refused(
        ConfigurationError, "out_of_range", at="privacy.mechanism", values=["10 sites", f"{units} units"]
    ):
        largest_scale(Sharing(10, 3), 1.0, numbers, sigma, units)


def test_a_whole_sum_fits_the_ring_and_comes_back() -> None:
    """Every unit of every site at the clip, and all on one number: the sum has not gone around."""
    sharing, units, numbers = Sharing(3, 0), 40, 1000
    scale = largest_scale(sharing, 1.0, numbers, 1.0, units)
    noise = JointNoise(sharing, Rounding(1.0, scale, numbers), 1.0)
    total = torch.zeros(numbers, dtype=torch.int32)
    for _ in range(sharing.sites):
        own = torch.zeros(numbers, dtype=torch.int32)
        for _ in range(units):
            gradient = torch.zeros(numbers)
            gradient[7] = 1.0
            own += round_([gradient], 1.0, noise.rounding, SecureRandomness())[0][0]
        noise.share().add_to(own.numpy(), SecureRandomness())
        total += own
    found = total.double() / scale
    deviation = sharing.cost * noise.rounding.sensitivity.l2 / scale
    assert abs(float(found[7]) - 120.0) < 7 * deviation
    found[7] = 0.0
    assert float(found.std()) == pytest.approx(deviation, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [1000, 243_000_000])
def test_what_is_solved_for_costs_no_more_than_epsilon(numbers: int) -> None:
    sharing, steps = Sharing(10, 3), 200
    noise = solved(4.0, 1e-5, 0.05, steps, sharing, 1.0, numbers, 200)
    sensitivity = noise.rounding.sensitivity
    spent = SkellamMechanism(noise.sigma, sensitivity, 0.05, steps)
    assert 3.95 < epsilon_of([spent], 1e-5, noise.distance(steps)) <= 4.0
    assert noise.rounding.scale == largest_scale(sharing, 1.0, numbers, noise.sigma, 200)
    assert sensitivity.l2 < COARSEST * noise.rounding.scale
