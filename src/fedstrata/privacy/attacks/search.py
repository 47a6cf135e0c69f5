"""Reading a text back token by token, by somebody who can compute what a token gives behind others.

**From hidden states.** Not in FL-LLaMA, whose attacker does not know A. A server does know it where
clients' parts are averaged (`average_ends`), and nearly where they are not, since all begin with a
published model. The hidden state of a token then depends on nothing but that token and, if A is causal,
those before it: whoever runs A on every token of the vocabulary behind those that were found already sees
which one gives the state that came. Nothing is trained, and nobody colludes.

**From the space of an update** (`privacy.attacks.span`). In a causal model in the same way, with any text
whose inputs lie in the space. What enters a first block depends on a token and its place alone, in any
model: it tells which tokens are there at which place, a bag of them, and texts are put together of it.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from fedstrata.models.blocks import transformers_model
from fedstrata.models.caching import cache_name
from fedstrata.models.state import Model
from fedstrata.privacy.attacks.span import SMALLEST, Reader, Span
from fedstrata.split.ends import Ends

LEAST_APART = 3.0
"""Tokens that do not lie in a space are this many times as far from it as those that do, at least."""
MOST_OF_USUAL = 0.5
"""How far a token that lies in it may seem from it, as a share of how far most tokens are."""
MOST_FARTHER = 10.0
"""A token that is this many times as far from it as those before it ends a text: in low blocks what follows
a text's end is near to its space as well."""
ROUNDING = 1e-3
"""How far from it a token may seem that lies in it, however near those before it are."""
MOST_BEGUN = 64
"""Texts that may be found side by side: where there are more, nothing is told apart."""
MOST_ARRANGEMENTS = 4096
"""Of a bag of tokens so many texts are tried, at most."""
_CANDIDATES_AT_A_TIME, _TOKENS_AT_A_TIME = 1024, 2**14
_TEXTS_AT_A_TIME = 64
_FIRST_PLACES = 2
"""RoBERTa's places begin behind these."""

Bag = Sequence[frozenset[int]]
"""The tokens that lie in a space by their place; one set of them for all places where there are no places."""
Text = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Continuations:
    """What a causal model computes of tokens behind others.

    Attributes:
        run: Gives hidden states for ids behind those of a cache, (rows, tokens) int64 to (rows, tokens,
            hidden); the cache has them too afterwards.
        config: The model's configuration.
        candidates: All tokens, (vocabulary,) int64.
    """

    run: Callable[[Tensor, DynamicCache], Tensor]
    config: Any
    candidates: Tensor

    def begin(self) -> DynamicCache:
        """Returns a cache with nothing in it."""
        return DynamicCache(config=self.config.get_text_config(decoder=True))

    def states(self, known: DynamicCache, among: Tensor) -> Iterator[Tensor]:
        """Yields what some candidates give behind what is known, (some of them, hidden), in their order."""
        for chunk in torch.split(among, _CANDIDATES_AT_A_TIME):
            cache = copy.deepcopy(known)
            if cache.get_seq_length():
                cache.batch_repeat_interleave(len(chunk))
            yield self.run(chunk[:, None], cache)[:, 0]

    def with_token(self, known: DynamicCache, token: int) -> DynamicCache:
        """Returns a cache that has one more token."""
        cache = copy.deepcopy(known)
        self.run(self.candidates.new_tensor([[token]]), cache)
        return cache


def can_search(ends: Ends) -> bool:
    """Whether a text can be searched for from its beginning: A is causal, and keeps keys and values."""
    inner = transformers_model(ends.module)
    if not cache_name(inner.base_model):
        return False
    ids = torch.arange(6, device=next(ends.module.parameters()).device).view(2, 3)
    ids[1, :2] = ids[0, :2]
    with torch.inference_mode():
        one, other = ends.front(lambda: ends.module(input_ids=ids)).states[:, :2].float()
    return bool(torch.allclose(one, other, rtol=1e-3, atol=1e-5))


