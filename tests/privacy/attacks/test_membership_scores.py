"""Scores of canaries: what updates that are made of known draws tell of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from private_client import PrivateClient, private_client

from fedstrata.core.seeding import Seed
from fedstrata.privacy.attacks import membership as module
from fedstrata.privacy.attacks.canaries import make_canaries
from fedstrata.privacy.attacks.membership import UpdateScores, draws, losses, ridge_of

CLIP = 0.5
SHORT = "task={name: ner, types: [problem, test, treatment, drug], max_length: 64, stride: 8}"


def scorer_of(own: PrivateClient, count: int, ridge: float = 0.0) -> UpdateScores:
    task, model = own.experiment.task, own.experiment.model
    canaries = make_canaries(task, model.tokenizer, ["site-1"], count, 5, Seed(3))
    units = [task.training_examples([document], model.tokenizer) for document in canaries.documents]
    return UpdateScores(model, task, units, CLIP, ridge, Seed(4))


def update_of(own: PrivateClient, units: list[Any]) -> dict[str, torch.Tensor]:
    """Returns what a client sends after one step on these units, made by the mechanism itself."""
    sums = own.sum_over(units, CLIP)
    before = own.experiment.model.tensors(own.names)
    pairs = zip(before.items(), sums, strict=True)
    return {name: tensor - 0.01 * total.float() for (name, tensor), total in pairs}


@pytest.mark.parametrize("kept", [2**28, 2**17], ids=["all", "some coordinates"])
def test_an_update_tells_of_whom_it_was_made(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBERS_KEPT", kept)
    own = private_client(SHORT)
    scorer = scorer_of(own, 24)
    included = np.random.default_rng(0).random(24) < 0.5
    scorer.see(update_of(own, [unit for unit, there in zip(scorer.units, included, strict=True) if there]))
    assert np.corrcoef(scorer.scores, included)[0, 1] > (0.95 if kept == 2**28 else 0.8)
    assert (scorer.share == 1.0) is (kept == 2**28)
    assert scorer.seen == 1


def test_hooks_and_single_units_give_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    own = private_client(SHORT)
    hooked, single = scorer_of(own, 10), scorer_of(own, 10)
    update = update_of(own, hooked.units[:4])
    hooked.see(update)
    monkeypatch.setattr(module, "hookable", lambda *_: False)
    single.see(update)
    assert np.allclose(hooked.scores, single.scores, rtol=1e-3, atol=1e-5)


def test_a_change_tells_what_the_value_tells() -> None:
    """FedTLU sends changes, other methods values."""
    own = private_client(SHORT)
    values, changes = scorer_of(own, 10), scorer_of(own, 10)
    changes.sends_changes = True
    update = update_of(own, values.units[:4])
    before = own.experiment.model.tensors(own.names)
    values.see(update)
    changes.see({name: tensor - before[name] for name, tensor in update.items()})
    assert values.scores.any()
    assert np.allclose(values.scores, changes.scores, rtol=1e-3, atol=1e-5)


def test_what_is_no_parameter_says_nothing() -> None:
    scorer = scorer_of(private_client(SHORT), 4)
    scorer.see({"strange": torch.ones(3)})
    assert scorer.seen == 0
    assert not scorer.scores.any()


def test_draws_are_found_though_gradients_are_alike() -> None:
    """Products alone say little: most of each is what all have in common."""
    generator = np.random.default_rng(1)
    gradients = generator.normal(size=(60, 400)) + 3.0 * generator.normal(size=(1, 400))
    gradients += generator.normal(size=(60, 3)) @ generator.normal(size=(3, 400))
    counts = generator.integers(0, 4, size=60)
    gram, products = gradients @ gradients.T, gradients @ (gradients.T @ counts)
    assert np.corrcoef(draws(products, gram, 0.0), counts)[0, 1] > 0.9
    assert np.corrcoef(products, counts)[0, 1] < 0.6
    believed = draws(products, gram, 1e9)  # somebody claims that there is much noise, and there is none
    assert np.corrcoef(believed, counts)[0, 1] > 0.9
    noisy = products + gradients @ generator.normal(scale=1e5, size=400)
    sums = gram.sum(axis=1)
    centred = noisy - sums * (sums @ noisy) / (sums @ sums)  # nothing but noise: products, less their mean
    assert np.corrcoef(draws(noisy, gram, 1e9), centred)[0, 1] > 0.99
    assert np.corrcoef(draws(noisy, gram, 1.0), centred)[0, 1] < 0.9, "there is no more than is claimed"
    assert not draws(np.zeros(3), np.zeros((3, 3)), 1.0).any()


def test_noise_by_the_variance_of_draws() -> None:
    generator, steps, rate = np.random.default_rng(2), 5, 0.3
    counts = generator.binomial(steps, rate, size=200_000) * (generator.random(200_000) < 0.5)
    assert ridge_of(2.0, steps, rate) == pytest.approx(steps * 4.0 / counts.var(), rel=0.02)


def test_losses_are_means_over_a_canarys_own_terms() -> None:
    own = private_client(SHORT)
    scorer = scorer_of(own, 3)
    task, module_ = scorer.task, own.experiment.model.module.train(False)
    expected = []
    for unit in scorer.units:
        with torch.no_grad():
            loss, count = task.loss(module_, task.collate(unit))
        expected.append(float(loss / count))
    found = losses(own.experiment.model, task, scorer.units)
    assert found.tolist() == pytest.approx(expected)
    seen = [set(np.concatenate(unit[0].windows).tolist()) for unit in scorer.units]
    with torch.no_grad():  # a word of the first alone is unknown to the model
        module_.get_input_embeddings().weight[next(iter(seen[0] - seen[1] - seen[2]))] = torch.inf
    broken = losses(own.experiment.model, task, scorer.units).tolist()
    assert broken[1:] == pytest.approx(expected[1:])
    assert broken[0] == max(broken[1:]), "who cannot be learnt is not taken for somebody who was"
