from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedstrata.policies.scores import (
    ABOVE_NOISE,
    CAP,
    above_noise,
    block_scores,
    buckets,
    change_score,
    change_sums,
    estimated_sums,
    is_rounding,
    noise_score,
    noise_scores,
    score,
    sketch,
    sketch_all,
    sketch_size,
)

CHANGES = arrays.arrays(
    np.float32,
    st.integers(2, 60),
    elements=st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3),
)


@given(CHANGES)
def test_the_score_is_that_of_the_paper_and_of_the_signal_to_noise_ratio(change: np.ndarray) -> None:
    exact = change.astype(np.float64)
    found = change_score(torch.from_numpy(change))
    if not exact.any():
        assert found == 1.0
    elif np.all(exact == exact[0]):
        assert found == CAP
    else:
        paper = np.linalg.norm(exact) / (np.sqrt(len(exact)) * exact.std())
        assert found == pytest.approx(min(paper, CAP), rel=1e-9)
        assert found == pytest.approx(np.sqrt(1 + (exact.mean() / exact.std()) ** 2), rel=1e-9)
        deviations = ((exact - exact.mean()) ** 2).sum()
        assert score(len(exact), exact.sum(), deviations) == pytest.approx(found, rel=1e-9)


@given(CHANGES, st.floats(0.125, 8))
def test_the_score_has_no_scale(change: np.ndarray, factor: float) -> None:
    one, other = (change_score(torch.from_numpy(change).double() * scale) for scale in (1.0, factor))
    assert one == pytest.approx(other, rel=1e-6)


def test_a_change_that_is_the_same_everywhere_has_a_finite_score() -> None:
    assert change_score(torch.full((4, 5), 0.1)) == CAP
    assert score(10, 1.0, 0.0) == CAP
    assert score(10, 0.0, 0.0) == change_score(torch.zeros(10)) == 1.0


@given(CHANGES, st.integers(1, 80), st.integers(0, 2**32))
def test_a_sketch_is_linear(change: np.ndarray, width: int, seed: int) -> None:
    one, other = torch.from_numpy(change), torch.from_numpy(change[::-1].copy())
    together = sketch(0.25 * one + 2.0 * other, width, seed)
    apart = 0.25 * sketch(one, width, seed) + 2.0 * sketch(other, width, seed)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-2)
    assert together.shape == (sketch_size(len(change), width),)


@given(CHANGES, st.integers(0, 2**32))
def test_a_sketch_that_is_wide_enough_keeps_the_norm(change: np.ndarray, seed: int) -> None:
    found = sketch(torch.from_numpy(change), 60, seed)
    np.testing.assert_array_equal(np.abs(found.numpy()), np.abs(change))


