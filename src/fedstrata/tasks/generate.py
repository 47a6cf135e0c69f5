"""Generation for a batch of prompts of unequal length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedstrata.core.seeding import Seed


@torch.no_grad()
def generate(
    module: nn.Module,
    input_ids: Tensor,
    *,
    prompts: Tensor,
    budgets: Tensor,
    end: int,
    pad: int,
    temperature: float = 0.0,
    seed: Seed | None = None,
) -> list[np.ndarray]:
    """Continues each row with its likeliest tokens, or with drawn ones, with a key-value cache.

    Rows are padded on the left, so that all go on at one place; a row that has ended waits for the others.
    What the model's own generation settings say, such as a penalty of repetition, is left out.

    Args:
        module: A causal language model of transformers.
        input_ids: (rows, tokens) int64, each beginning with its prompt.
        prompts: The tokens of each prompt, at least one; (rows,) int64.
        budgets: Tokens that each row may generate, at least one; (rows,) int64.
        end: The token that ends an answer.
        pad: What rows are padded with.
        temperature: Logits are divided by it before a token is drawn; 0 takes the likeliest.
        seed: Where tokens are drawn from; needed unless the temperature is 0.

    Returns:
        The generated tokens of each row, (tokens,) int32 each; the last one is `end` unless the row was cut
        off at its budget.
    """
    from transformers import GenerationConfig  # noqa: PLC0415 - seconds to import, and every task is imported

    if temperature > 0 and seed is None:
        raise ValueError("a temperature above 0 needs a seed")
    rows, mask = left_padded(input_ids, prompts, pad)
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    settings = GenerationConfig(
        max_new_tokens=int(budgets.max()),
        eos_token_id=end,
        pad_token_id=pad,
        use_cache=True,
        **(drawn if temperature > 0 else {"do_sample": False}),
    )
    with _without_habits(module), seed.everywhere() if seed is not None else nullcontext():
        output = module.generate(  # type: ignore[operator]  # torch's modules have no such attribute
            input_ids=rows, attention_mask=mask, generation_config=settings
        )
    answers = output[:, rows.shape[1] :].cpu().numpy().astype(np.int32)
    return [_ended(row[:budget], end) for row, budget in zip(answers, budgets.tolist(), strict=True)]


def left_padded(input_ids: Tensor, prompts: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Returns prompts padded on the left, and their attention mask, both (rows, longest prompt) int64.

    Args:
        input_ids: (rows, tokens) int64, each beginning with its prompt.
        prompts: The tokens of each prompt, at least one; (rows,) int64.
        pad: What rows are padded with.
    """
    longest = int(prompts.max())
    columns = torch.arange(longest, device=input_ids.device) - (longest - prompts)[:, None]
    mask = columns >= 0
    return torch.where(mask, input_ids.gather(1, columns.clamp(min=0)), pad), mask.long()


@contextmanager
def _without_habits(module: nn.Module) -> Iterator[None]:
    """Sets aside what a model's own generation_config.json says.

    Transformers takes from there whatever it is not told. Instruct models come with penalties of repetition,
    which are no greedy decoding and would keep a model from repeating its input.
    """
    from transformers import GenerationConfig  # noqa: PLC0415 - see `generate`

    # An adapter's wrapper may hold one of its own and hands it to the model within.
    holders: list[Any] = [each for each in module.modules() if "generation_config" in vars(each)]
    kept = [each.generation_config for each in holders]
    try:
        for each in holders:
            each.generation_config = GenerationConfig()
        yield
    finally:
        for each, own in zip(holders, kept, strict=True):
            each.generation_config = own


def _ended(row: np.ndarray, end: int) -> np.ndarray:
    """Returns a row up to its first end token, which is kept."""
    ends = np.flatnonzero(row == end)
    return row[: ends[0] + 1] if len(ends) else row
