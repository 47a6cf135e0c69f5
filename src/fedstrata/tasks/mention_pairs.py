"""Pairs of mentions: which a model is asked about, and each in the text around it.

It is asked about those near each other, and of types that go together. A relation goes from a main mention to
a modifier, so a pair is ordered. How far two mentions are apart is the number of words that begin between
them: none where they overlap, or where one follows the other.

A pair stands in the text around it, marked so that a model sees which two it is asked about.

    took # ^ dosage ^ 81 mg # of @ * drug * aspirin @ by mouth

These are the typed entity markers of Zhou and Chen, "An Improved Baseline for Sentence-level Relation
Extraction" (AACL-IJCNLP 2022), in their form of punctuation: the main mention stands between `@` and its type
between `*`, the modifier between `#` and its type between `^`. Being ordinary tokens they need no embeddings
that a model would have to learn first, and that would have to travel. Without types `@` and `#` are left.

Markers stand between tokens: a mention that begins or ends within a token is marked with the whole of it. A
pair that leaves room in its window has as much text on its left as on its right, as far as there is text. One
that is longer than the window loses the middle of what lies between its ends.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import refused
from fedstrata.tasks.instruction.prompts import builtin
from fedstrata.tasks.texts import require_offsets, special_around
from fedstrata.tasks.windows import touched, without_blanks

WORD = re.compile(r"\w+")
SIGNS = (("@", "*"), ("#", "^"))
"""What stands around a main mention and around its type; and so for a modifier."""


def candidate_pairs(
    document: Document, modifiers: Mapping[str, Sequence[str]], most_words: int
) -> list[tuple[int, int]]:
    """Returns the pairs of mentions that may be related.

    Args:
        document: The document with its mentions.
        modifiers: The types of modifiers that each type of main mention may have.
        most_words: Words between the two, at most.

    Returns:
        The indices of main mention and modifier in `document.spans`, in order; a discontinuous mention counts
        as the stretch that encloses it.
    """
    labels = [span.label for span in document.spans]
    if modifiers.keys().isdisjoint(labels):
        return []
    fits = {main: np.isin(labels, list(own)) for main, own in modifiers.items()}
    none = np.zeros(len(labels), dtype=bool)
    asked = np.stack([fits.get(label, none) for label in labels]) & (words_apart(document) <= most_words)
    np.fill_diagonal(asked, val=False)
    return [(main, modifier) for main, modifier in np.argwhere(asked).tolist()]


def words_apart(document: Document) -> np.ndarray:
    """Returns how many words begin between any two mentions, (mentions, mentions) int64.

    It is below 0 where they overlap.
    """
    spans = document.spans
    words = np.array([match.start() for match in WORD.finditer(document.text)])
    until_start = np.searchsorted(words, [span.start for span in spans])  # words that begin before it
    until_end = np.searchsorted(words, [span.end for span in spans])
    after = until_start[None, :] - until_end[:, None]  # words from a mention's end to another one's start
    apart: np.ndarray = np.maximum(after, after.T)
    return apart


def marks_around(label: str, role: int, *, typed: bool) -> tuple[str, str]:
    """Returns what stands before and after a mention of a type: 0 for a main one, 1 for a modifier.

    >>> marks_around("Lab_value", 1, typed=True), marks_around("Lab_value", 1, typed=False)
    (('# ^ lab value ^', '#'), ('#', '#'))
    """
    sign, of_type = SIGNS[role]
    if not typed:
        return sign, sign
    return f"{sign} {of_type} {' '.join(label.replace('_', ' ').lower().split())} {of_type}", sign


def code_of(modifiers: Mapping[str, Sequence[str]], *, typed: bool) -> str:
    """Returns how a pair of mentions is classified, which no pipeline does, as a model card says it.

    Its text is as a model reads it, with the first types that it is asked about.
    """
    main = next(label for label, own in modifiers.items() if own)
    before, after = marks_around(main, 0, typed=typed)
    begin, end = marks_around(modifiers[main][0], 1, typed=typed)
    text = f"... {before} WORDS {after} ... {begin} WORDS {end} ..."
    return builtin("relation_code").format(text=text).rstrip()


@dataclass(frozen=True, slots=True)
class MarkableText:
    """A document's tokens, and which of them each of its mentions touches.

    Attributes:
        input_ids: Token ids without special ones, (tokens,) int32.
        begins: The first token of each mention, (mentions,) int64.
        ends: One past its last token; equal to its first where nothing of it is in any token.
    """

    input_ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


def markable(document: Document, input_ids: Sequence[int], offsets: Sequence[Sequence[int]]) -> MarkableText:
    """Finds a document's mentions among its tokens.

    Args:
        document: The document.
        input_ids: Its tokens, without special ones.
        offsets: First and one past the last character of each.
    """
    (solid,) = without_blanks(document.text, [np.array(offsets, dtype=np.int32).reshape(-1, 2)])
    return MarkableText(np.array(input_ids, dtype=np.int32), *touched(document.spans, solid))


class PairMarker:
    """Makes the windows of marked pairs.

    Args:
        tokenizer: A fast transformers tokenizer.
        max_length: Tokens in a window, special tokens and markers included.
        typed: Whether the types of the mentions are shown.

    Raises:
        ConfigurationError: The tokenizer gives no offsets, or does not know the four signs apart.
    """

    def __init__(self, tokenizer: Any, max_length: int, *, typed: bool = True) -> None:
        require_signs(tokenizer)
        before, after = special_around(tokenizer)
        self._before, self._after = np.array(before, dtype=np.int32), np.array(after, dtype=np.int32)
        self._room = max_length - len(before) - len(after)
        self._tokenizer, self._typed = tokenizer, typed
        self._marks: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}

    def window(
        self, text: MarkableText, spans: Sequence[Span], main: int, modifier: int
    ) -> tuple[np.ndarray, tuple[int, int]]:
        """Returns a pair's window.

        Args:
            text: The document's tokens.
            spans: Its mentions.
            main: Index of the main mention.
            modifier: Index of the modifier.

        Returns:
            Token ids, (tokens,) int32; and where the main mention's closing mark ends and where that of the
            modifier does, both a token of the window: its last token before the gap where a window lost the
            middle of a pair, and the mark.
        """
        pair = (main, modifier)
        marks = [self._around(spans[index].label, role) for role, index in enumerate(pair)]
        bounds = [(int(text.begins[index]), int(text.ends[index])) for index in pair]
        places = sorted(place for role in (0, 1) for place in _places(*bounds[role], role))
        left, right = places[0][0], places[-1][0]
        pieces, closed = [marks[places[0][-1]][0]], [0, 0]
        for (begin, *_), (end, order, *_, role) in pairwise(places):
            pieces += [text.input_ids[begin:end], marks[role][0 if order == _OPENS else 1]]
            if order != _OPENS:
                closed[role] = sum(map(len, pieces)) - 1
        core = np.concatenate(pieces)
        spare = self._room - len(core)
        if spare < 0:
            head = self._room - self._room // 2
            core = np.concatenate([core[:head], core[-(self._room // 2) :]])
            closed = [place if place < head else max(place + spare, head - 1) for place in closed]
        earlier, later = left, len(text.input_ids) - right
        taken = min(earlier, max(spare // 2, spare - later, 0))
        context = text.input_ids[left - taken : left], text.input_ids[right : right + max(spare - taken, 0)]
        ids = np.concatenate([self._before, context[0], core, context[1], self._after])
        main_mark, modifier_mark = (len(self._before) + len(context[0]) + place for place in closed)
        return ids, (main_mark, modifier_mark)

    def _around(self, label: str, role: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens before and after a mention of a type."""
        if (label, role) not in self._marks:
            texts = [f" {mark}" for mark in marks_around(label, role, typed=self._typed)]
            ids = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
            self._marks[label, role] = np.array(ids[0], dtype=np.int32), np.array(ids[1], dtype=np.int32)
        return self._marks[label, role]