@torch.inference_mode()
def search_states(sent: Sequence[Tensor], ends: Ends, vocabulary: int, most: int) -> list[Tensor]:
    """Returns the first tokens of each text, found one after the other by their hidden states.

    Args:
        sent: The hidden states of each text that reached the server, (tokens, hidden) float32.
        ends: The client's side, in evaluation mode, of which A is run; `can_search` must hold.
        vocabulary: How many tokens there are.
        most: Tokens that are searched for in each text.

    Returns:
        For each text (at most `most`,) int64.
    """
    inner = transformers_model(ends.module)
    config: Any = inner.config
    keys = cache_name(inner.base_model)
    everything = torch.arange(vocabulary, device=next(ends.module.parameters()).device)

    def run(ids: Tensor, cache: DynamicCache) -> Tensor:
        return ends.front(lambda: ends.module(input_ids=ids, use_cache=True, **{keys: cache})).states

    behind = Continuations(run, config, everything)
    found = []
    for states in sent:
        known = behind.begin()
        tokens: list[int] = []
        for state in states[:most]:
            distances = [(own.float() - state).norm(dim=-1) for own in behind.states(known, everything)]
            tokens.append(int(torch.cat(distances).argmin()))
            known = behind.with_token(known, tokens[-1])
        found.append(everything.new_tensor(tokens))
    return found


@torch.inference_mode()
def search_span(
    model: Model, reader: Reader, span: Span, *, longest: int, bag: Bag | None = None
) -> list[Text]:
    """Returns the texts whose every token's input lies in a space, token by token from the beginning.

    Args:
        model: A causal model with the values of the plan, in evaluation mode.
        reader: The layers whose inputs span the space.
        span: The space.
        longest: Tokens of a text, at most.
        bag: The only tokens that are taken; all if none.

    Returns:
        Texts of two tokens or more to which no further token could be added, longest first. In a language
        model they lack their last token, from which nothing comes back.
    """
    inner = transformers_model(model.module)
    config: Any = inner.config
    keys = cache_name(inner.base_model)

    def run(ids: Tensor, cache: DynamicCache) -> Tensor:
        return reader.inputs(lambda: model.module(input_ids=ids, use_cache=True, **{keys: cache}))

    behind = Continuations(run, config, _vocabulary(model))
    begun: list[tuple[Text, float, DynamicCache]] = [((), math.inf, behind.begin())]
    found: list[Text] = []
    for place in range(longest):
        among = behind.candidates if bag is None else behind.candidates.new_tensor(_at(bag, place))
        if not len(among):
            break
        grown: list[tuple[float, Text, float, DynamicCache]] = []
        for tokens, farthest, cache in begun:
            distances = torch.cat([span.distances(own) for own in behind.states(cache, among)])
            most = MOST_FARTHER * max(farthest, ROUNDING)
            near = [at for at in _near(distances, span) if float(distances[at]) <= most]
            if not near and len(tokens) > 1:
                found.append(tokens)
            for at in near:
                distance, text = float(distances[at]), (*tokens, int(among[at]))
                grown.append((distance, text, max(distance, farthest if tokens else 0.0), cache))
        if len(grown) > MOST_BEGUN:  # what so many lie in tells no text from another
            return []
        grown.sort(key=lambda each: each[0])
        begun = [(text, farthest, behind.with_token(cache, text[-1])) for _, text, farthest, cache in grown]
    found += [tokens for tokens, _, _ in begun]
    told = {tokens for tokens in found if len(set(tokens)) > 1}  # one token again and again is read alike
    return sorted(told, key=lambda tokens: (-len(tokens), tokens))


