"""Copy decoding: a model that marks mentions in a sentence decides on tags alone, and the sentence is copied.

Free decoding writes an answer token by token, and an answer that strays from the sentence loses the mentions
behind that place. Copying runs the tokens of the sentence in blocks behind the key-value cache. The logits in
front of each hold a decision: the copied token, or the first token of a tag. The first place at which the
tag is likelier ends the block. So a sentence takes a few passes in place of one for each token, every
answer is complete, and what is marked is the sentence itself.

In training too, text and tags are tokenised apart: a tag always has the same tokens, and no token holds
both a tag and text. A blank before an opening tag belongs to the tag. Mentions that begin or end within a
token, and those within others, cannot be marked; they are counted.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from fedstrata.core.documents import Span
from fedstrata.models.blocks import is_divided
from fedstrata.models.caching import cache_name
from fedstrata.tasks.continuations import keeps_keys_and_values
from fedstrata.tasks.instruction.markup import CLOSING, escape, opening, source_places
from fedstrata.tasks.instruction.prompts import PromptTokenizer

AHEAD = (16, 8)
"""Tokens that a pass looks ahead, outside and within a mention. Of more, most are dropped at the next tag."""
_TAGS = re.compile(r'(\s*<span class="[^"<>]*">|</span>)')
_COLUMNS = ("tokens", "following", "opened", "blanks", "closes")
END = NO_TAG = -1
"""What stands for no token: behind the last one, and for a place where no tag may be."""


def pieces(answer: str) -> list[str]:
    """Returns the stretches of text and the tags of a right answer, which are tokenised apart, in order."""
    return [piece for piece in _TAGS.split(answer) if piece]


@dataclass(frozen=True, slots=True, eq=False)
class CopySource:
    """The tokens of a sentence as they can be copied, and the tags that may stand between them.

    The tokens of the sentence come first. Behind them come those of words as they are behind an opening tag,
    which has taken their blank. What follows a token is an index, not always the next one.

    Attributes:
        tokens: Ids, (tokens,) int32.
        following: The index of the token that follows each, (tokens,) int32; -1 behind the last.
        opened: The index of the token with which the text continues where an opening tag stands in front of
            each, (tokens,) int32.
        blanks: Which of `openings` may stand in front of each token, (tokens,) int32; -1 where none may.
        closes: Whether a closing tag may stand in front of each token, (tokens,) bool: not behind a blank.
        openings: The tokens of the opening tag of each type, in order, by the blank in front of it.
        closing: The tokens of a closing tag.
        begins: The characters of the sentence at which a mention can begin.
        ends: Those at which one can end.
    """

    tokens: np.ndarray
    following: np.ndarray
    opened: np.ndarray
    blanks: np.ndarray
    closes: np.ndarray
    openings: tuple[tuple[tuple[int, ...], ...], ...]
    closing: tuple[int, ...]
    begins: frozenset[int]
    ends: frozenset[int]

    def unreachable(self, spans: Iterable[Span]) -> int:
        """Returns how many mentions of the sentence cannot be marked."""
        lost, last = 0, 0
        for span in sorted(spans, key=lambda each: (each.start, -each.end)):
            if span.start >= last and span.start in self.begins and span.end in self.ends:
                last = span.end
            else:
                lost += 1
        return lost


class CopyTokenizer:
    """Makes the sources of sentences.

    Args:
        words: The tokenizer of prompts and answers.
    """

    def __init__(self, words: PromptTokenizer) -> None:
        self._words = words
        (closing,) = words.ids([CLOSING])
        self._closing = tuple(closing)
        self._openings: dict[tuple[str, str], tuple[int, ...]] = {}

    def sources(self, sentences: Sequence[str], types: Sequence[Sequence[str]]) -> list[CopySource]:
        """Returns the source of each sentence, whose tags are of its own types."""
        texts = list(map(escape, sentences))
        encoded = self._encoded(texts)
        words = [_spaced_words(text, own) for text, own in zip(texts, encoded, strict=True)]
        alone = {text[word.begin : word.end] for text, own in zip(texts, words, strict=True) for word in own}
        by_text = dict(zip(sorted(alone), self._encoded(sorted(alone)), strict=True))
        return [
            self._source(sentence, text, tokens, own, by_text, labels)
            for sentence, text, tokens, own, labels in zip(
                sentences, texts, encoded, words, types, strict=True
            )
        ]

    def _encoded(self, texts: Sequence[str]) -> list[list[_Token]]:
        """Returns the tokens of texts."""
        return [
            [_Token(id_, *place) for id_, place in zip(ids, _contiguous(ends), strict=True)]
            for ids, ends in self._words.with_ends(texts)
        ]

    def _source(
        self,
        sentence: str,
        text: str,
        own: Sequence[_Token],
        words: Sequence[_SpacedWord],
        alone: Mapping[str, Sequence[_Token]],
        types: Sequence[str],
    ) -> CopySource:
        by_begin = {token.begin: index for index, token in enumerate(own) if token.begin < token.end}
        by_begin[len(text)] = END
        tokens, following = [*own], [*range(1, len(own)), END]
        opened, blanks, known = [*range(len(own))], [""] * len(own), dict[str, int]()
        for word in words:
            blanks[word.token] = text[own[word.token].begin : word.begin]
            opened[word.token] = by_begin.get(word.begin, len(tokens))
            if word.begin in by_begin:
                continue
            spelled = alone[text[word.begin : word.end]]
            for token, behind in zip(spelled, (*spelled[1:], None), strict=True):
                end = word.begin + token.end
                complete = behind is None or behind.begin < behind.end  # no further byte of its character
                joins = complete and end in by_begin
                opened.append(len(tokens))
                tokens.append(_Token(token.id, word.begin + token.begin, end))
                following.append(by_begin[end] if joins else len(tokens))
                blanks.append("")
                if joins:
                    break
        bounds = source_places(sentence)
        whole = [token.begin < token.end and bounds[token.begin] >= 0 for token in tokens]
        closes = [
            fits and token.begin > 0 and not text[token.begin - 1].isspace()
            for fits, token in zip(whole, tokens, strict=True)
        ]
        kinds = [
            known.setdefault(blank, len(known)) if fits and types else NO_TAG
            for fits, blank in zip(whole, blanks, strict=True)
        ]
        begins = {tokens[index].begin for fits, index in zip(whole, opened, strict=True) if fits}
        ends = {token.begin for fits, token in zip(closes, tokens, strict=True) if fits}
        return CopySource(
            np.array([token.id for token in tokens], np.int32),
            np.array(following, np.int32),
            np.array(opened, np.int32),
            np.array(kinds, np.int32),
            np.array(closes),
            tuple(tuple(self._opening(blank, label) for label in types) for blank in known),
            self._closing,
            frozenset(int(bounds[place]) for place in begins),
            frozenset(int(bounds[place]) for place in {*ends, len(text)}),
        )

    def _opening(self, blank: str, label: str) -> tuple[int, ...]:
        key = blank, label
        if key not in self._openings:
            (ids,) = self._words.ids([blank + opening(label)])
            self._openings[key] = tuple(ids)
        return self._openings[key]


class _Token(NamedTuple):
    """A token, and the characters of a text that it stands for; none of a character that several share."""

    id: int
    begin: int
    end: int


class _SpacedWord(NamedTuple):
    """What follows the white space with which a token begins, until the next such token."""

    token: int
    begin: int
    end: int


def _contiguous(ends: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yields the characters of tokens, each from where the last one ends: offsets may leave out blanks."""
    last = 0
    for end in ends:
        yield last, max(last, end)
        last = max(last, end)


