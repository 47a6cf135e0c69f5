"""Log-likelihoods of answers after prompts, against loops over tokens without a cache and without padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import CONFIGURATIONS, WITHOUT_CAUSAL_LM

from fedstrata.adapters.attach import attach
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import BottleneckSettings, LoraSettings, PrefixSettings
from fedstrata.models.state import Model
from fedstrata.tasks.cloze import ClozeQuestions
from fedstrata.tasks.continuations import log_likelihoods
from fedstrata.tasks.questions import ClozeExample

FAMILIES = [family for family in CONFIGURATIONS if family not in WITHOUT_CAUSAL_LM]
QUICK = {"llama", "gpt2", "gemma3", "bloom", "bert"}
"""Families that keep the most unlike things of a prompt, and one that keeps nothing."""
Make = Callable[..., Model]


def questions(longest: int, seed: int = 0) -> list[ClozeExample]:
    """Questions of unequal length with unequal numbers of answers; token 0 pads, and is none of theirs."""
    rng = np.random.default_rng(seed)
    made = []
    for number, (prompt, counts) in enumerate(
        [(7, (1, 3, 2)), (13, (2,)), (2, (1, 4, 1, 2, 3)), (9, (1, 1))]
    ):
        ids = [rng.integers(4, 40, size=size).astype(np.int32) for size in (prompt, *counts)]
        answers = tuple(each[:longest] for each in ids[1:])
        right = number % len(answers) if number != 2 else -1
        made.append(ClozeExample(number, "", ("",) * len(answers), ids[0], answers, right, 0))
    return made


def naive(module: Any, example: ClozeExample) -> list[float]:
    sums = []
    for answer in example.answers:
        total, ids = 0.0, example.prompt.tolist()
        for token in answer.tolist():
            with torch.no_grad():
                logits = module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            total += float(logits.double().log_softmax(-1)[token])
            ids.append(token)
        sums.append(total)
    return sums


def far_from_uniform(model: Model) -> Any:
    for parameter in model.module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.module.train(False)


def check(module: Any, examples: list[ClozeExample]) -> None:
    found = log_likelihoods(module, ClozeQuestions().collate(examples)).tolist()
    expected = [value for example in examples for value in naive(module, example)]
    assert found == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("longest", [1, 4])
@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family in QUICK else pytest.mark.slow) for family in FAMILIES]
)
def test_answers_in_a_batch_are_as_likely_as_alone(tiny_model: Make, family: str, longest: int) -> None:
    check(far_from_uniform(tiny_model(family, "causal-lm")), questions(longest))


@pytest.mark.parametrize("family", ["gemma3_text", "mistral"])
def test_a_sliding_window_slides_alike(tiny_model: Make, family: str) -> None:
    check(far_from_uniform(tiny_model(family, "causal-lm", config={"sliding_window": 5})), questions(4))


@pytest.mark.parametrize(
    "settings",
    [
        LoraSettings(kind="lora", rank=2),
        BottleneckSettings(kind="bottleneck", width=4),
        PrefixSettings(kind="prefix", tokens=3),
    ],
    ids=lambda settings: settings.kind,
)
def test_answers_of_a_model_with_an_adapter(tiny_model: Make, settings: Any) -> None:
    model = attach(tiny_model("llama", "causal-lm"), settings, kind="causal-lm", seed=Seed(1))
    generator = torch.Generator().manual_seed(7)
    model.load(
        {
            name: value + 0.2 * torch.randn(value.shape, generator=generator)
            for name, value in model.tensors(model.layout.all).items()
        }
    )
    check(model.module.train(False), questions(4))
