"""Scoring many owners' documents in common batches."""

from __future__ import annotations

from math import ceil

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support import TINY

from fedstrata.core.sources import read_source
from fedstrata.engine.setup import prepare
from fedstrata.train.evaluate import BATCHES_TOGETHER, answer, answer_owners, grouped

LM = [
    *(item for item in TINY if not item.startswith(("data.types", "task."))),
    "task={name: lm, max_length: 16}",
]


def test_answers_are_those_of_each_owner_alone() -> None:
    experiment = prepare(read_source(None, LM))
    settings, task, model = experiment.settings.training, experiment.task, experiment.model
    documents = {name: own.train for name, own in experiment.clients.items()} | {"nobody": ()}
    alone = {name: answer(model, task, own, settings) for name, own in documents.items()}
    together = answer_owners(model, task, documents, settings)
    assert together.keys() == documents.keys()
    for name, answers in together.items():
        assert [item.tokens for item in answers] == [item.tokens for item in alone[name]]
        np.testing.assert_allclose([item.nats for item in answers], [item.nats for item in alone[name]], 1e-4)


def test_batches_hold_examples_of_several_owners(monkeypatch) -> None:
    experiment = prepare(read_source(None, LM))
    text = experiment.clients["site-1"].train[0]
    owners = {str(index): (text,) for index in range(10)}  # few enough for one group
    settings = experiment.settings.training
    each = len(experiment.task.encode((text,), experiment.model.tokenizer))
    passes: list[int] = []
    collate = type(experiment.task).collate

    def counted(self, batch):
        passes.append(len(batch))
        return collate(self, batch)

    monkeypatch.setattr(type(experiment.task), "collate", counted)
    answer_owners(experiment.model, experiment.task, owners, settings)
    assert sum(passes) == 10 * each
    assert len(passes) == ceil(10 * each / settings.eval_batch_size)


@given(counts=st.lists(st.integers(0, 40)), size=st.integers(1, 4))
def test_groups_hold_everything_once_in_order(counts: list[int], size: int) -> None:
    owned = [(str(index), list(range(count))) for index, count in enumerate(counts)]
    groups = list(grouped(iter(owned), size))
    assert [item for group in groups for item in group.items()] == owned
    sizes = [[len(examples) for examples in group.values()] for group in groups]
    assert all(sum(own) >= BATCHES_TOGETHER * size for own in sizes[:-1])
    assert all(sum(own[:-1]) < BATCHES_TOGETHER * size for own in sizes)
