"""Blocks that are left out do nothing at all, in any architecture."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import torch
from tiny_models import VARIANTS, Tiny
from torch import Tensor, nn

from fedstrata.models.blocks import block_modules, transformers_model
from fedstrata.models.prefix import skippable_blocks
from fedstrata.models.state import Model
from fedstrata.tasks.windows import run_model

QUICK = {"llama", "gpt2", "bert", "modernbert", "gemma3", "bloom"}
"""Families whose blocks give back the most unlike things."""
CHECKPOINTED = {"llama", "bert"}
IDS = torch.arange(4, 22).view(2, 9)
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def calls(module: nn.Module) -> Counter[str]:
    """Counts from now on how often each part that has weights of its own runs."""
    counts: Counter[str] = Counter()
    for name, part in module.named_modules():
        if any(True for _ in part.parameters(recurse=False)):
            part.register_forward_pre_hook(lambda *_, name=name: counts.update([name]))
    return counts


def logits(model: Model) -> Tensor:
    return run_model(model.module, BATCH)


@pytest.mark.parametrize(
    ("variant", "checkpointing"),
    [
        pytest.param(
            one,
            checkpointing,
            id="-".join([*one, "checkpointing" if checkpointing else "plain"]),
            marks=() if one[0] in (QUICK & CHECKPOINTED if checkpointing else QUICK) else pytest.mark.slow,
        )
        for checkpointing in (False, True)
        for one in VARIANTS
    ],
    indirect=["variant"],
)
def test_a_block_that_is_left_out_runs_neither_forward_nor_backward(
    tiny_model: Tiny, variant: tuple[str, str], checkpointing: bool
) -> None:
    model = tiny_model(*variant)
    transformers = transformers_model(model.module)
    if checkpointing:
        if not transformers.supports_gradient_checkpointing:
            pytest.skip("transformers has no checkpointing here")
        transformers.activation_checkpointing_enable()
    model.train_only(model.layout.all)
    model.module.train()
    with skippable_blocks(model.module, model.layout, lambda: logits(model)) as skip:
        counts = calls(block_modules(model.module, model.layout))
        for left_out in (1, 0):
            skip([left_out])
            logits(model).square().sum().backward()
            ran = {name.split(".")[0] for name in counts}
            assert ran == {str(1 - left_out)}
            gradients = [
                [parameter.grad is not None for parameter in model.parameters(block)]
                for block in model.layout.blocks
            ]
            assert not any(gradients[left_out]) and any(gradients[1 - left_out])
            model.restore()  # drops gradients
            counts.clear()
        skip([])
        logits(model)
        assert {name.split(".")[0] for name in counts} == {"0", "1"}


@pytest.mark.parametrize(
    "family", ["llama", "gemma2", "gpt2", "gpt_neox", "bert", "distilbert", "modernbert"]
)
def test_what_is_left_is_the_model_without_that_block(tiny_model: Tiny, family: str) -> None:
    """The reference takes the block out of the list and puts nothing but an identity in its place."""

    class Identity(nn.Module):
        attention_type = "full_attention"

        def forward(self, states: Tensor, *_: Any, **__: Any) -> Tensor:
            return states

    model = tiny_model(family, "sequence-classification")
    with torch.no_grad(), skippable_blocks(model.module, model.layout, lambda: logits(model)) as skip:
        skip([1])
        shortened = logits(model)
    blocks = block_modules(model.module, model.layout)
    replaced = Identity()
    with suppress(AttributeError):  # Gemma says at the block which attention it is
        replaced.attention_type = blocks[1].attention_type  # type: ignore[assignment]
    blocks[1] = replaced
    with torch.no_grad():
        assert torch.equal(logits(model), shortened)


def test_the_model_is_itself_again_afterwards(tiny_model: Tiny) -> None:
    model = tiny_model("deberta-v2")
    with torch.no_grad():
        before = logits(model)
        with skippable_blocks(model.module, model.layout, lambda: logits(model)) as skip:
            skip([0, 1])
            assert not torch.equal(logits(model), before)
        assert torch.equal(logits(model), before)
    assert not any("forward" in vars(block) for block in block_modules(model.module, model.layout))
