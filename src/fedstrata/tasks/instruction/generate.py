"""Generation for a batch of prompts of unequal length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.core.seeding import Seed


@torch.no_grad()
def generate(
    module: nn.Module, batch: Mapping[str, Tensor], *, temperature: float = 0.0, seed: Seed | None = None
) -> list[np.ndarray]:
    """Continues each row with its likeliest tokens, or with drawn ones, with a key-value cache.

    Rows are padded on the left, so that all go on at one place. A row that has come to its budget is taken
    out, and those that have ended are once they are half of what is left: else one row that finds no end
    would have the whole batch go on. What the model's own generation settings say, such as a penalty of
    repetition, is left out.

    Args:
        module: A causal language model of transformers.
        batch: `input_ids`, (rows, tokens) int64, each beginning with its prompt; and (rows,) int64 each
            `prompt`, its tokens, at least one, `budget`, the tokens that may be generated, at least one,
            `end_id`, the token that ends an answer, and `pad_id`, what rows are padded with.
        temperature: Logits are divided by it before a token is drawn; 0 takes the likeliest.
        seed: Where tokens are drawn from; needed unless the temperature is 0.

    Returns:
        The generated tokens of each row, (tokens,) int32 each; the last one is the end unless the row was cut
        off at its budget.
    """
    from transformers import GenerationConfig  # noqa: PLC0415 - seconds to import, and every task is imported

    if temperature > 0 and seed is None:
        raise ValueError("a temperature above 0 needs a seed")
    budgets, end, pad = batch["budget"], int(batch["end_id"][0]), int(batch["pad_id"][0])
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    settings = GenerationConfig(
        eos_token_id=end,
        pad_token_id=pad,
        use_cache=True,
        return_dict_in_generate=True,
        **(drawn if temperature > 0 else {"do_sample": False}),
    )
    rows, mask = left_padded(batch["input_ids"], batch["prompt"], pad)
    first, live = rows.shape[1], torch.arange(len(rows), device=rows.device)
    answers: list[np.ndarray] = [np.empty(0, np.int32)] * len(rows)
    known: dict[str, Any] = {}
    with _without_habits(module), seed.everywhere() if seed is not None else nullcontext():
        while len(live):
            settings.max_new_tokens = int(budgets[live].min()) - (rows.shape[1] - first)
            output = module.generate(  # type: ignore[operator]  # torch's modules have no such attribute
                input_ids=rows,
                attention_mask=mask,
                generation_config=settings,
                stopping_criteria=[_half_ended(end)],
                **known,
            )
            new = output.sequences[:, rows.shape[1] :]
            rows, mask = output.sequences, torch.cat([mask, mask.new_ones(new.shape)], dim=1)
            over = (new == end).any(dim=1) | (budgets[live] <= rows.shape[1] - first)
            for row in over.nonzero().flatten().tolist():
                answer = rows[row, first:].cpu().numpy().astype(np.int32)
                ends = np.flatnonzero(answer == end)  # the first belongs to it, what is behind that does not
                answers[int(live[row])] = answer[: ends[0] + 1] if len(ends) else answer
            kept = (~over).nonzero().flatten()
            rows, mask, live = rows[kept], mask[kept], live[kept]
            cache = output.past_key_values
            if cache is not None and cache.get_seq_length():  # some models keep no keys and values
                cache.batch_select_indices(kept)
                known = {"past_key_values": cache}
    return answers


def _half_ended(end: int) -> Callable[..., Tensor]:
    """Returns a criterion of transformers by which all rows stop when half of them have ended."""
    ended: list[Tensor] = []

    def stop(input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        last = input_ids[:, -1] == end
        ended[:] = [ended[0] | last if ended else last]
        return (2 * ended[0].sum() >= len(last)).expand(len(last))

    return stop


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
