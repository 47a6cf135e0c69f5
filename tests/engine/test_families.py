"""Loaded models of the families that are used most: kept, then trained by block, with and without LoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import own_models
import pytest
import torch
from support import TINY, executed, refused
from tiny_models import CONFIGURATIONS
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare
from fedstrata.models.given import keep_model
from fedstrata.results.result import open_result

ENCODERS = ("bert", "roberta", "deberta-v2", "modernbert")
DECODERS = ("gpt2", "llama", "qwen3", "mistral", "gemma3_text", "phi")
ADAPTERS = {"whole": "null", "lora": "{kind: lora, rank: 4}"}
QUICK = {("bert", "whole"), ("qwen3", "lora")}
FAMILIES = [
    pytest.param(
        family, adapter, id=f"{family}-{name}", marks=[pytest.mark.slow] * ((family, name) not in QUICK)
    )
    for family in (*ENCODERS, *DECODERS)
    for name, adapter in ADAPTERS.items()
]
NER = (
    *(each for each in TINY if not each.startswith("model.")),
    "federation.rounds=1",
    "federation.floors=false",
    "data.synthetic.notes=6",
)
LM = (
    *(each for each in NER if not each.startswith(("data.types", "task."))),
    *("task.name=lm", "task.max_length=48"),
)
TOP = "method={name: layer_skipping, top: 1}"


def kept(family: str, folder: Path) -> dict[str, Any]:
    tokenizer = own_models.tokenizer()
    config = CONFIG_MAPPING[family](**{**CONFIGURATIONS[family], "vocab_size": len(tokenizer)})
    auto = AutoModelForCausalLM if family in DECODERS else AutoModelForTokenClassification
    with Seed(0).everywhere():
        return keep_model(auto.from_config(config), tokenizer, folder / "inputs" / "model")


@pytest.mark.parametrize(("family", "adapter"), FAMILIES)
def test_the_top_block_of_a_loaded_model_learns_and_nothing_below(
    family: str, adapter: str, tmp_path: Path
) -> None:
    section = kept(family, tmp_path)
    task = LM if family in DECODERS else NER
    begun = (*task, f"model.name={section['name']}", TOP, f"adapter={adapter}")
    run = executed(tmp_path / "run", begun)
    before = prepare(read_source(None, [*begun])).model
    top = {*before.layout.blocks[-1], *before.layout.final_norm, *before.layout.head}
    assert set(run.state.tensors) <= top
    after = open_result(run.folder).model
    assert after.layout == before.layout
    now, then = (model.tensors(before.layout.all) for model in (after, before))
    moved = {name for name in before.layout.all if not torch.equal(now[name], then[name])}
    assert moved & set(before.layout.blocks[-1])
    assert moved <= set(run.state.tensors)
    assert all(torch.isfinite(tensor).all() for tensor in run.state.tensors.values())
    assert ("lora" in adapter) == bool(before.layout.frozen)
    assert all(
        torch.equal(after.tensors([name])[name], before.tensors([name])[name])
        for name in before.layout.frozen
    )


@pytest.mark.parametrize(
    ("family", "overrides", "path", "code", "values"),
    [
        ("gemma3_text", NER, "model.name", "not_supported", ["sequence-classification, causal-lm"]),
        ("modernbert", LM, "model.name", "not_supported", ["causal-lm"]),
        ("deberta-v2", (*NER, "adapter={kind: prefix}"), "adapter.kind", "not_supported", ["prefix"]),
        ("roberta", (*NER, "task.max_length=99"), "task.max_length", "out_of_range", [65]),
    ],
)
def test_what_a_family_cannot_do_is_said(
    family: str, overrides: tuple[str, ...], path: str, code: str, values: list[object], tmp_path: Path
) -> None:
    section = kept(family, tmp_path)
    with refused(ConfigurationError, code, at=path, values=values):
        prepare(read_source(None, [*overrides, f"model.name={section['name']}"]))


def test_a_loaded_head_of_another_task_is_replaced(tmp_path: Path) -> None:
    tokenizer = own_models.tokenizer()
    config = CONFIG_MAPPING["bert"](**{**CONFIGURATIONS["bert"], "vocab_size": len(tokenizer)})
    section = keep_model(
        AutoModelForSequenceClassification.from_config(config), tokenizer, tmp_path / "model"
    )
    model = prepare(read_source(None, [*NER, f"model.name={section['name']}"])).model
    assert set(model.new_parameters) == set(model.layout.head)