def even(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(48, 1024, generator=generator) * torch.linspace(0.5, 2.0, 1024)


def with_outlying_columns(generator: torch.Generator) -> torch.Tensor:
    """Of rank one, as a gradient of few tokens is, with two columns that hold most of it."""
    column = torch.randn(1024, generator=generator)
    column[3], column[700] = 60.0, 30.0
    return torch.randn(48, 1, generator=generator) * column


@pytest.mark.parametrize("make", [even, with_outlying_columns])
@pytest.mark.parametrize("width", [128, 1024])
def test_the_norm_of_a_sketch_is_that_of_the_change_as_near_as_its_width_says(make: Any, width: int) -> None:
    change = make(torch.Generator().manual_seed(0))
    exact = float(change.double().square().sum())
    estimates = [float(sketch(change, width, seed).double().square().sum()) / exact for seed in range(200)]
    deviation = np.sqrt(2 / buckets(width))
    assert np.mean(estimates) == pytest.approx(1.0, abs=4 * deviation / np.sqrt(200))
    assert np.std(estimates) < 1.4 * deviation


@pytest.mark.parametrize("make", [even, with_outlying_columns])
@pytest.mark.parametrize("signal", [0.0, 0.01, 0.1, 1.0, 10.0])
def test_estimated_scores_are_near_the_exact_ones_however_large_the_mean(make: Any, signal: float) -> None:
    """The estimate errs in the deviations only, by sqrt(2 / buckets) in their squares."""
    noise = make(torch.Generator().manual_seed(1))
    change = noise + signal * noise.std()
    exact = change_score(change)
    sizes, deviation = {"a": change.numel()}, np.sqrt(2 / buckets(512))
    for seed in range(40):
        found = score(sizes["a"], *estimated_sums(sizes, 512, *sketch_all({"a": change}, 512, seed))["a"])
        assert found**2 - 1 == pytest.approx(exact**2 - 1, rel=7 * deviation, abs=1e-6)


def test_estimates_from_a_mean_of_summaries_are_those_of_the_mean_change() -> None:
    generator = torch.Generator().manual_seed(2)
    changes = [torch.randn(70, 40, generator=generator) + 0.1 for _ in range(3)]
    weights = [0.2, 0.3, 0.5]
    mean = sum(weight * change for weight, change in zip(weights, changes, strict=True))
    apart = [sketch_all({"a": change, "b": change[:3] + 1}, 64, 5) for change in changes]
    together = [
        sum(weight * facts[part] for weight, facts in zip(weights, apart, strict=True)) for part in (0, 1)
    ]
    sizes = {"a": 2800, "b": 120}
    expected = estimated_sums(sizes, 64, *sketch_all({"a": mean, "b": mean[:3] + 1}, 64, 5))
    found = estimated_sums(sizes, 64, *together)
    for name in sizes:
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


def test_a_block_has_the_sum_of_its_tensors_scores() -> None:
    assert block_scores({"a": 1.5, "b": 2.0, "c": 4.0}, [["a", "b", "single"], ["c"]]) == [3.5, 4.0]


@pytest.mark.parametrize("count", [8, 64, 1000, 12_000])
def test_the_score_of_noise_is_that_of_draws(count: int) -> None:
    rng = np.random.default_rng(count)
    draws = 4000 if count < 5000 else 1000
    scores = [change_score(torch.from_numpy(rng.normal(size=count))) for _ in range(draws)]
    mean, variance = noise_score(count)
    assert np.mean(scores) - 1 == pytest.approx(mean - 1, rel=0.15)
    assert np.std(scores) == pytest.approx(np.sqrt(variance), rel=0.25)


def test_the_two_ways_to_the_score_of_noise_meet() -> None:
    near, far = noise_score(10_000), noise_score(10_001)
    assert near[0] - 1 == pytest.approx(far[0] - 1, rel=1e-3)
    assert near[1] == pytest.approx(far[1], rel=0.02)


@given(st.integers(0, 2**32))
def test_blocks_of_noise_are_not_told_apart_and_one_with_a_signal_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = {"norm": (64,), "weight": (64, 64), "bias": (64,)}
    blocks = [[f"{block}.{name}" for name in shapes] for block in range(8)]
    changes = {
        f"{block}.{name}": rng.normal(size=shape) for block in range(8) for name, shape in shapes.items()
    }
    sizes = {name: change.size for name, change in changes.items()}
    noise = noise_scores(sizes, blocks)

    def above() -> float:
        scores = {name: change_score(torch.from_numpy(change)) for name, change in changes.items()}
        return above_noise(block_scores(scores, blocks), noise, [range(8)])

    assert above() < 3.0
    changes["3.weight"] += 1.0
    assert above() > ABOVE_NOISE


def test_a_change_within_the_spacing_of_float32_is_rounding() -> None:
    before = torch.ones(256)
    spacing = torch.finfo(torch.float32).eps
    change = torch.zeros(256)
    assert is_rounding(before, change_sums(change))
    change[:7] = spacing
    assert is_rounding(before, change_sums(change))
    assert not is_rounding(before, change_sums(torch.full((256,), 3 * spacing)))
    assert not is_rounding(torch.zeros(256), change_sums(change)), "small numbers are not rounded so far"


def test_one_moved_number_makes_no_difference() -> None:
    """Whether it moves at all is rounding: it must weigh no more than noise does."""
    one = torch.zeros(256)
    one[3] = 1e-7
    mean, variance = noise_score(256)
    assert abs(change_score(one) - change_score(torch.zeros(256))) < mean - 1 + 3 * variance**0.5