def _spaced_words(text: str, tokens: Sequence[_Token]) -> list[_SpacedWord]:
    spaced = [
        index for index, token in enumerate(tokens) if token.begin < token.end and text[token.begin].isspace()
    ]
    stops = [*(tokens[index].begin for index in spaced), len(text)]
    found = []
    for index in spaced:
        begin = len(text) - len(text[tokens[index].begin :].lstrip())
        if begin < len(text):
            found.append(_SpacedWord(index, begin, stops[bisect_right(stops, begin)]))
    return found


def pad_sources(sources: Sequence[CopySource]) -> dict[str, Tensor]:
    """Pads the sources of a batch.

    Returns:
        `copy_tokens`, `copy_following`, `copy_opened`, `copy_blanks` and `copy_closes`, (rows, tokens) int64,
        padded with -1; `copy_openings`, (rows, blanks, types, tokens) int64, padded with -1; `copy_closing`,
        (rows, tokens).
    """
    found = {}
    longest = max(len(source.tokens) for source in sources)
    for name in _COLUMNS:
        rows = [getattr(source, name) for source in sources]
        padded = np.stack(
            [np.pad(row.astype(np.int64), (0, longest - len(row)), constant_values=NO_TAG) for row in rows]
        )
        found[f"copy_{name}"] = torch.from_numpy(padded)
    kinds = max(len(source.openings) for source in sources)
    types = max((len(kind) for source in sources for kind in source.openings), default=0)
    length = max((len(tag) for source in sources for kind in source.openings for tag in kind), default=0)
    openings = torch.full((len(sources), kinds, types, length), NO_TAG)
    for row, source in enumerate(sources):
        for number, kind in enumerate(source.openings):
            for label, tag in enumerate(kind):
                openings[row, number, label, : len(tag)] = torch.tensor(tag)
    found["copy_openings"] = openings
    found["copy_closing"] = torch.tensor([source.closing for source in sources])
    return found