@torch.inference_mode()
def bag_of(model: Model, reader: Reader, span: Span, *, longest: int) -> Bag:
    """Returns the tokens that lie in the space of what layers read of a token and its place alone.

    Args:
        model: The model with the values of the plan, in evaluation mode.
        reader: The layers whose inputs span the space; `Reader.alone` must hold.
        span: The space.
        longest: Places that are looked at; no more than the model knows.
    """
    config: Any = transformers_model(model.module).config.get_text_config()
    places = min(longest, getattr(config, "max_position_embeddings", longest) - _FIRST_PLACES)
    found = []
    for chunk in torch.split(_vocabulary(model), max(1, _TOKENS_AT_A_TIME // places)):
        ids = chunk[:, None].expand(-1, places).contiguous()
        found.append(span.distances(reader.inputs(partial(model.module, input_ids=ids))))
    distances = torch.cat(found)
    if torch.allclose(distances, distances[:, :1], atol=1e-5):  # no places: all are one
        distances = distances[:, :1]
    return [frozenset(_near(own, span)) for own in distances.T]


@torch.inference_mode()
def arranged(model: Model, bag: Bag, reader: Reader | None, span: Span | None) -> list[Text] | None:
    """Returns the texts that a bag of tokens can be put together to.

    Args:
        model: The model with the values of the plan, in evaluation mode; it may look both ways.
        bag: The tokens by their places.
        reader: The lowest layers that read more than a token alone; none if there are none.
        span: The space of their inputs; none if it is not known.

    Returns:
        Them, longest first; none if there are too many ways, or nothing tells one from another.
    """
    length = next((place for place, own in enumerate(bag) if not own), len(bag))
    if len(bag) == 1 or not length:
        return None
    end = model.tokenizer.sep_token_id
    ends = [place + 1 for place in range(1, length) if end in bag[place]] or [length]
    ways = [[sorted(own - {end}) for own in bag[: last - 1]] + [_last(bag[last - 1], end)] for last in ends]
    count = sum(math.prod(map(len, own)) for own in ways)
    if count > MOST_ARRANGEMENTS or (count > 1 and (reader is None or span is None)):
        return None
    alike = [list(itertools.product(*own)) for own in ways]  # those of one length together
    texts = [text for own in alike for text in own]
    if count > 1 and reader is not None and span is not None:
        farthest = torch.cat([_farthest(model, reader, span, own) for own in alike if own])
        texts = [texts[at] for at in _near(farthest, span)]
    return sorted(texts, key=lambda text: (-len(text), text))


def _last(tokens: frozenset[int], end: int | None) -> list[int]:
    return [end] if end is not None and end in tokens else sorted(tokens)


def _farthest(model: Model, reader: Reader, span: Span, texts: Sequence[Text]) -> Tensor:
    """Returns how far the farthest input of each text of one length lies from a space, (texts,) float64."""
    parts = torch.split(torch.tensor(texts, device=model.device), _TEXTS_AT_A_TIME)
    inputs = (reader.inputs(partial(model.module, input_ids=ids)) for ids in parts)
    return torch.cat([span.distances(own).amax(dim=1) for own in inputs])


def _at(bag: Bag, place: int) -> list[int]:
    own = bag[0] if len(bag) == 1 else bag[place] if place < len(bag) else frozenset[int]()
    return sorted(own)


def _vocabulary(model: Model) -> Tensor:
    inner: Any = transformers_model(model.module)
    return torch.arange(inner.get_input_embeddings().weight.shape[0], device=model.device)


def _near(distances: Tensor, span: Span) -> list[int]:
    """Returns those that are much nearer to a space than all others; none where no such few are."""
    usual = math.sqrt(1.0 - span.rank / span.basis.shape[0])  # how far what knows nothing of it is
    sizes, places = torch.topk(distances, min(span.rank + 1, len(distances)), largest=False)
    sizes = torch.cat([sizes, sizes.new_tensor([max(usual, float(sizes[-1]))])])
    ratios = sizes[1:] / sizes[:-1].clamp(min=SMALLEST)
    count = int(ratios.argmax()) + 1
    apart = float(ratios[count - 1]) >= LEAST_APART
    near = float(sizes[count - 1]) <= MOST_OF_USUAL * usual
    return [int(place) for place in places[:count]] if apart and near else []
