"""Stacked adapters: one product that is the sum of several, in any family of models."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import assert_same_tensors
from tiny_models import Tiny
from transformers import AutoModelForTokenClassification

from fedstrata.adapters.attach import attach, plain_tensors
from fedstrata.adapters.rank import is_lora
from fedstrata.adapters.stack import AdaptedLayer, adapted_layers, fresh, stacked, with_product
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import LoraSettings
from fedstrata.models.state import Model

LAYER = AdaptedLayer(
    "x.base_layer.weight", "x.lora_A.default.weight", "x.lora_B.default.weight", 0.5, transposed=False
)


def adapter(rank: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {LAYER.first: (rank, 7), LAYER.second: (5, rank)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 6)), min_size=1, max_size=5), st.booleans())
def test_the_product_of_stacks_is_the_weighted_sum_of_the_products(
    cases: list[tuple[float, int]], transposed: bool
) -> None:
    adapters = [(weight, adapter(rank, seed)) for seed, (weight, rank) in enumerate(cases)]
    stack = stacked(adapters)
    ranks = sum(rank for _, rank in cases)
    assert stack[LAYER.first].shape == (ranks, 7)
    assert stack[LAYER.second].shape == (5, ranks)
    naive = sum(weight * own[LAYER.second].double() @ own[LAYER.first].double() for weight, own in adapters)
    layer = AdaptedLayer(LAYER.weight, LAYER.first, LAYER.second, 0.5, transposed)
    before = torch.randn((7, 5) if transposed else (5, 7), generator=torch.Generator().manual_seed(9))
    found = with_product(before, stack, layer)
    expected = before.double() + 0.5 * (naive.T if transposed else naive)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    half = with_product(before.bfloat16(), stack, layer)
    assert half.dtype == torch.bfloat16


@pytest.fixture
def adapted(tiny_model: Tiny) -> Tiny:
    """Makes a tiny model of a family with a LoRA whose values are all random."""

    def make(family: str, kind: str = "token-classification") -> Model:
        model = attach(tiny_model(family, kind), LoraSettings(rank=3), kind=kind, seed=Seed(1))
        generator = torch.Generator().manual_seed(5)
        model.load(
            {
                name: torch.randn(tensor.shape, generator=generator) / 10
                for name, tensor in model.tensors(model.layout.all).items()
            }
        )
        return model

    return make


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "distilbert", "gpt_neox", "deberta-v2"])
def test_a_weight_with_its_product_is_what_peft_merges(adapted: Tiny, family: str) -> None:
    model = adapted(family)
    layers = adapted_layers(model.module)
    values = dict(model.module.named_parameters())
    lora = [name for name in model.layout.all if is_lora(name)]
    assert sorted(lora) == sorted(name for layer in layers for name in (layer.first, layer.second))
    for layer in layers:
        module = model.module.get_submodule(layer.weight.removesuffix(".base_layer.weight"))
        expected = values[layer.weight] + module.get_delta_weight("default")
        torch.testing.assert_close(with_product(values[layer.weight], values, layer), expected)


@pytest.mark.parametrize("family", ["llama-tied", "gpt2", "bert", "distilbert"])
def test_a_model_is_saved_without_its_adapter_as_what_it_computes(
    adapted: Tiny, family: str, tmp_path
) -> None:
    model = adapted(family)
    before = {name: value.clone() for name, value in model.module.named_parameters()}
    model.save(tmp_path / "plain", plain=plain_tensors(model))
    assert_same_tensors(dict(model.module.named_parameters()), before)
    assert not (tmp_path / "plain" / "adapter_config.json").exists()
    loaded, info = AutoModelForTokenClassification.from_pretrained(
        tmp_path / "plain", output_loading_info=True
    )
    assert not any(info.values())
    batch = {"input_ids": torch.tensor([[3, 4, 5, 6]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    model.module.train(False)
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batch).logits, model.module(**batch).logits, rtol=1e-4, atol=1e-5)


def test_a_fresh_adapter_changes_nothing_and_is_drawn_as_peft_draws_it(adapted: Tiny) -> None:
    model = adapted("llama")
    shapes = model.tensors([name for name in model.layout.all if is_lora(name)])
    one, same, other = (fresh(shapes, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    for name, tensor in one.items():
        assert torch.equal(tensor, same[name])
        if ".lora_B." in name:
            assert not tensor.any()
            continue
        assert not torch.equal(tensor, other[name])
        bound = 1 / math.sqrt(tensor.shape[1])  # Kaiming's with a = sqrt(5)
        assert 0.7 * bound < float(tensor.abs().max()) <= bound
