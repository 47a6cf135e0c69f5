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
    assert len(kept) == max(1, int(portion * len(scores) + 0.5))
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


@pytest.mark.parametrize(
    ("portion", "blocks", "kept"),
    [(0.75, 12, 9), (0.25, 12, 3), (0.01, 12, 1), (0.75, 6, 5), (0.25, 6, 2), (0.5, 5, 3)],
)
def test_a_share_of_the_blocks_is_kept_rounded_half_up_and_at_least_one(
    portion: float, blocks: int, kept: int
) -> None:
    assert kept_count(portion, blocks) == kept


def test_the_portion_steps_down_when_the_loss_no_longer_falls() -> None:
    progress, stages = Progress(), []
    losses = [5.0, 4.0, 3.99, 3.98, 3.5, 3.49, 3.48, 3.47, 3.3, 3.3, 3.3, 3.3, 3.3, 3.3, 3.3, 3.3]
    for loss in losses:
        stages.append(progress.step)
        progress = progress.after(loss, Schedule(patience=3))
    #  5.0 and 4.0 fall; 3.99, 3.98 do not by 1 %; 3.5 falls; the three after it do not, so the next portion.
    assert stages == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_a_slow_and_steady_fall_steps_down_by_one_reading_and_not_by_the_other() -> None:
    """Of each round by half a percent; in five of them by more than one."""
    steps = {}
    for waiting in ("since_best", "in_a_row"):
        progress = Progress()
        for number in range(40):
            progress = progress.after(0.995**number, Schedule(waiting=waiting))
        steps[waiting] = progress.step
    assert steps == {"since_best": 0, "in_a_row": 2}


def test_in_a_row_one_round_that_falls_begins_anew() -> None:
    progress, schedule = Progress(), Schedule(patience=3, waiting="in_a_row")
    stages = []
    for loss in (1.0, 0.999, 0.998, 0.9, 0.899, 0.898, 0.897, 0.896):
        progress = progress.after(loss, schedule)
        stages.append((progress.step, progress.waited))
    assert stages == [(0, 0), (0, 1), (0, 2), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