_CLOSES, _OPENS, _CLOSES_EMPTY = range(3)


def _places(begin: int, end: int, role: int) -> list[tuple[int, int, int, int, int]]:
    """Returns where a mention opens and closes, so that sorting the places of two nests one in the other.

    At one place what began first closes last, and what ends last opens first; of equal mentions the main one
    is outside.

    Args:
        begin: Its first token.
        end: One past its last token.
        role: 0 for the main mention, 1 for the modifier.

    Returns:
        Place, order at that place (two numbers and a tie breaker), and role.
    """
    closing = _CLOSES_EMPTY if begin == end else _CLOSES
    return [(begin, _OPENS, -end, role, role), (end, closing, -begin, -role, role)]


def require_signs(tokenizer: Any) -> None:
    """Refuses a tokenizer in whose vocabulary the signs around mentions are not four different ones.

    Raises:
        ConfigurationError: It is such a one, or gives no offsets.
    """
    require_offsets(tokenizer)
    signs = [sign for own in SIGNS for sign in own]
    encoded = tokenizer([f" {sign}" for sign in signs], add_special_tokens=False)["input_ids"]
    ids = {tuple(own) for own in encoded}
    if len(ids) < len(signs) or any(not own or tokenizer.unk_token_id in own for own in ids):
        named = f"{' '.join(signs)}, and this tokenizer does not know all of them"
        raise refused("model.tokenizer", f"task relations marks mentions with {named}", "lacks_tokens")
