"""Which words and labels a client has, told by single rows of what its update changes.

**Words.** The row of an input embedding gets a gradient only from places at which its word stands. Every
other row changes by what weight decay takes off, a multiple of itself, and nothing else, with any
optimizer: the words of a client are the rows of which that is not true. Where the embedding is the output
layer too, or where the rows of a language model's head are looked at, all rows move: those of words that do
not come next against what was read, about alike, and those of words that do come next towards it. Words are
then the rows that moved against the rest.

**Labels.** The gradient of a classifier's bias is, for each label, what the model expects of it less how
often it is there (Zhao et al., "iDLG", 2020; Wainakh et al., "User-Level Label Leakage from Gradients",
2022), and that of its weights is the same times what was read. The server has the model, and so what it
expects; shares of labels follow but for the factor of the step. Where that is not known, as with Adam, it is
taken for the largest that makes no share negative, as if the rarest label were not there. Of one example that
is exact.

Neither asks for few tokens, a small batch or plain SGD.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstrata.core.seeding import Seed
from fedstrata.models.blocks import transformers_model
from fedstrata.models.state import Model
from fedstrata.policies.select import tied_head
from fedstrata.privacy.attacks.span import SMALLEST

LEAST_ABOVE = 100.0
"""Rows of words that are there have moved this many times as far as most, where most have not moved."""
MOST_APART = 1e4
"""Rows of words that are there have not moved by less than the farthest one divided by this."""
LEAST_ALIKE = 0.2
"""The cosine of most rows with their mean, at least, where it is said that some moved against the rest."""
_TEXTS, _TOKENS = 32, 16
"""Of tokens drawn at random, by which the server sees what a model expects before it has learnt."""


@dataclass(frozen=True, slots=True)
class Words:
    """What rows of an embedding or a head tell of words.

    Attributes:
        rows: The name of the weight.
        scores: How much each token seems to be there, (vocabulary,); higher is more.
        found: The tokens that are taken to be there; none where rows do not tell.
    """

    rows: str
    scores: Tensor
    found: frozenset[int]


@dataclass(frozen=True, slots=True)
class Labels:
    """What a head tells of labels.

    Attributes:
        rows: The name of the weight or bias.
        expected: The share of each label by the model alone, (labels,): the best guess without an update.
        shares: That with it, (labels,).
    """

    rows: str
    expected: Tensor
    shares: Tensor


def words_in(model: Model, change: Mapping[str, Tensor]) -> Words | None:
    """Returns which words a change tells of; none if no embedding and no language model's head is in it.

    Args:
        model: The model, with the values of the plan.
        change: What its parameters are changed by.
    """
    inner: Any = transformers_model(model.module)
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    layers = [layer for layer in (inner.get_input_embeddings(), inner.get_output_embeddings()) if layer]
    told = [names[layer.weight] for layer in layers if names.get(layer.weight) in change]
    if not told:
        return None
    weight, moved = model.tensors(told[:1])[told[0]].double(), change[told[0]].double()
    decay = ((moved * weight).sum(dim=1) / (weight * weight).sum(dim=1).clamp(min=SMALLEST)).median()
    moved = moved - decay * weight
    far = moved.norm(dim=1)
    if told[0] in tied_head(model) or told[0] != names[layers[0].weight]:
        directions = F.normalize(moved, dim=1)
        alike = directions @ F.normalize(directions.mean(dim=0), dim=0)
        stands_out, scores = (alike < 0.0) & (alike.median() >= LEAST_ALIKE), -alike
    else:
        level = max(LEAST_ABOVE * float(far.median()), float(far.max()) / MOST_APART)
        stands_out, scores = far > level, far
    return Words(told[0], scores, frozenset(torch.nonzero(stands_out).flatten().tolist()))


def labels_in(
    model: Model, change: Mapping[str, Tensor], count: int, seed: Seed, *, several: bool, rate: float | None
) -> Labels | None:
    """Returns what a change tells of labels; none if no head with an output for each of them is in it.

    Args:
        model: The model, with the values of the plan, in evaluation mode.
        change: What its parameters are changed by.
        count: How many labels there are.
        seed: Of the texts by which the server sees what the model expects.
        several: Whether a text may have any number of labels, each with a share of its own.
        rate: What a mean gradient was multiplied by, at most; none if nobody knows.
    """
    paths = {module: name for name, module in model.module.named_modules()}
    heads = [
        module
        for module in model.module.modules()
        if isinstance(module, nn.Linear)
        and module.out_features == count
        and f"{paths[module]}.weight" in change
    ]
    if not heads:
        return None
    head, name = heads[-1], paths[heads[-1]]
    read, given = _usual(model, head, seed)
    expected = (given.sigmoid() if several else given.softmax(dim=-1)).mean(dim=0)
    bias = f"{name}.bias"
    told = change[bias] if bias in change else change[f"{name}.weight"] @ read.mean(dim=0)
    towards = told.double()
    if not several:
        towards = towards - towards.mean()
    rooms = torch.where(towards < 0, expected / -towards, torch.inf)
    if several:
        rooms = torch.where(towards > 0, (1.0 - expected) / towards, rooms)
    most = float(rooms.min()) if bool(rooms.isfinite().any()) else 0.0
    factor = most if rate is None else min(most, 1.0 / rate)
    shares = (expected + factor * towards).clamp(min=0.0)
    return Labels(bias if bias in change else f"{name}.weight", expected, shares)


@torch.inference_mode()
def _usual(model: Model, head: nn.Linear, seed: Seed) -> tuple[Tensor, Tensor]:
    """Returns what a head reads and gives for random tokens, (places, width) and (places, labels)."""
    inner: Any = transformers_model(model.module)
    vocabulary = inner.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocabulary, (_TEXTS, _TOKENS), generator=seed.torch()).to(model.device)
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        model.module(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        hook.remove()
    read = seen[0].flatten(0, -2)
    return read.float(), head(read).double()
