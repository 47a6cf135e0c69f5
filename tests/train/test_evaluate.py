"""Scoring many owners' documents in common batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support import TINY, prepared

from fedstrata.core.documents import Document
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare
from fedstrata.train.evaluate import BATCHES_TOGETHER, answer, answer_owners, encoded_groups

LM = [
    *(item for item in TINY if not item.startswith(("data.types", "task."))),
    "task={name: lm, max_length: 16}",
]


def test_answers_are_those_of_each_owner_alone() -> None:
    experiment = prepared()
    settings, task, model = experiment.settings.training, experiment.task, experiment.model
    documents = {name: own.train for name, own in experiment.clients.items()} | {"nobody": ()}
    together = answer_owners(model, task, documents, settings)
    assert together == {name: answer(model, task, own, settings) for name, own in documents.items()}


@given(counts=st.lists(st.integers(0, 9)), size=st.integers(1, 2))
def test_groups_hold_every_document_once_in_order(counts: list[int], size: int) -> None:
    owned = {str(index): [Document(str(n), "x") for n in range(count)] for index, count in enumerate(counts)}
    groups = list(encoded_groups(OneEach(), None, owned, size))
    places = [at for group in groups for together, _ in group for at in together]
    assert places == [(owner, n) for owner, own in owned.items() for n in range(len(own))]
    sizes = [[len(examples) for _, examples in group] for group in groups]
    assert all(sum(own) >= BATCHES_TOGETHER * size for own in sizes[:-1])
    assert all(sum(own[:-1]) < BATCHES_TOGETHER * size for own in sizes)


class OneEach:
    """A task of which each document is an example."""

    packed = False

    def encode(self, documents, tokenizer):
        return list(documents)


def test_scores_of_packed_text_do_not_depend_on_whose_it_is() -> None:
    experiment = prepare(read_source(None, LM))
    settings, task, model = experiment.settings.training, experiment.task, experiment.model
    documents = sorted(
        (text for own in experiment.clients.values() for text in own.train), key=lambda t: t.id
    )
    ways = [
        {"all": documents},
        {str(part): documents[part::5] for part in range(5)},
        {str(part): documents[part::3][::-1] for part in range(3)},
    ]
    found = []
    for owned in ways:
        answers = answer_owners(model, task, owned, settings)
        pairs = [pair for owner in owned for pair in zip(owned[owner], answers[owner], strict=True)]
        found.append([answer for _, answer in sorted(pairs, key=lambda pair: pair[0].id)])
    assert found[0] == found[1] == found[2]
