"""How likely texts are to follow prompts: what the answers to a cloze question are compared by.

Source: FL-LLaMA, section 4.1.2: s(y|x), the sum of log P(y_t | y_1 ... y_(t-1), x) over an answer's tokens.

The answers to a prompt share it. It runs once, and the first token of every answer is read off its last one;
where answers are longer, the rest of each runs after the prompt's keys and values. The server of a divided
model has its own and cannot copy them: there every answer of several tokens runs with its prompt.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.models.blocks import is_divided
from fedstrata.tasks.causal import cross_entropies
from fedstrata.tasks.instruction.generate import left_padded
from fedstrata.tasks.windows import IGNORED, run_model


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
    taken = inspect.signature(inner.forward).parameters
    # PEFT puts a prefix before whatever keys and values there are; BERT's kin count positions their own way.
    prefixed = getattr(getattr(module, "active_peft_config", None), "is_prompt_learning", False)
    own_way = prefixed or getattr(inner.config, "is_decoder", False)
    copies = batch["answers"].shape[1] > 1 and is_divided(inner)
    if "past_key_values" in taken and not (own_way or copies):
        return _after_prompts(module, batch, taken)
    return _with_prompts(module, batch)


def _after_prompts(module: nn.Module, batch: Mapping[str, Tensor], taken: Mapping[str, Any]) -> Tensor:
    """Runs every prompt once, and then what the answers have beyond their first token."""
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
        further = {}
        if "position_ids" in taken:
            further["position_ids"] = lengths[own, None] + torch.arange(tokens.shape[1], device=own.device)
        logits = module(
            input_ids=tokens.where(real, 0),
            attention_mask=torch.cat([mask[own], real.long()], dim=1),
            past_key_values=_selected(output.past_key_values, own),
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
