"""What a step sees of the units, and that nothing of it but the sum depends on who was drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from private_client import PrivateClient, norm_of, private_client
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedstrata.core.seeding import Seed
from fedstrata.privacy import clipping
from fedstrata.privacy.clipping import UnitGradients
from fedstrata.privacy.randomness import SeededRandomness
from fedstrata.privacy.row_gradients import lengths, row_hooks
from fedstrata.train.local import fit


@pytest.fixture(scope="module")
def own() -> PrivateClient:
    return private_client("method={name: layer_skipping, top: 1}", "task.max_length=32", "task.stride=4")


def of_settings(own: PrivateClient, **settings: int) -> UnitGradients:
    made = own.gradients(clip=1.0)
    changed = made.privacy.settings.model_copy(update=settings)
    made.privacy = replace(made.privacy, settings=changed)
    return made


def test_a_step_has_no_more_windows_of_a_unit_than_is_said(own: PrivateClient) -> None:
    assert all(len(unit) > 2 for unit in own.units)
    made = of_settings(own, windows=2, expected_batch=own.site.declared, steps=4)
    seen = list(made.draws())
    assert [len(drawn) for drawn in seen] == [len(own.units)] * 4
    assert {len(unit) for drawn in seen for unit in drawn} == {2}


def test_the_rate_is_of_declared_units_whoever_is_there(
    own: PrivateClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 6.3 of the design: one unit more or less changes no number of the mechanism."""
    assert len(own.units) < own.site.declared == 8
    asked: list[tuple[int, float]] = []
    drawn_by = clipping.poisson
    monkeypatch.setattr(
        clipping,
        "poisson",
        lambda units, rate, source: (asked.append((units, rate)), drawn_by(units, rate, source))[1],
    )
    for units in (own.units, own.units[1:], []):
        made = of_settings(own, expected_batch=2)
        made.units_of = lambda units=units: units  # type: ignore[misc]
        assert len(list(made.draws())) == 3, "a step in which nobody is drawn is a step"
    assert {rate for _, rate in asked} == {0.25}
    assert len(asked) == 9


def test_a_training_of_nobody_takes_its_steps_of_noise(own: PrivateClient) -> None:
    made, model, steps = own.gradients(clip=1.0, sigma=1.0), own.experiment.model, []
    made.units_of = lambda: []
    own.client.privacy, own.client.report = made, steps.append
    before = model.snapshot(own.names)
    fit(own.client, own.names, Seed(0))
    assert [facts["step"] for facts in steps] == [1, 2, 3]
    still = [name for name, now in model.tensors(own.names).items() if torch.equal(now, before[name])]
    model.load(before)
    assert not still


def test_a_turn_is_taken_down_before_anything_is_drawn(own: PrivateClient) -> None:
    order: list[str] = []

    class Told(SeededRandomness):
        def uniform(self, size: int):  # type: ignore[no-untyped-def]
            order.append("drawn")
            return super().uniform(size)

    made = own.gradients(clip=1.0, randomness=Told(Seed(0)))
    made.begin = lambda: order.append("begun")
    steps = made.draws()
    assert not order
    next(steps)
    assert order[:2] == ["begun", "drawn"]
    assert order.count("begun") == 1


@pytest.mark.parametrize(("clip", "sigma"), [(0.25, 3.0), (4.0, 3.0)])
def test_noise_is_added_to_the_sum_of_units_too(own: PrivateClient, clip: float, sigma: float) -> None:
    parameters = own.parameters()
    found = []
    for deviation in (sigma, 0.0):
        made = own.gradients(clip=clip, sigma=deviation)
        made.gradients(own.client, own.units[:1], parameters)
        found.append([parameter.grad.double() for parameter in parameters])  # type: ignore[union-attr]
    noise = [noised - bare for noised, bare in zip(*found, strict=True)]
    expected = sigma * clip / made.expected_batch * math.sqrt(sum(one.numel() for one in noise))
    assert norm_of(noise) == pytest.approx(expected, rel=0.05)


def test_no_two_tensors_have_the_same_noise(own: PrivateClient) -> None:
    """Nor two pieces of one, of which the embedding has several."""
    parameters = private_client("method={name: fedavg}").parameters()
    made = own.gradients(clip=1.0, sigma=1.0)
    made.gradients(own.client, [], parameters)
    noise = torch.cat([parameter.grad.flatten() for parameter in parameters])  # type: ignore[union-attr]
    assert len(noise) > 2 * clipping.PIECE
    assert len(noise.unique()) > 0.99 * len(noise)  # float32 has not many more


@pytest.mark.parametrize("shape", [(3000, 700), (3, 700_000), (2_100_000,), (5,), ()])
def test_lengths_are_not_too_short(shape: tuple[int, ...]) -> None:
    """A norm that rounding makes too short leaves more than the clip; float32 does so for large tensors."""
    tensor = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5
    assert float(lengths(tensor, 0)) == pytest.approx(float(tensor.double().norm()), rel=2e-7)
    if shape:
        each = lengths(tensor, 1)
        expected = tensor.double().flatten(1).norm(dim=1) if len(shape) > 1 else tensor.double()
        torch.testing.assert_close(each, expected, rtol=2e-7, atol=0)


class Layers(nn.Module):
    """A linear layer that is used in one of several ways, of rows of 5 tokens of 4 numbers."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.layer, self.norm = way, nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, given: Tensor) -> Tensor:
        def once(value: Tensor) -> Tensor:
            return self.norm(self.layer(value))

        if self.way == "twice":
            return once(self.layer(given))
        if self.way == "elsewhere":
            return once(given) + F.linear(given, self.layer.weight)
        if self.way == "flat":
            return once(given.flatten(0, 1)).view(given.shape)
        if self.way == "checkpointed":
            return checkpoint(once, given, use_reentrant=False)  # type: ignore[no-any-return]
        return once(given)


@pytest.mark.parametrize("way", ["once", "twice", "elsewhere", "flat", "checkpointed"])
def test_rows_are_given_only_where_the_hooks_are_right(way: str) -> None:
    torch.manual_seed(0)
    model = Layers(way)
    parameters = list(model.parameters())
    given = torch.randn(3, 5, 4)
    with row_hooks(model, parameters) as hooks:
        hooks.rows = 3
        model(given).square().sum().backward()
        found = hooks.take()
    assert (found is not None) == (way == "once")
    assert all(parameter.requires_grad for parameter in parameters)
    if found is not None:
        for index, row in enumerate(given.split(1)):
            expected = torch.autograd.grad(model(row).square().sum(), parameters)
            for own, other in zip(found, expected, strict=True):
                torch.testing.assert_close(own[index], other)


def test_an_error_within_a_layer_leaves_the_model_as_it_was() -> None:
    model = Layers("once")
    with row_hooks(model, list(model.parameters())), pytest.raises(RuntimeError):
        model(torch.zeros(3, 5, 7))
    assert all(parameter.requires_grad for parameter in model.parameters())
    model(torch.zeros(3, 5, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
