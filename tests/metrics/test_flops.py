"""Counted operations against those that torch counts as it runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import peft
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.pytorch_utils import Conv1D

from fedstrata.metrics.flops import FlopCounter
from fedstrata.models.blocks import Layout, block_modules, find_layout

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
WIDE = {**SIZES, "intermediate_size": 48}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": WIDE,
    "roberta": {**WIDE, "max_position_embeddings": 66},
    "distilbert": {
        "vocab_size": 64, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48,
        "max_position_embeddings": 64,
    },
    "gpt2": SIZES,
    "llama": {**WIDE, "num_key_value_heads": 2},
    "gpt_neox": WIDE,
    "qwen3": {**WIDE, "num_key_value_heads": 2, "head_dim": 16},
    "modernbert": {
        **WIDE, "global_attn_every_n_layers": 2, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "electra": {**WIDE, "embedding_size": 16},
    "deberta-v2": {
        **WIDE, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
    },
}  # fmt: skip
KINDS = {
    "token-classification": AutoModelForTokenClassification,
    "sequence-classification": AutoModelForSequenceClassification,
    "causal-lm": AutoModelForCausalLM,
}
WITHOUT_CAUSAL_LM = {"distilbert", "deberta-v2", "modernbert"}
ROWS, TOKENS = 3, 10


def tiny(family: str, kind: str = "token-classification") -> nn.Module:
    """A model of three blocks, all frozen."""
    config = AutoConfig.for_model(family, **FAMILIES[family])
    config._attn_implementation = "eager"  # torch counts no fused attention of a processor
    return KINDS[kind].from_config(config).requires_grad_(False)


def count(
    module: nn.Module, layout: Layout, names: Collection[str], rows: int = ROWS, tokens: int = TOKENS
) -> tuple[float, float]:
    """What torch counts for a step, and what of our count nobody needs: see `fedstrata.metrics.flops`."""
    trains = set(names)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trains)
    needless = 0.0

    def look(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal needless
        if not inputs[0].requires_grad and len(inputs[0]) == rows:  # not DeBERTa's positions
            needless += 2.0 * layer.weight.numel() * inputs[0].shape[:-1].numel()

    lowest = next((index for index, block in enumerate(layout.blocks) if trains & set(block)), None)
    handles = []
    if lowest is not None and not trains & set(layout.embedding):
        layers = block_modules(module, layout)[lowest].modules()
        own = [layer for layer in layers if isinstance(layer, nn.Linear | Conv1D)]
        handles = [layer.register_forward_pre_hook(look) for layer in own]
    ids = torch.randint(4, 60, (rows, tokens))
    with FlopCounterMode(display=False) as counted:
        module.train()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum().backward()
    for handle in handles:
        handle.remove()
    return float(counted.get_total_flops()), needless


def everything(module: nn.Module, layout: Layout) -> Collection[str]:
    return layout.all


def top(module: nn.Module, layout: Layout) -> Collection[str]:
    return [*layout.blocks[1], *layout.blocks[2], *layout.final_norm, *layout.head]


def small(module: nn.Module, layout: Layout) -> Collection[str]:
    """Norms and biases of the upper two blocks: gradients pass through weights of which none has one."""
    sizes = {name: parameter.ndim for name, parameter in module.named_parameters()}
    return [name for block in layout.blocks[1:] for name in block if sizes[name] < 2]


def head(module: nn.Module, layout: Layout) -> Collection[str]:
    return layout.head


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_counts_are_those_of_torch(family: str, kind: str) -> None:
    if kind == "causal-lm" and family in WITHOUT_CAUSAL_LM:
        pytest.skip("transformers has no such model")
    module = tiny(family, kind)
    layout = find_layout(module)
    for choice in (everything, top, small, head):
        names = choice(module, layout)
        if names:  # a head that is tied to the embedding has no names
            expected, needless = count(module, layout, names)
            counted = FlopCounter(module, layout, names).batch(ROWS, TOKENS)
            assert counted - needless == expected, choice.__name__


@given(rows=st.integers(1, 5), tokens=st.integers(2, 40))
def test_counts_are_those_of_torch_whatever_the_shape(rows: int, tokens: int) -> None:
    module = tiny("bert")
    layout = find_layout(module)
    names = top(module, layout)
    expected, needless = count(module, layout, names, rows, tokens)
    assert FlopCounter(module, layout, names).batch(rows, tokens) - needless == expected


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_the_layers_that_peft_adds_are_counted(family: str) -> None:
    settings = peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=["classifier", "score"])
    module = peft.get_peft_model(tiny(family), settings)
    layout = find_layout(module)
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    expected, needless = count(module, layout, names)
    counted = FlopCounter(module, layout, names).batch(ROWS, TOKENS)
    assert counted - needless == expected


def skipped(*blocks: nn.Module) -> None:
    for block in blocks:
        block.forward = lambda states, *args, **kwargs: states


@pytest.mark.parametrize("active", [(0, 1), (0, 2), (1, 2), (2,), ()])
@pytest.mark.parametrize("choice", [everything, top])
def test_blocks_that_do_not_run_cost_nothing(choice: Callable[..., Any], active: tuple[int, ...]) -> None:
    module = tiny("llama")
    layout = find_layout(module)
    names = choice(module, layout)
    counter = FlopCounter(module, layout, names)
    skipped(*(block for index, block in enumerate(block_modules(module, layout)) if index not in active))
    expected, _ = count(module, layout, names)  # norms come first here and train: nothing is needless
    assert counter.batch(ROWS, TOKENS, active_blocks=active) == expected


def test_stored_states_spare_the_frozen_blocks() -> None:
    module = tiny("bert")
    layout = find_layout(module)
    counter = FlopCounter(module, layout, [*layout.blocks[2], *layout.head])
    whole, spared = counter.batch(ROWS, TOKENS), counter.batch(ROWS, TOKENS, stored=2)
    assert whole - spared == counter.prefix(ROWS, TOKENS, 2)
    skipped(*block_modules(module, layout)[:2])
    expected, needless = count(module, layout, [*layout.blocks[2], *layout.head])
    assert spared - needless == expected


def test_checkpointed_blocks_run_forward_once_more() -> None:
    module = tiny("bert")
    layout = find_layout(module)
    once = FlopCounter(module, layout, layout.all).batch(ROWS, TOKENS)
    module.gradient_checkpointing_enable({"use_reentrant": False})
    again = FlopCounter(module, layout, layout.all).batch(ROWS, TOKENS)
    assert again - once == FlopCounter(module, layout, ()).prefix(ROWS, TOKENS, 3)


def test_of_a_mixture_the_experts_that_a_token_goes_to_are_counted() -> None:
    sizes = {**WIDE, "num_key_value_heads": 2, "num_local_experts": 4}
    by_experts = {}
    for experts in (1, 2):
        config = AutoConfig.for_model("mixtral", **sizes, num_experts_per_tok=experts)
        module = AutoModelForCausalLM.from_config(config)
        by_experts[experts] = FlopCounter(module, find_layout(module), ()).prefix(1, TOKENS, 3)
    assert by_experts[2] - by_experts[1] == 3 * TOKENS * 2.0 * 3 * 32 * 48