def can_copy(module: nn.Module, batch: Mapping[str, Tensor]) -> bool:
    """Whether a batch has sources, and the model a cache of its own that a pass may be taken back from."""
    return "copy_tokens" in batch and keeps_keys_and_values(module) and not is_divided(module)


@torch.no_grad()
def copy_marked(module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
    """Answers instructions by copying their sentences with tags.

    Args:
        module: A causal language model of transformers.
        batch: `input_ids`, (rows, tokens) int64, each beginning with its prompt; `prompt`, `end_id` and
            `pad_id`, (rows,) int64, see `fedstrata.tasks.continuations.generate`; and those of `pad_sources`.

    Returns:
        The tokens of each answer, its end included, (tokens,) int32 each.
    """
    device, lengths = batch["input_ids"].device, batch["prompt"].tolist()
    own = {name: value.cpu() for name, value in batch.items()}
    runs = [
        _decisions(_read(own, row), own["input_ids"][row, : lengths[row]].tolist(), int(own["end_id"][row]))
        for row in range(len(lengths))
    ]
    answers: list[np.ndarray] = [np.empty(0, np.int32)] * len(runs)
    passes = _Passes(module, device, int(own["pad_id"][0]), len(runs))
    steps, live = [next(run) for run in runs], list(range(len(runs)))
    while live:
        found = passes.run([steps[row] for row in live])
        kept = []
        for place, (row, decision) in enumerate(zip(live, found, strict=True)):
            try:
                steps[row] = runs[row].send(decision)
                kept.append(place)
            except StopIteration as done:
                answers[row] = np.array(done.value, np.int32)
        passes.keep(kept, [steps[live[place]].accepted for place in kept])
        live = [live[place] for place in kept]
    return answers


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A row of a batch as `_decisions` reads it; see `CopySource`."""

    tokens: list[int]
    following: list[int]
    opened: list[int]
    blanks: list[int]
    closes: list[int]
    openings: list[list[tuple[int, ...]]]
    closing: tuple[int, ...]

    def path(self, place: int, most: int) -> list[int]:
        """Returns the indices of the next tokens from one on, at most so many."""
        found: list[int] = []
        while place != END and len(found) < most:
            found.append(place)
            place = self.following[place]
        return found

    def tag_before(self, index: int, *, inside: bool) -> int:
        """Returns the first token of the tag that may stand in front of a token; -1 for none."""
        if inside:
            return self.closing[0] if self.closes[index] else NO_TAG
        kind = self.blanks[index]
        return NO_TAG if kind == NO_TAG else self.openings[kind][0][0]


def _read(batch: Mapping[str, Tensor], row: int) -> _Sentence:
    count = int((batch["copy_tokens"][row] >= 0).sum())
    columns = {name: batch[f"copy_{name}"][row, :count].tolist() for name in _COLUMNS}
    openings = [
        [tuple(token for token in tag if token >= 0) for tag in kind if tag and tag[0] >= 0]
        for kind in batch["copy_openings"][row].tolist()
    ]
    closing = tuple(batch["copy_closing"][row].tolist())
    return _Sentence(**columns, openings=openings, closing=closing)


@dataclass(frozen=True, slots=True)
class _Step:
    """What a row wants to run next.

    Attributes:
        accepted: How many of the tokens that it looked at last stay.
        appended: Tokens that stay in any case, at least one.
        looked: Tokens that are copied unless a tag is likelier.
        tags: The first token of the tag that may stand in front of each of these; -1 for none.
        choices: Where nothing is looked at, the tokens of which the likeliest is wanted.
    """

    accepted: int
    appended: Sequence[int]
    looked: Sequence[int] = ()
    tags: Sequence[int] = ()
    choices: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.appended) + len(self.looked)


def _decisions(sentence: _Sentence, prompt: list[int], end: int) -> Generator[_Step, int, list[int]]:
    """Decides on the tags of one sentence.

    Yields:
        Steps; sent back is the number of looked-at tokens before the first tag, or the index of a choice.

    Returns:
        The answer, its end included.
    """
    answer: list[int] = []
    place, inside, fresh = 0, False, False
    accepted, appended = 0, prompt
    while place != END:
        path = sentence.path(place, AHEAD[inside])
        looked = [sentence.tokens[index] for index in path]
        tags = [sentence.tag_before(index, inside=inside) for index in path]
        if fresh:
            tags[0] = NO_TAG  # a mention is not empty
        count = yield _Step(accepted, appended, looked, tags)
        answer += looked[:count]
        if count == len(path):  # the last token runs again, in front of the next block
            accepted, appended, fresh = count - 1, looked[-1:], False
            place = sentence.following[path[-1]]
        elif inside:
            accepted, appended, fresh = count, list(sentence.closing), False
            place, inside = path[count], False
            answer += appended
        else:
            kind = sentence.openings[sentence.blanks[path[count]]]
            accepted, appended, tag = yield from _chosen(kind, count)
            place, inside, fresh = sentence.opened[path[count]], True, True
            answer += tag
    return [*answer, *(sentence.closing if inside else ()), end]


def _chosen(
    openings: Sequence[tuple[int, ...]], accepted: int
) -> Generator[_Step, int, tuple[int, list[int], tuple[int, ...]]]:
    """Chooses a type token by token among those that are left.

    Returns:
        How many of the tokens that were looked at last stay, those of the tag that have not run, and all.
    """
    left, known = [*openings], 0
    while len(left) > 1:
        shared = known
        while len({tag[shared] for tag in left}) == 1:
            shared += 1
        choices = sorted({tag[shared] for tag in left})
        best = yield _Step(accepted, left[0][known:shared], choices=choices)
        left = [tag for tag in left if tag[shared] == choices[best]]
        accepted, known = 0, shared
    return accepted, list(left[0][known:]), left[0]


class _Passes:
    """Passes of a model over rows that accept different numbers of tokens.

    Rows are aligned on the right. Tokens that were looked at and not accepted are taken out of the cache.

    Args:
        module: The model.
        device: Where its inputs are.
        pad: What rows are padded with.
        rows: How many there are.
    """

    def __init__(self, module: nn.Module, device: torch.device, pad: int, rows: int) -> None:
        inner = getattr(module, "get_base_model", lambda: module)()  # PEFT's wrapper hides the signature
        self._taken, self._keys = inspect.signature(inner.forward).parameters, cache_name(inner)
        self._module, self._device, self._pad = module, device, pad
        # Without the model's settings each layer keeps all keys: a sliding window cannot be taken back.
        self._cache = DynamicCache()
        self._lengths = torch.zeros(rows, dtype=torch.long)  # of each row in the cache
        self._steps: Sequence[_Step] = ()

    def run(self, steps: Sequence[_Step]) -> list[int]:
        """Runs a step of each row; returns what `_decisions` is sent for each."""
        self._steps = steps
        counts = torch.tensor(list(map(len, steps)))
        width, before = int(counts.max()), int(self._lengths.max())
        ids = torch.full((len(steps), width), self._pad)
        for row, step in enumerate(steps):
            ids[row, width - int(counts[row]) :] = torch.tensor([*step.appended, *step.looked])
        columns = torch.arange(width) - (width - counts)[:, None]
        cached = torch.arange(before) >= (before - self._lengths)[:, None]
        mask = torch.cat([cached, columns >= 0], dim=1).long()
        kept = max(len(step.looked) for step in steps) + 1
        further: dict[str, Any] = {"logits_to_keep": kept} if "logits_to_keep" in self._taken else {}
        if "position_ids" in self._taken:
            positions = (self._lengths[:, None] + columns).clamp(min=0)
            further["position_ids"] = positions.to(self._device)
        logits = self._module(
            input_ids=ids.to(self._device),
            attention_mask=mask.to(self._device),
            use_cache=True,
            **{self._keys: self._cache},
            **further,
        ).logits[:, -kept:]
        return _found(logits, steps)

    def keep(self, rows: Sequence[int], accepted: Sequence[int]) -> None:
        """Keeps rows, and of each what was appended and as many of the tokens that were looked at."""
        chosen = torch.tensor(rows, dtype=torch.long)
        steps = [self._steps[row] for row in rows]
        if not steps:
            return
        before, width = int(self._lengths.max()), max(map(len, self._steps))
        lengths = self._lengths[chosen]
        counts = torch.tensor(list(map(len, steps)))
        own = torch.tensor([len(step.appended) for step in steps]) + torch.tensor(accepted)
        self._lengths = lengths + own
        longest = int(self._lengths.max())
        places = torch.arange(longest) - (longest - self._lengths)[:, None]
        old = before - lengths[:, None] + places
        new = before + width - counts[:, None] + places - lengths[:, None]
        columns = torch.where(places < lengths[:, None], old, new).clamp(min=0).to(self._device)
        chosen = chosen.to(self._device)
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                states = getattr(layer, name)[chosen]
                index = columns[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
                setattr(layer, name, states.gather(2, index))


def _found(logits: Tensor, steps: Sequence[_Step]) -> list[int]:
    """Returns of each step the number of tokens before the first tag, or the index of the likeliest choice.

    Args:
        logits: (rows, columns, vocabulary), aligned on the right: the last column is behind all tokens.
        steps: The step of each row.
    """
    columns = logits.shape[1]
    copies = torch.zeros(len(steps), columns, dtype=torch.long)
    tags = torch.full((len(steps), columns), NO_TAG)
    for row, step in enumerate(steps):
        if step.looked:
            first = columns - 1 - len(step.looked)
            copies[row, first : columns - 1] = torch.tensor(step.looked)
            tags[row, first : columns - 1] = torch.tensor(step.tags)
    copies, tags = copies.to(logits.device), tags.to(logits.device)
    tag_logits = logits.gather(2, tags.clamp(min=0)[..., None])[..., 0]
    wins = (tag_logits > logits.gather(2, copies[..., None])[..., 0]) & (tags >= 0) & (tags != copies)
    found = []
    for row, (step, row_wins) in enumerate(zip(steps, wins.tolist(), strict=True)):
        if step.choices:
            found.append(int(logits[row, -1, list(step.choices)].argmax()))
        else:
            own = row_wins[columns - 1 - len(step.looked) : columns - 1]
            found.append(own.index(True) if True in own else len(own))
    return found
