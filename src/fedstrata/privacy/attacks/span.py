"""Reading texts out of what the weight of one linear layer has changed by, knowing what lies below it.

The gradient of such a weight is a sum over tokens: what comes back to the layer times what the layer read. Of
an update that is made of fewer tokens than the input is wide, the row space is therefore the span of those
inputs. The input of a token that was trained on lies in it, and that of another token does not. In a causal
model an input depends on its token and those before it alone, so that whoever runs the public and frozen
blocks below finds texts token by token, and exactly. Only the space counts: the change after several steps of
SGD serves as well, and so does a sum over sites. What weight decay takes off is a multiple of weights that
the server knows, and is put back. Adam divides every number by its own size, and noise fills all directions:
both leave no such space.

Source: Petrov et al., "DAGER: Exact Gradient Inversion for Large Language Models", NeurIPS 2024, for the
first blocks of a model that trains whole; here for the lowest block that trains, through those frozen below.
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.pytorch_utils import Conv1D

from fedstrata.models.blocks import block_modules, transformers_model
from fedstrata.models.state import Model

LEAST_GAP = 10.0
"""Singular values of a space are at least this many times those of what is left, or there is no space."""
LEAST_APART = 3.0
"""Tokens that do not lie in it are this many times as far from it as those that do, at least."""
FULLEST = 0.95
"""Of all directions so many may be read: the last singular value of any matrix is small."""
MOST_OF_USUAL = 0.5
"""How far a token that lies in it may seem from it, as a share of how far most tokens are."""
SMALLEST = 1e-12
_TIMES, _UNREAD = 20, (0.0, 0.5, 0.2)
"""How often what weight decay took off is looked for, and by which shares of all directions; 0: not."""
_CANDIDATES_AT_A_TIME = 1024


class _ReachedError(Exception):
    """The layer was reached, and what lies above it need not run."""


@dataclass(frozen=True, slots=True)
class Span:
    """The space of what a layer has read.

    Attributes:
        basis: Orthonormal, (width, rank) float64.
        gap: The last singular value of the space by the first one that is left out.
    """

    basis: Tensor
    gap: float

    @property
    def rank(self) -> int:
        """Its dimensions."""
        return self.basis.shape[1]

    def distances(self, inputs: Tensor) -> Tensor:
        """Returns how far inputs lie from it, as shares of their lengths, (rows,) float64.

        Args:
            inputs: (rows, width).
        """
        inputs = inputs.double()
        apart = inputs - (inputs @ self.basis) @ self.basis.T
        shares: Tensor = apart.norm(dim=1) / inputs.norm(dim=1).clamp(min=SMALLEST)
        return shares


@dataclass(frozen=True, slots=True)
class Reader:
    """The linear layers of a block that read one and the same input, and whose weights travel.

    Those of queries alone do not tell of a text's first token: what attends to itself alone has no choice.

    Attributes:
        layers: Them, by the names of their weights; in the order in which they run.
        width: Numbers that they read of each token.
    """

    layers: Mapping[str, nn.Module]
    width: int

    def span_of(self, change: Mapping[str, Tensor]) -> Span | None:
        """Returns the space of what they have read; none if that fills all directions.

        Args:
            change: By the names of weights, which the layers hold as they were before.
        """
        spans = [span_of(self._rows(change, part)) for part in _UNREAD]
        return max((own for own in spans if own is not None), key=lambda own: own.gap, default=None)

    def _rows(self, change: Mapping[str, Tensor], unread: float) -> Tensor:
        """Returns the changes of their weights, (outputs, width) float64, those of each layer as long."""
        found = []
        for name, module in self.layers.items():
            pair = (change[name], module.get_parameter("weight"))
            turned = isinstance(module, Conv1D)
            one, weight = (each.detach().double().T if turned else each.detach().double() for each in pair)
            own = undecayed(one, weight, unread) if unread else one
            found.append(own / own.norm().clamp(min=SMALLEST))
        return torch.cat(found)


def undecayed(change: Tensor, weight: Tensor, unread: float) -> Tensor:
    """Returns what a weight has changed by without what weight decay has taken off.

    In directions in which nothing was read a change is a multiple of the weight and nothing else. Those are
    taken for such in which it is smallest; each time less of what was read is left in them.

    Args:
        change: (outputs, width) float64.
        weight: As it was before, of the same shape.
        unread: The share of directions that are taken for such.
    """
    left = change
    for _ in range(_TIMES):
        least = torch.linalg.eigh(left.T @ left).eigenvectors[:, : max(1, int(unread * left.shape[1]))]
        one, other = left @ least, weight @ least
        left = left - (one * other).sum() / (other * other).sum().clamp(min=SMALLEST) * weight
    return left


def reader_of(model: Model, names: Collection[str]) -> Reader | None:
    """Returns the lowest layers whose weights travel and whose inputs tell of a token and those before it.

    Those are layers of the lowest block that trains; of the next one where that is the first block, into
    which each token comes by itself.

    Args:
        model: The model, with the values of the plan.
        names: What an update holds.

    Returns:
        The layers; none if there are none.
    """
    blocks = block_modules(model.module, model.layout)
    paths = {module: name for name, module in model.module.named_modules()}
    for block in blocks:
        group = {
            f"{paths[module]}.weight": module
            for module in block.modules()
            if isinstance(module, nn.Linear | Conv1D) and f"{paths[module]}.weight" in names
        }
        if group and (reader := _first_to_read(model, group)) is not None:
            return reader
    return None


def _first_to_read(model: Model, modules: Mapping[str, nn.Module]) -> Reader | None:
    """Returns those of some layers that read what the first of them reads; none if that is a token alone."""
    read: dict[str, Tensor] = {}

    def keep(name: str, own: Tensor) -> None:
        read[name] = own

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: keep(name, inputs[0]))
        for name, module in modules.items()
    ]
    try:
        with torch.inference_mode():
            model.module(input_ids=torch.tensor([[0, 0], [1, 0]], device=model.device))
    finally:
        for hook in hooks:
            hook.remove()
    first = next(iter(read.values()))
    if torch.equal(first[0, 1], first[1, 1]):  # one token behind two others
        return None
    same = {name: modules[name] for name, own in read.items() if own is first}
    return Reader(same, first.shape[-1])


def span_of(rows: Tensor) -> Span | None:
    """Returns the space that the rows of a change span; none if they fill all directions.

    Args:
        rows: (outputs, width) float64.
    """
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    if len(sizes) < 2 or not bool(sizes.isfinite().all()) or not sizes[0]:
        return None
    most = min(len(sizes), int(FULLEST * rows.shape[1]))
    kept = sizes.clamp(min=float(sizes[0]) * torch.finfo(torch.float64).eps)
    floor = torch.cat([kept[1:], kept.new_tensor([float(kept[0]) * torch.finfo(torch.float64).eps])])
    gaps = (kept / floor)[:most]
    rank = int(gaps.argmax()) + 1
    if float(gaps[rank - 1]) < LEAST_GAP:
        return None
    return Span(directions[:rank].T.contiguous(), float(gaps[rank - 1]))


@torch.inference_mode()
def search(model: Model, reader: Reader, span: Span, *, longest: int) -> list[tuple[int, ...]]:
    """Returns the texts whose every token's input lies in a space, token by token from the beginning.

    Args:
        model: A causal model with the values of the plan, in evaluation mode.
        reader: The layer whose inputs span the space.
        span: The space.
        longest: Tokens of a text, at most.

    Returns:
        Texts of two tokens or more to which no further token could be added, longest first. In a language
        model they lack their last token, from which nothing comes back.
    """
    inner: Any = transformers_model(model.module)
    vocabulary = inner.get_input_embeddings().weight.shape[0]
    nothing = DynamicCache(config=inner.config.get_text_config(decoder=True))
    begun: list[tuple[tuple[int, ...], DynamicCache]] = [((), nothing)]
    found: list[tuple[int, ...]] = []
    for _ in range(longest):
        grown: list[tuple[float, tuple[int, ...], DynamicCache]] = []
        for tokens, cache in begun:
            distances = _distances(model, reader, span, cache, len(tokens), vocabulary)
            after = _near(distances, span.rank)
            if not after and len(tokens) > 1:
                found.append(tokens)
            grown += [(float(distances[token]), (*tokens, token), cache) for token in after]
        grown.sort(key=lambda each: each[0])
        begun = [
            (tokens, _with_token(model, reader, cache, tokens)) for _, tokens, cache in grown[: 4 * span.rank]
        ]
    found += [tokens for tokens, _ in begun]
    told = {tokens for tokens in found if len(set(tokens)) > 1}  # one token again and again is read alike
    return sorted(told, key=lambda tokens: (-len(tokens), tokens))


def _near(distances: Tensor, rank: int) -> list[int]:
    """Returns the tokens that are much nearer than all others; none where no such few are."""
    sizes, tokens = torch.topk(distances, min(rank + 1, len(distances)), largest=False)
    ratios = sizes[1:] / sizes[:-1].clamp(min=SMALLEST)
    count = int(ratios.argmax()) + 1
    apart = float(ratios[count - 1]) >= LEAST_APART
    near = float(sizes[count - 1]) <= MOST_OF_USUAL * float(distances.median())
    return [int(token) for token in tokens[:count]] if apart and near else []


def _distances(
    model: Model, reader: Reader, span: Span, cache: DynamicCache, position: int, vocabulary: int
) -> Tensor:
    """Returns how far the input of every token lies from a space, behind the tokens of a cache."""
    everything = torch.arange(vocabulary, device=model.device)
    found = []
    for candidates in torch.split(everything, _CANDIDATES_AT_A_TIME):
        own = copy.deepcopy(cache)
        if position:
            own.batch_repeat_interleave(len(candidates))
        found.append(span.distances(_inputs(model, reader, candidates[:, None], own, position)[:, -1]))
    return torch.cat(found)


def _with_token(model: Model, reader: Reader, cache: DynamicCache, tokens: tuple[int, ...]) -> DynamicCache:
    """Returns a cache that has the last of some tokens too."""
    own = copy.deepcopy(cache)
    ids = torch.tensor([[tokens[-1]]], device=model.device)
    _inputs(model, reader, ids, own, len(tokens) - 1)
    return own


def _inputs(model: Model, reader: Reader, ids: Tensor, cache: DynamicCache, position: int) -> Tensor:
    """Returns what the layer reads of tokens behind those of a cache, (rows, tokens, width)."""
    places = torch.arange(position, position + ids.shape[1], device=ids.device).expand_as(ids)
    seen: list[Tensor] = []
    with _reading(next(iter(reader.layers.values())), seen):
        model.module(input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True)
    return seen.pop()


@contextmanager
def _reading(module: nn.Module, seen: list[Tensor]) -> Iterator[None]:
    """Keeps what a module reads, and lets nothing above it run."""

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].detach())
        raise _ReachedError

    hook = module.register_forward_pre_hook(keep)
    try:
        with suppress(_ReachedError):
            yield
    finally:
        hook.remove()
