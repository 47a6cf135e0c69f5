from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.policies.select import Progress, Schedule, best_blocks, equal_blocks, kept_count, random_blocks


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_the_best_blocks_are_those_a_full_sort_finds(scores: list[int], portion: float) -> None:
    kept = best_blocks([float(score) for score in scores], [range(len(scores))], portion)
    assert len(kept) == max(1, round(portion * len(scores)))
    left_out = [index for index in range(len(scores)) if index not in kept]
    for index in kept:
        for other in left_out:
            assert scores[index] > scores[other] or (scores[index] == scores[other] and index < other)


def test_every_group_of_equal_blocks_gets_its_portion() -> None:
    tensors = {
        name: torch.zeros(shape)
        for name, shape in {"a": (2, 3), "b": (3, 2), "c": (2, 3), "d": (3, 2), "e": (2, 3)}.items()
    }
    groups = equal_blocks([["a"], ["b"], ["c"], ["d"], ["e"]], tensors)
    assert groups == [[0, 2, 4], [1, 3]]
    assert best_blocks([1.0, 9.0, 3.0, 8.0, 2.0], groups, 0.5) == [1, 2, 4]
    assert best_blocks([1.0, 9.0, 3.0, 8.0, 2.0], groups, 0.1) == [1, 2]


def test_random_blocks_are_as_many_and_any_of_them() -> None:
    groups = [[0, 2, 4, 6], [1, 3]]
    drawn = [random_blocks(groups, 0.5, np.random.default_rng(seed)) for seed in range(60)]
    assert all(len(blocks) == 3 == len(set(blocks)) for blocks in drawn)
    assert all(sum(index % 2 for index in blocks) == 1 for blocks in drawn)
    assert {index for blocks in drawn for index in blocks} == {0, 1, 2, 3, 4, 6}
    assert random_blocks(groups, 1.0, np.random.default_rng(0)) == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize(("portion", "blocks", "kept"), [(0.75, 12, 9), (0.25, 12, 3), (0.01, 12, 1)])
def test_at_least_one_block_is_kept(portion: float, blocks: int, kept: int) -> None:
    assert kept_count(portion, blocks) == kept


def test_the_portion_steps_down_when_the_loss_no_longer_falls() -> None:
    progress, stages = Progress(), []
    losses = [5.0, 4.0, 3.99, 3.98, 3.5, 3.49, 3.48, 3.47, 3.3, 3.3, 3.3, 3.3, 3.3, 3.3, 3.3, 3.3]
    for loss in losses:
        stages.append(progress.step)
        progress = progress.after(loss, Schedule(patience=3))
    #  5.0 and 4.0 fall; 3.99, 3.98 do not by 1 %; 3.5 falls; the three after it do not, so the next portion.
    assert stages == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
