from __future__ import annotations

import pytest

from fedstrata.models.blocks import Layout
from fedstrata.policies.freeze import top_count, train_top

LAYOUT = Layout(
    blocks_path="layers",
    blocks=(("layers.0.w",), ("layers.1.w", "layers.1.b"), ("layers.2.w",)),
    embedding=("embed.w",),
    final_norm=("norm.w",),
    head=("head.w", "head.b"),
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
