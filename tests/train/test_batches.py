"""The order of a local training's batches."""

from __future__ import annotations

from math import ceil

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.train.batches import LengthGroups, loader


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=300), size=st.integers(1, 20))
def test_an_epoch_goes_through_every_example_once(lengths: list[int], size: int) -> None:
    groups = LengthGroups(lengths, size, torch.Generator().manual_seed(0))
    batches = list(groups)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert len(batches) == len(groups) == ceil(len(lengths) / size)
    assert sorted(map(len, batches))[1:] == [size] * (len(batches) - 1)


def test_batches_hold_little_padding_and_change_from_epoch_to_epoch() -> None:
    lengths = Seed(0).numpy().integers(10, 300, size=800).tolist()
    examples = [torch.zeros(length) for length in lengths]

    def epochs(*, grouped: bool) -> list[list[list[int]]]:
        settings = TrainingSettings(batch_size=16, group_by_length=grouped)
        batches = loader(examples, settings, Seed(1), lambda batch: [len(example) for example in batch])
        return [list(batches) for _ in range(2)]

    def padded(epoch: list[list[int]]) -> float:
        return sum(len(batch) * max(batch) for batch in epoch) / sum(lengths)

    plain, grouped = epochs(grouped=False), epochs(grouped=True)
    assert padded(plain[0]) > 1.7
    assert padded(grouped[0]) < 1.1
    assert grouped == epochs(grouped=True)
    assert {tuple(batch) for batch in grouped[0]}.isdisjoint(tuple(batch) for batch in grouped[1])
    means = [sum(batch) / len(batch) for batch in grouped[0]]
    assert means not in (sorted(means), sorted(means, reverse=True)), "lengths must come in no order"
