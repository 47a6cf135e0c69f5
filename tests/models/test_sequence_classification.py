"""Sequence classifiers: padding changes no logit in any family, and saved models say what they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import SettingsOf, Tiny
from transformers import pipeline

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models.load import load
from fedstrata.models.state import Model
from fedstrata.tasks.windows import pad_ids, run_model

KIND = "sequence-classification"
LAST_TOKEN = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gemma3", "phi", "phi3"]
LAST_TOKEN += ["gpt2", "gpt_neox", "bloom", "opt", "mixtral"]
FIRST_TOKEN = ["bert", "roberta", "xlm-roberta", "distilbert", "deberta", "deberta-v2", "modernbert"]
FIRST_TOKEN += ["electra", "mpnet"]
# Not MobileBERT: a token sees the embedding of the next one, which is zero for its own padding token only.
QUICK = {"llama", "gpt2", "gemma3", "opt", "bert", "deberta-v2", "modernbert"}
END = 3
"""The tokenizer's end-of-sequence token, which also pads: it has no padding token."""


def logits_of(model: Model, rows: list[list[int]]) -> torch.Tensor:
    batch = pad_ids([np.array(row, dtype=np.int32) for row in rows], END)
    with torch.no_grad():
        return run_model(model.module, batch)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in QUICK else pytest.mark.slow)
        for family in LAST_TOKEN + FIRST_TOKEN
    ],
)
def test_padding_changes_no_logit_whatever_the_text_holds(family: str, tiny_model: Tiny) -> None:
    model = tiny_model(family, KIND)
    rows = [
        [2, 5, 6, 7, 8, 9, 10, 11, 12],
        [2, 5, END, 7, 8],  # a text that spells the padding token
        [2, 5, 6, END],  # and one that ends with it
        [END],  # what stands for a text without tokens
        [2],
    ]
    together = logits_of(model, rows)
    assert together.shape == (len(rows), 3)
    for row, logits in zip(rows, together, strict=True):
        torch.testing.assert_close(logits, logits_of(model, [row])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_a_decoder_answers_at_its_last_token_that_does_not_pad(family: str, tiny_model: Tiny) -> None:
    module = tiny_model(family, KIND).module
    rows = [[2, 5, 6, 7, 8, 9], [2, 5, END, 7], [2, 5, 6, END]]
    batch = pad_ids([np.array(row) for row in rows], END)
    logits = run_model(module, batch)
    for row, last, found in zip(rows, (5, 3, 2), logits, strict=True):
        hidden = module.base_model(torch.tensor([row]), output_hidden_states=True).last_hidden_state
        torch.testing.assert_close(found, module.score(hidden)[0, last], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "bert", "gemma3"])
@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification"])
def test_a_saved_model_says_whether_its_labels_exclude_each_other(
    family: str, problem_type: str, settings_of: SettingsOf, tmp_path: Path
) -> None:
    labels = ("401.9", "428.0", "584.9")
    arguments = {"kind": KIND, "labels": labels, "problem_type": problem_type}
    load(settings_of(family), **arguments, seed=Seed(0)).save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["problem_type"] == problem_type
    arguments["problem_type"] = other = "single_label_classification"
    again = load(ModelSettings(name=str(tmp_path / "model")), **arguments, seed=Seed(0))
    assert again.module.config.problem_type == other


def test_the_pipeline_of_transformers_applies_what_a_saved_model_says(
    settings_of: SettingsOf, tmp_path: Path
) -> None:
    sums = {}
    for problem_type in ("single_label_classification", "multi_label_classification"):
        folder = tmp_path / problem_type
        arguments = {"kind": KIND, "labels": ("a", "b", "c"), "problem_type": problem_type}
        load(settings_of("llama"), **arguments, seed=Seed(0)).save(folder)
        answers = pipeline("text-classification", str(folder), device="cpu")("w1 w2 w3", top_k=None)
        sums[problem_type] = sum(answer["score"] for answer in answers)
    assert sums["single_label_classification"] == pytest.approx(1.0)
    assert sums["multi_label_classification"] == pytest.approx(1.5, abs=0.2)
