"""What tests of divided models share: deeper tiny models, both sides of one, a step through them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from stored_states import Regression, texts
from tiny_models import CONFIGURATIONS, VARIANTS, variants
from torch import Tensor, nn
from transformers import AutoConfig

from fedstrata.adapters.attach import attach
from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import LoraSettings
from fedstrata.models.state import Model
from fedstrata.split.divide import divide
from fedstrata.split.ends import Ends
from fedstrata.split.middle import Middle
from fedstrata.split.noise import Noise, NoiseSettings
from fedstrata.tasks.causal import end_id
from fedstrata.tasks.continuations import generate
from fedstrata.tasks.instruction.prompts import PromptTokenizer

Tiny = Callable[..., Model]
Gradients = dict[str, Tensor]

TASK = Regression()
LORA = LoraSettings(rank=2)
FAMILIES = {family: kind for family, kind in reversed(VARIANTS) if kind != "causal-lm"}
"""A kind of model with one loss a row, of every family."""
UNLIKE = {"llama", "gemma3", "gpt2", "bert", "deberta-v2", "bloom", "mixtral", "mpnet", "modernbert", "phi"}
KINDS = {family: kind for family, kind in reversed(VARIANTS) if family in UNLIKE}
"""The first kind of families whose blocks are handed the most unlike things."""
EVERY_VARIANT = variants(KINDS.items())


def deeper(family: str, blocks: int = 3, **changes: Any) -> dict[str, Any]:
    """Returns the changes to a tiny model's configuration that give it so many blocks and no dropout."""
    usual = AutoConfig.for_model(CONFIGURATIONS[family].get("model_type", family))
    still = {name: 0.0 for name, value in vars(usual).items() if "drop" in name and isinstance(value, float)}
    if family == "gemma3":
        text = CONFIGURATIONS[family]["text_config"]
        return {"text_config": {**text, "num_hidden_layers": blocks, **changes}}
    return {"n_layers" if family == "distilbert" else "num_hidden_layers": blocks, **still, **changes}


def case(family: str, cut: Cut, *, fast: bool) -> Any:
    """Returns a parameter of a test: a family and where it is divided, in the fast suite or the slow one."""
    return pytest.param(
        family, cut, id=f"{family}-{cut.front}-{cut.back}", marks=() if fast else pytest.mark.slow
    )


def batch_of(lengths: tuple[int, ...] = (5, 12, 1, 9)) -> dict[str, Tensor]:
    return TASK.collate(texts(lengths))


@dataclass(frozen=True)
class Divided:
    """Both sides of a model in one process, everything that can train training."""

    ends: Ends
    middle: Middle

    @property
    def gradients(self) -> Gradients:
        """The gradients of both sides; what both hold has the sum."""
        found: Gradients = {}
        for model in (self.ends.model, self.middle.model):
            for name, gradient in gradients_of(model.module).items():
                found[name] = found[name] + gradient if name in found else gradient
        return found

    def step(
        self, batch: Mapping[str, Tensor], task: Any = TASK, name: str = "step"
    ) -> tuple[Tensor, Tensor]:
        """Leaves the gradients of a batch's summed loss behind; returns the loss and its number of terms."""

        def call() -> tuple[Tensor, Tensor]:
            loss: tuple[Tensor, Tensor] = task.loss(self.ends.module, batch)
            return loss

        front = self.ends.front(call)
        states = self.middle.forward(name, front.states, front.rows, needs_gradient=front.needs_gradient)
        (loss, terms), leaf = self.ends.back(front, states, call)
        loss.backward()  # type: ignore[no-untyped-call]
        if (gradient := self.middle.backward(name, leaf.grad)) is not None:
            front.backward(gradient)
        return loss.detach(), terms


def noised(scale: float, seed: Seed, **settings: Any) -> Noise:
    return Noise(NoiseSettings(scale=scale, **settings), seed)


def divided(model: Model, cut: Cut) -> Divided:
    """Divides a model; everything in it trains."""
    return joined(*divide(model, cut), cut)


def joined(client: Model, server: Model, cut: Cut) -> Divided:
    """Puts two sides together; everything in them that can train trains."""
    for each in (client, server):
        each.train_only(each.layout.all)
    return Divided(Ends(client, cut), Middle(server, cut))


def with_lora(model: Model, kind: str, full: Collection[str] = ()) -> Model:
    """Adds a LoRA that changes what the model computes, but where weights train in full."""
    adapted = attach(model, LORA, kind=kind, seed=Seed(5), full=full)
    names = [name for name in adapted.layout.all if ".lora_" in name]
    adapted.load(
        {
            name: 0.1 * torch.randn(value.shape, generator=Seed(6).child(name).torch())
            for name, value in adapted.tensors(names).items()
        }
    )
    return adapted


def prompt_batch(ids: Tensor, prompts: Tensor, budgets: Tensor, *, end: int, pad: int) -> dict[str, Tensor]:
    """Returns a batch that `generate` continues: (rows, tokens), and three facts of each row, (rows,)."""
    facts = {"end_id": torch.full_like(prompts, end), "pad_id": torch.full_like(prompts, pad)}
    return {"input_ids": ids, "prompt": prompts, "budget": budgets, **facts}


def texts_of(model: Model, prompts: list[str], tokens: int) -> list[str]:
    """Returns what an undivided model says to prompts, which are one batch."""
    words, end = PromptTokenizer(model.tokenizer, chats=False), end_id(model.tokenizer, "lm")
    rows = words.prompts(prompts)
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), int(lengths.max())), words.pad_id)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    budgets = torch.full((len(rows),), tokens)
    found = generate(model.module, prompt_batch(ids, lengths, budgets, end=end, pad=words.pad_id))
    finished = [row[:-1] if row[-1] == end else row for row in found]
    return [model.tokenizer.decode(row, clean_up_tokenization_spaces=False) for row in finished]


def gradients_of(module: nn.Module) -> Gradients:
    return {
        name: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def whole_step(model: Model, batch: Mapping[str, Tensor], task: Any = TASK) -> tuple[Tensor, Gradients]:
    """Returns loss and gradients of the undivided model, and leaves none behind: sides share its weights."""
    model.train_only(model.layout.all)
    loss: Tensor = task.loss(model.module, batch)[0]
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = gradients_of(model.module)
    model.module.zero_grad(set_to_none=True)
    return loss.detach(), gradients


def assert_same_gradients(found: Gradients, expected: Gradients) -> None:
    """Equal to 1e-5 of each tensor's largest number; a gradient that is absent counts as zero."""
    for name in found.keys() | expected.keys():
        one, other = found.get(name), expected.get(name)
        one = torch.zeros_like(other) if one is None else one
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * max(float(other.abs().max()), 1e-2))
