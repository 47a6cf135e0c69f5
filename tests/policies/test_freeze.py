from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.model import Layout
from fedstrata.policies.freeze import largest_top, smallest_top, top_count, train_top

LAYOUT = Layout(
    blocks_path="layers",
    blocks=(("layers.0.w",), ("layers.1.w", "layers.1.b"), ("layers.2.w",)),
    embedding=("embed.w",),
    final_norm=("norm.w",),
    head=("head.w", "head.b"),
    sizes={
        "layers.0.w": 10,
        "layers.1.w": 9,
        "layers.1.b": 1,
        "layers.2.w": 10,
        "embed.w": 64,
        "norm.w": 1,
        "head.w": 4,
        "head.b": 1,
    },
)


@pytest.mark.parametrize(
    ("top", "blocks", "k"), [(3, 8, 3), (0.5, 16, 8), (1.0, 6, 6), (0.25, 6, 2), (0.01, 32, 1), (1, 1, 1)]
)
def test_a_count_is_a_count_and_a_fraction_is_of_the_blocks(top: int | float, blocks: int, k: int) -> None:
    assert top_count(top, blocks) == k


def test_the_top_blocks_the_final_norm_and_the_head_train() -> None:
    assert train_top(LAYOUT, 1) == ("layers.2.w", "norm.w", "head.w", "head.b")
    assert train_top(LAYOUT, 2) == ("layers.1.w", "layers.1.b", "layers.2.w", "norm.w", "head.w", "head.b")


def test_with_every_block_the_embedding_trains_too() -> None:
    assert set(train_top(LAYOUT, 3)) == set(LAYOUT.all)


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=24), st.floats(0.01, 1.0))
def test_the_smallest_top_holds_the_share_and_one_block_less_does_not(
    norms: list[float], share: float
) -> None:
    k = smallest_top(norms, share)
    assert 1 <= k <= len(norms)
    wanted = share * sum(norms)
    assert sum(norms[-k:]) >= wanted * (1 - 1e-12)
    if k > 1:
        assert sum(norms[-(k - 1) :]) <= wanted * (1 + 1e-12)


def test_a_share_of_1_takes_every_block_that_has_a_gradient() -> None:
    assert smallest_top([1.0, 1.0, 1.0], 1.0) == 3
    assert smallest_top([0.0, 0.0, 1.0], 1.0) == 1
    assert smallest_top([0.0, 0.0, 0.0], 0.5) == 1


@pytest.mark.parametrize(("budget", "k"), [(1.0, 3), (0.99, 2), (0.26, 2), (0.25, 1), (0.16, 1), (0.15, 0)])
def test_the_largest_top_keeps_to_the_budget(budget: float, k: int) -> None:
    assert largest_top(LAYOUT, budget) == k


def test_what_does_not_travel_is_not_in_the_budget() -> None:
    assert largest_top(LAYOUT, 0.15, private=LAYOUT.head) == 1
