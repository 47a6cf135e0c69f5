from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.model import Layout
from fedstrata.policies.share import block_count, personal_top, sent_and_kept

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
    with refused(ConfigurationError, "out_of_range", at="method.personal_blocks", values=["most 2", "3"]):
        personal_top(LAYOUT, 3, setting="method.personal_blocks")
    with refused(ConfigurationError, "no_effect", at="method.head"):
        personal_top(replace(LAYOUT, head=()), 0, setting="method.head")


def test_the_blocks_with_the_smallest_gradients_are_sent() -> None:
    assert sent_and_kept([0.5, 0.1, 0.9, 0.1], 2, ()) == ([1, 3], [0, 2])
    assert sent_and_kept([0.5, 0.1, 0.9, 0.1], 3, ()) == ([0, 1, 3], [2])
    assert sent_and_kept([0.0, 0.0], 1, ()) == ([0], [1])


@given(
    importance=st.lists(st.one_of(st.none(), st.floats(0, 10)), min_size=1, max_size=8),
    count=st.integers(1, 8),
    unchanged=st.sets(st.integers(0, 7)),
)
def test_what_holds_nothing_of_the_device_is_neither_sent_nor_kept(
    importance: list[float | None], count: int, unchanged: set[int]
) -> None:
    sent, kept = sent_and_kept(importance, count, unchanged)
    known = [block for block, value in enumerate(importance) if value is not None]
    most_important = sorted(known, key=lambda block: (importance[block], block))[count:]
    assert set(sent) | set(kept) | (set(known) & unchanged) == set(known)
    assert not set(sent) & (set(kept) | unchanged)
    assert len(most_important) == max(0, len(known) - count)
    assert kept == sorted(set(most_important) - unchanged)
    assert all(importance[one] <= importance[other] for one in sent for other in kept)  # type: ignore[operator]


def test_a_share_that_is_all_blocks_once_rounded_is_refused() -> None:
    assert block_count(0.5, LAYOUT) == 1
    assert block_count(1.0, LAYOUT) == 2
    with refused(ConfigurationError, "out_of_range", at="method.shared_blocks", values=["0.9", "2 blocks"]):
        block_count(0.9, LAYOUT)
