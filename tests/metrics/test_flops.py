"""Counted operations against those that torch counts as it runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from itertools import product
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft.tuners.tuners_utils import BaseTunerLayer
from tiny_models import CONFIGURATIONS, WITHOUT_CAUSAL_LM
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from fedstrata.adapters.attach import wrap
from fedstrata.adapters.rank import held
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.model import Layout
from fedstrata.core.settings.adapter import AdapterSettings, BottleneckSettings, LoraSettings, PrefixSettings
from fedstrata.core.types import AdapterSize
from fedstrata.metrics.flops import FlopCounter
from fedstrata.models.blocks import block_modules, find_layout

FAMILIES = (
    *("bert", "roberta", "distilbert", "gpt2", "llama", "gpt_neox", "qwen3", "modernbert", "electra"),
    "deberta-v2",
)
CHANGES = {
    "distilbert": {"n_layers": 3},
    "qwen3": {"head_dim": 16},
    "deberta-v2": {"conv_kernel_size": 0},
}
"""What is other than in `CONFIGURATIONS`."""
KINDS = {
    "token-classification": AutoModelForTokenClassification,
    "sequence-classification": AutoModelForSequenceClassification,
    "causal-lm": AutoModelForCausalLM,
}
ROWS, TOKENS = 3, 10
QUICK = {
    ("bert", "sequence-classification"),
    ("gpt2", "token-classification"),
    ("llama", "causal-lm"),
    ("deberta-v2", "token-classification"),
    ("modernbert", "sequence-classification"),
}
"""Models that differ most in what they compute."""
QUICK_ADAPTED = {
    ("gpt2", "token-classification", "lora"),
    ("deberta-v2", "sequence-classification", "lora"),
    ("bert", "token-classification", "bottleneck"),
    ("llama", "sequence-classification", "prefix"),
}


def cases(choice: Collection[tuple[str, ...]], *parts: Collection[str]) -> list[Any]:
    """Every combination, all of them slow but for those chosen."""
    return [
        pytest.param(*case, id="-".join(case), marks=() if case in choice else pytest.mark.slow)
        for case in product(*parts)
    ]


def tiny(family: str, kind: str = "token-classification") -> nn.Module:
    """A model of three blocks, all frozen."""
    sizes = {**CONFIGURATIONS[family], "num_hidden_layers": 3, **CHANGES.get(family, {})}
    config = AutoConfig.for_model(family, **sizes)
    config._attn_implementation = "eager"  # torch counts no fused attention of a processor
    return KINDS[kind].from_config(config).requires_grad_(False)


def count(
    module: nn.Module, layout: Layout, names: Collection[str], rows: int = ROWS, tokens: int = TOKENS
) -> float:
    """What torch counts for a step."""
    trains = set(names)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trains)
    ids = torch.randint(4, 60, (rows, tokens))
    with FlopCounterMode(display=False) as counted:
        module.train()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum().backward()
    return float(counted.get_total_flops())


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


@pytest.mark.parametrize(("family", "kind"), cases(QUICK, FAMILIES, KINDS))
def test_counts_are_those_of_torch(family: str, kind: str) -> None:
    if kind == "causal-lm" and family in WITHOUT_CAUSAL_LM:
        pytest.skip("transformers has no such model")
    module = tiny(family, kind)
    layout = find_layout(module)
    for choice in (everything, top, small, head):
        names = choice(module, layout)
        if names:  # a head that is tied to the embedding has no names
            counted = FlopCounter(module, layout, names).batch(ROWS, TOKENS)
            assert counted == count(module, layout, names), choice.__name__


BERT = cache(lambda: tiny("bert"))


@pytest.mark.slow  # one shape of every model is fast
@given(rows=st.integers(1, 5), tokens=st.integers(2, 40))
def test_counts_are_those_of_torch_whatever_the_shape(rows: int, tokens: int) -> None:
    module = BERT()
    layout = find_layout(module)
    names = top(module, layout)
    expected = count(module, layout, names, rows, tokens)
    assert FlopCounter(module, layout, names).batch(rows, tokens) == expected


ADAPTERS: dict[str, AdapterSettings] = {
    "lora": LoraSettings(kind="lora", rank=3),
    "bottleneck": BottleneckSettings(kind="bottleneck", width=5),
    "prefix": PrefixSettings(kind="prefix", tokens=4),
}


def adapted(
    family: str, adapter: AdapterSettings, kind: str = "token-classification"
) -> tuple[nn.Module, Layout]:
    """A tiny model with an adapter that nothing is zero in, and its layout."""
    module = tiny(family, kind)
    new = [name for name, _ in module.named_parameters()]
    wrapped, learnable = wrap(module, adapter, kind=kind, new=new)
    return wrapped, find_layout(wrapped, learnable)


@pytest.mark.parametrize(
    ("family", "kind", "adapter"),
    cases(QUICK_ADAPTED, FAMILIES, ("token-classification", "sequence-classification"), ADAPTERS),
)
def test_counts_with_adapters_are_those_of_torch(family: str, kind: str, adapter: str) -> None:
    try:
        module, layout = adapted(family, ADAPTERS[adapter], kind)
    except ConfigurationError:
        pytest.skip("this adapter does not fit this model")
    for lowest in range(3):  # and only the upper blocks' adapters train
        names = [*(name for block in layout.blocks[lowest:] for name in block), *layout.head]
        counted = FlopCounter(module, layout, names).batch(ROWS, TOKENS)
        assert counted == count(module, layout, names), lowest


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["o_proj"], ["v_proj", "down_proj"]], ids=str)
def test_counts_with_lora_in_some_layers_are_those_of_torch(targets: list[str]) -> None:
    module, layout = adapted("llama", LoraSettings(kind="lora", rank=2, targets=targets))
    assert FlopCounter(module, layout, layout.all).batch(ROWS, TOKENS) == count(module, layout, layout.all)


@pytest.mark.parametrize(
    ("narrow", "kind", "family"),
    [
        pytest.param(
            *case,
            id="-".join(map(str, case)),
            marks=() if case in {(2, "lora", "llama"), (1, "bottleneck", "bert")} else pytest.mark.slow,
        )
        for case in product((1, 2), ("lora", "bottleneck"), ("bert", "gpt2", "llama", "deberta-v2"))
    ],
)
def test_a_device_with_fewer_ranks_is_counted_with_those(
    narrow: int, kind: Literal["lora", "bottleneck"], family: str
) -> None:
    """The model's adapters are wider than the device's and lie in blocks that have none there."""
    wide, own = (
        LoraSettings(kind="lora", rank=rank) if kind == "lora" else BottleneckSettings(kind=kind, width=rank)
        for rank in (4, narrow)
    )
    module, layout = adapted(family, wide)
    names = [*layout.blocks[2], *layout.head]
    size = AdapterSize(narrow, frozenset(name for block in layout.blocks[:2] for name in block))
    counter = FlopCounter(module, layout, names, lambda name, tensor: held(name, tensor, size))
    device, its = adapted(family, own)
    for name, part in device.named_modules():  # as if the lower blocks had never had an adapter
        if isinstance(part, BaseTunerLayer) and f"{its.blocks_path}.2." not in name:
            part.enable_adapters(False)
    assert counter.batch(ROWS, TOKENS) == count(device, its, [*its.blocks[2], *its.head])


def skipped(*blocks: nn.Module) -> None:
    for block in blocks:
        block.forward = lambda states, *args, **kwargs: states


@pytest.mark.parametrize("active", [(0, 1), (0, 2), (1, 2), (2,), ()])
@pytest.mark.parametrize("choice", [everything, top, "lora", "bottleneck"])
def test_blocks_that_do_not_run_cost_nothing_nor_do_their_adapters(
    choice: Callable[..., Any] | str, active: tuple[int, ...]
) -> None:
    if isinstance(choice, str):
        module, layout = adapted("bert", ADAPTERS[choice], "sequence-classification")
        names = layout.all
    else:
        module = tiny("llama")
        layout = find_layout(module)
        names = choice(module, layout)
    counter = FlopCounter(module, layout, names)
    skipped(*(block for index, block in enumerate(block_modules(module, layout)) if index not in active))
    expected = count(module, layout, names)
    assert counter.batch(ROWS, TOKENS, active_blocks=active) == expected


def test_stored_states_spare_the_frozen_blocks() -> None:
    module = tiny("bert")
    layout = find_layout(module)
    counter = FlopCounter(module, layout, [*layout.blocks[2], *layout.head])
    whole, spared = counter.batch(ROWS, TOKENS), counter.batch(ROWS, TOKENS, stored=2)
    assert whole - spared == counter.prefix(ROWS, TOKENS, 2)
    skipped(*block_modules(module, layout)[:2])
    assert spared == count(module, layout, [*layout.blocks[2], *layout.head])


def test_checkpointed_blocks_run_forward_once_more() -> None:
    module = tiny("bert")
    layout = find_layout(module)
    once = FlopCounter(module, layout, layout.all).batch(ROWS, TOKENS)
    module.gradient_checkpointing_enable({"use_reentrant": False})
    again = FlopCounter(module, layout, layout.all).batch(ROWS, TOKENS)
    assert again - once == FlopCounter(module, layout, ()).prefix(ROWS, TOKENS, 3)


def test_of_a_mixture_the_experts_that_a_token_goes_to_are_counted() -> None:
    sizes = {**CONFIGURATIONS["mixtral"], "num_hidden_layers": 3, "num_local_experts": 4}
    by_experts = {}
    for experts in (1, 2):
        config = AutoConfig.for_model("mixtral", **{**sizes, "num_experts_per_tok": experts})
        module = AutoModelForCausalLM.from_config(config)
        by_experts[experts] = FlopCounter(module, find_layout(module), ()).prefix(1, TOKENS, 3)
    assert by_experts[2] - by_experts[1] == 3 * TOKENS * 2.0 * 3 * 32 * 48
