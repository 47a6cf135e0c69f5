"""The joint step of several clients' batches against a step for each."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from divided import (
    FAMILIES,
    TASK,
    Gradients,
    Tiny,
    assert_same_gradients,
    batch_of,
    deeper,
    divided,
    gradients_of,
)
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.split.joint import Joint, mean_scales
from fedstrata.split.rows import Rows

FAST = [("llama", "terms"), ("llama", "clients"), ("gpt2", "terms"), ("deberta-v2", "clients")]
BATCHES = [(5, 12, 1), (9,), (3, 20)]


@pytest.mark.parametrize(
    ("family", "by"),
    [
        pytest.param(family, by, marks=() if (family, by) in FAST else pytest.mark.slow)
        for family in FAMILIES
        for by in ("terms", "clients")
    ],
)
def test_a_joint_step_is_the_mean_of_the_clients_steps(
    tiny_model: Tiny, family: str, by: Literal["terms", "clients"]
) -> None:
    """Not their sum. Each client gets the states and the gradient that it would have got alone."""
    model, cut = tiny_model(family, FAMILIES[family], config=deeper(family)), Cut(1, 1)
    both = divided(model, cut)
    ends, middle = both.ends, both.middle
    batches, alone, own = [batch_of(lengths) for lengths in BATCHES], [], []
    for batch in batches:
        both.step(batch)
        alone.append(gradients_of(middle.model.module))
        own.append(gradients_of(ends.module))
        for side in (ends.module, middle.model.module):
            side.zero_grad(set_to_none=True)
    terms = [float(len(lengths)) for lengths in BATCHES]
    expected: Gradients = {}
    for name in alone[0]:
        total = sum(
            each[name] / (sum(terms) if by == "terms" else count * len(terms))
            for each, count in zip(alone, terms, strict=True)
        )
        expected[name] = total

    fronts = [ends.front(lambda own=batch: TASK.loss(ends.module, own)) for batch in batches]
    joint = Joint([front.rows for front in fronts])
    states = middle.forward("joint", joint.join([front.states for front in fronts]), joint.rows)
    pieces = [piece.contiguous() for piece in joint.split(states)]  # as they come out of a frame
    leaves, scales = [], mean_scales(terms) if by == "clients" else [1.0 / sum(terms)] * len(terms)
    found: list[Gradients] = []
    for front, piece, batch in zip(fronts, pieces, batches, strict=True):
        (loss, _), leaf = ends.back(front, piece, lambda own=batch: TASK.loss(ends.module, own))
        loss.backward()
        leaves.append(leaf)
        found.append(gradients_of(ends.module))
        ends.module.zero_grad(set_to_none=True)
    back = middle.backward("joint", joint.join([leaf.grad for leaf in leaves], scales))
    for front, gradient, upper, whole in zip(fronts, joint.split(back, scales), found, own, strict=True):
        front.backward(gradient.contiguous())
        lower = gradients_of(ends.module)
        ends.module.zero_grad(set_to_none=True)
        assert_same_gradients(
            {name: lower.get(name, 0) + upper.get(name, 0) for name in {*lower, *upper}}, whole
        )
    assert_same_gradients(gradients_of(middle.model.module), expected)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=4),
    scaled=st.booleans(),
)
def test_what_is_joined_is_split_again(shapes: list[tuple[int, int]], scaled: bool) -> None:
    generator = Seed(0).torch()
    tensors = [torch.randn(*shape, 2, generator=generator) for shape in shapes]
    joint = Joint([Rows(length, (0,) * (rows - 1) + (length // 2,)) for rows, length in shapes])
    scales = [1.0 / (number + 1) for number in range(len(shapes))] if scaled else None
    together = joint.join(tensors, scales)
    assert together.shape == (sum(rows for rows, _ in shapes), max(length for _, length in shapes), 2)
    mask = joint.rows.mask(torch.device("cpu"))
    assert mask is None or mask.sum() == sum(rows * length - length // 2 for rows, length in shapes)
    for own, tensor in zip(joint.split(together, scales), tensors, strict=True):
        torch.testing.assert_close(own, tensor)


def test_a_client_without_terms_counts_for_nothing() -> None:
    joint, scales = Joint([Rows(2, (0,)), Rows(2, (0,))]), mean_scales([4, 0])
    assert scales == [0.25, 0.0]
    first, second = joint.split(joint.join([torch.ones(1, 2, 1)] * 2, scales), scales)
    assert first.eq(1).all() and second.eq(0).all()


def test_rows_padded_on_the_left_are_not_joined() -> None:
    for parts in ([], [Rows(4, (0, 1), "left")]):
        with pytest.raises(ValueError, match="padded"):
            Joint(parts)
