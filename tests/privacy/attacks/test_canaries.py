"""Made-up patients: of what they are made, and whose they are."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from support import TINY, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.task import Task
from fedstrata.data.split import Split
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.privacy.attacks.canaries import Canaries, make_canaries, require_drawable, shadow_coins
from fedstrata.tasks import TASKS

NER = "task={name: ner, types: [problem, drug]}"
DATA = "data={format: synthetic, synthetic: {sites: 3, notes: 12}}"
TYPES = "data={format: synthetic, types: [problem, drug], synthetic: {sites: 3, notes: 12}}"
TASK_OF = {
    "ner": (TYPES, NER),
    "classify": (DATA, "task={name: classify, max_length: 64}"),
    "lm": (DATA, "task={name: lm}"),
}


def experiment_of(name: str) -> Experiment:
    return prepare(read_source(None, [*TINY[3:6], *TINY[8:], *TASK_OF[name]]))


def made(experiment: Experiment, count: int, number: int = 0) -> Canaries:
    tokenizer = experiment.model.tokenizer
    return make_canaries(experiment.task, tokenizer, ["site-1", "site-2"], count, 5, Seed(number))


@pytest.mark.parametrize("name", TASK_OF)
def test_a_canary_is_a_patient_of_one_short_document_that_the_task_can_learn(name: str) -> None:
    experiment = experiment_of(name)
    canaries = made(experiment, 40)
    for document, client in zip(canaries.documents, canaries.clients, strict=True):
        assert document.patient == document.id
        assert document.site == client
        assert len(document.text.split()) == 5
        (example,) = experiment.task.training_examples([document], experiment.model.tokenizer)
        assert len(example.windows) == 1
        assert float(experiment.task.terms(experiment.task.collate([example])).sum()) > 0
    texts = {document.text for document in canaries.documents}
    assert len(texts) == 40
    assert canaries.clients == ["site-1", "site-2"] * 20
    assert bool(any(document.spans for document in canaries.documents)) is (name == "ner")
    assert all(bool(document.labels) is (name == "classify") for document in canaries.documents)
    if name == "ner":
        marked = {
            document.text[span.start : span.end] for document in canaries.documents for span in document.spans
        }
        words = {word for document in canaries.documents for word in document.text.split()}
        assert marked <= words
        assert {span.label for document in canaries.documents for span in document.spans} == {
            "problem",
            "drug",
        }


def test_coins_are_fair_and_know_nothing_of_how_many_there_are() -> None:
    experiment = experiment_of("lm")
    shares = [made(experiment, 200, number).included.mean() for number in range(20)]
    assert 0.46 < np.mean(shares) < 0.54
    assert len({float(share) for share in shares}) > 5, "they are tossed, and not dealt out"
    few, many = made(experiment, 10), made(experiment, 20)
    assert few.documents == many.documents[:10]
    assert not np.array_equal(made(experiment, 40, 1).included, made(experiment, 40, 2).included)


@pytest.mark.parametrize("runs", [4, 5, 16])
def test_shadow_coins_are_balanced_and_know_nothing_of_the_targets(runs: int) -> None:
    count = 4000
    coins = shadow_coins(count, runs, Seed(1).child("shadow"))
    assert coins.shape == (runs, count)
    assert (coins.sum(axis=0) == runs // 2).all()
    halves = {tuple(own) for own in coins.T.tolist()}
    assert len(halves) > min(comb(runs, runs // 2), count) / 2, "each canary has a half of its own"
    target = Seed(1).child("canaries", "coins").numpy().random(count) < 0.5
    expected = runs // 2 / runs
    for own in coins:
        assert own.mean() == pytest.approx(expected, abs=0.04)
        assert own[target].mean() == pytest.approx(own[~target].mean(), abs=0.07)
    others = shadow_coins(count, runs, Seed(2).child("shadow"))
    assert (coins == others).mean() == pytest.approx(expected**2 + (1 - expected) ** 2, abs=0.02)


def test_those_that_are_left_out_are_in_no_documents() -> None:
    canaries = made(experiment_of("lm"), 30)
    added = canaries.added_to("site-1", Split())
    names = [canaries.documents[number].id for number in canaries.of("site-1") if canaries.included[number]]
    assert [document.id for document in added.train] == names
    assert canaries.of("site-1") == list(range(0, 30, 2))
    assert not added.validation
    assert not added.test


@pytest.mark.parametrize("name", TASKS)
def test_a_task_whose_documents_cannot_be_drawn_is_refused_by_name(name: str) -> None:
    task: Task = TASKS[name].model_construct()
    if name in TASK_OF:
        require_drawable(task)
        return
    with refused(ConfigurationError, "not_supported", at="task.name", values=[repr(name)]):
        require_drawable(task)
