"""Noise on what leaves the client."""

from __future__ import annotations

import math

import pytest
import torch
from divided import noised
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.seeding import Seed
from fedstrata.split.noise import Kind
from fedstrata.split.rows import Rows

ROWS = Rows(64, (0,) * 32)
STATES = 3.0 * torch.randn(32, 64, 32, generator=Seed(1).torch())


@given(scale=st.floats(1e-3, 10), kind=st.sampled_from(["mean_abs", "std"]), relative=st.booleans())
def test_the_scale_is_what_its_kind_says(scale: float, kind: Kind, relative: bool) -> None:
    """Of 65536 numbers the mean absolute value and the deviation are off by about 0.4 %."""
    noise = noised(scale, Seed(2), kind=kind, relative=relative).add(STATES, ROWS, "step") - STATES
    measure = torch.Tensor.std if kind == "std" else lambda values: values.abs().mean()
    unit = float(measure(STATES)) if relative else 1.0
    assert float(measure(noise)) == pytest.approx(scale * unit, rel=0.02)
    assert float(noise.std() / noise.abs().mean()) == pytest.approx(math.sqrt(math.pi / 2), rel=0.02)
    assert abs(float(noise.mean())) < 0.02 * float(noise.std())


def test_padding_has_no_part_in_the_units() -> None:
    padded = torch.cat([STATES, torch.zeros_like(STATES)], dim=1)
    rows = Rows(128, (64,) * 32)
    noise = noised(0.1, Seed(2), relative=True).add(padded, rows, "step") - padded
    assert float(noise.abs().mean()) == pytest.approx(0.1 * float(STATES.abs().mean()), rel=0.02)


@pytest.mark.parametrize("relative", [False, True])
def test_noise_on_gradients_is_that_of_the_mean_loss_and_spares_padding(relative: bool) -> None:
    rows = Rows(64, (16,) * 32)
    terms = torch.tensor(48.0)
    summed = torch.where(rows.mask(STATES.device)[..., None].bool(), terms * STATES, 0.0)
    noise = noised(0.1, Seed(2), on="gradients", relative=relative)
    found = noise.add_to_gradient(summed, terms, rows, 1, 0)
    assert torch.equal(found[:, 48:], torch.zeros_like(found[:, 48:]))
    added = (found - summed)[:, :48] / terms
    unit = float(STATES[:, :48].abs().mean()) if relative else 1.0
    assert float(added.abs().mean()) == pytest.approx(0.1 * unit, rel=0.02)
    assert not torch.equal(found, noise.add_to_gradient(summed, terms, rows, 2, 0))


def test_equal_names_give_equal_noise() -> None:
    noise = noised(0.5, Seed(3))
    one, again, other = (noise.add(STATES, ROWS, "train", step) for step in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert not torch.equal(noised(0.5, Seed(4)).add(STATES, ROWS, "train", 1), one)
    assert noised(0.0, Seed(3)).add(STATES, ROWS, "train", 1) is STATES
    assert noise.add(STATES.bfloat16(), ROWS, 1).dtype == torch.bfloat16
