from __future__ import annotations

from dataclasses import replace

import pytest

from fedstrata.core.errors import ConfigurationError
from fedstrata.models.blocks import Layout
from fedstrata.policies.share import personal_top

LAYOUT = Layout(
    blocks_path="layers",
    blocks=(("layers.0.w",), ("layers.1.w",)),
    embedding=("embed.w",),
    final_norm=("norm.w",),
    head=("head.w",),
)


def test_without_blocks_the_head_alone_is_personal() -> None:
    assert personal_top(LAYOUT, 0, setting="method.head") == ("head.w",)


def test_with_blocks_the_norm_above_them_is_personal_too() -> None:
    assert personal_top(LAYOUT, 1, setting="x") == ("layers.1.w", "norm.w", "head.w")
    assert personal_top(LAYOUT, 2, setting="x") == ("layers.0.w", "layers.1.w", "norm.w", "head.w")


def test_more_blocks_than_there_are_and_a_tied_head_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.personal_blocks: must be at most 2"):
        personal_top(LAYOUT, 3, setting="method.personal_blocks")
    with pytest.raises(ConfigurationError, match="tied"):
        personal_top(replace(LAYOUT, head=()), 0, setting="method.head")
