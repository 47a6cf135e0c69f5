"""How a causal language model goes on from prompts: what it writes, and how likely given texts are to follow.

The answers to a cloze question are compared by how likely they are to follow it.

Source: FL-LLaMA, section 4.1.2: s(y|x), the sum of log P(y_t | y_1 ... y_(t-1), x) over an answer's tokens.

The answers to a prompt share it. It runs once, and the first token of every answer is read off its last one;
where answers are longer, the rest of each runs after the prompt's keys and values. The server of a divided
model has its own and cannot copy them: there every answer of several tokens runs with its prompt.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.core.seeding import Seed
from fedstrata.models.blocks import is_divided
from fedstrata.models.caching import cache_name
from fedstrata.tasks.causal import cross_entropies
from fedstrata.tasks.windows import IGNORED, run_model


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
    keys = cache_name(getattr(module, "get_base_model", lambda: module)())
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
            cache = getattr(output, keys) if keys else None
            if keys and cache is not None and cache.get_seq_length():  # some models keep no keys and values
                cache.batch_select_indices(kept)
                known = {keys: cache}
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


@torch.no_grad()
def log_likelihoods(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the log-likelihood of each answer after its prompt, (answers,) float32.

    No more answers run at a time than there are prompts.

    Args:
        module: A causal language model of transformers.
        batch: `input_ids`, (prompts, tokens) int64: rows that begin with a prompt each; `prompt` and
            `pad_id`, (prompts,) int64: its tokens, and what rows are padded with; `answers`, (answers,
            tokens) int64, padded with -100, at least one token each; `owner`, (answers,) int64: the number
            of each one's prompt.
    """
    inner = getattr(module, "get_base_model", lambda: module)()  # PEFT's wrapper hides the signature
    copies = batch["answers"].shape[1] > 1 and is_divided(inner)
    if keeps_keys_and_values(module) and not copies:
        return _after_prompts(module, batch, inner)
    return _with_prompts(module, batch)


def keeps_keys_and_values(module: nn.Module) -> bool:
    """Whether what a model computes for a prompt can be kept, and text be run behind it."""
    inner = getattr(module, "get_base_model", lambda: module)()
    # PEFT puts a prefix before whatever keys and values there are; BERT's kin count positions their own way.
    prefixed = getattr(getattr(module, "active_peft_config", None), "is_prompt_learning", False)
    own_way = prefixed or getattr(inner.config, "is_decoder", False)
    return bool(cache_name(inner)) and not own_way


def _after_prompts(module: nn.Module, batch: Mapping[str, Tensor], inner: nn.Module) -> Tensor:
    """Runs every prompt once, and then what the answers have beyond their first token."""
    taken, keys = inspect.signature(inner.forward).parameters, cache_name(inner)
    answers, owner, lengths = batch["answers"], batch["owner"], batch["prompt"]
    ids, mask = left_padded(batch["input_ids"], lengths, int(batch["pad_id"][0]))
    several = answers.shape[1] > 1
    further: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
    if "position_ids" in taken:
        further["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)
    output = module(input_ids=ids, attention_mask=mask, use_cache=several, **further)
    sums: Tensor = output.logits[:, -1].float().log_softmax(dim=-1)[owner, answers[:, 0]]
    if not several:
        return sums
    for rows in torch.split(torch.arange(len(answers), device=owner.device), len(ids)):
        own, tokens = owner[rows], answers[rows, :-1]
        real = tokens != IGNORED
        further = {keys: _selected(getattr(output, keys), own)}
        if "position_ids" in taken:
            further["position_ids"] = lengths[own, None] + torch.arange(tokens.shape[1], device=own.device)
        logits = module(
            input_ids=tokens.where(real, 0),
            attention_mask=torch.cat([mask[own], real.long()], dim=1),
            use_cache=True,
            **further,
        ).logits
        sums[rows] -= _summed(logits, answers[rows, 1:])
    return sums


def _with_prompts(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Runs every answer with its prompt."""
    answers, owner, lengths = batch["answers"], batch["owner"], batch["prompt"]
    longest = int(lengths.max())
    places = torch.arange(longest + answers.shape[1] - 1, device=owner.device)
    beyond = lengths[owner, None] + torch.arange(answers.shape[1], device=owner.device)
    counted = answers != IGNORED
    ids = batch["pad_id"][owner, None].repeat(1, len(places) + 1)
    ids[:, :longest] = batch["input_ids"][owner, :longest]
    ids.scatter_(1, beyond, answers.where(counted, batch["pad_id"][owner, None]))
    labels = torch.full_like(ids, IGNORED).scatter_(1, beyond - 1, answers)
    mask = (places < (lengths[owner] + counted.sum(dim=1) - 1)[:, None]).long()
    sums = []
    for rows in torch.split(torch.arange(len(answers), device=owner.device), len(lengths)):
        columns = (labels[rows] != IGNORED).any(dim=0).nonzero().flatten()
        own = {"input_ids": ids[rows, :-1], "attention_mask": mask[rows]}
        sums.append(-_summed(run_model(module, own, columns=columns), labels[rows][:, columns]))
    return torch.cat(sums)


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the sum of the cross entropies of each row, (rows,) float32."""
    return torch.cat(list(cross_entropies(logits, labels))).view(labels.shape).sum(dim=1)


def _selected(cache: Any, rows: Tensor) -> Any:
    """Returns the keys and values of some rows of a cache, each as often as it is named."""
    chosen = copy.copy(cache)
    chosen.layers = [copy.copy(layer) for layer in cache.layers]
    chosen.batch_select_indices(rows)
    return chosen
