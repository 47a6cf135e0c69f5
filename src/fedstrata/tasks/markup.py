"""Mentions as markup in a text, `<span class="problem">chest pain</span>`, and back to character offsets.

Writing is exact: what `mark` writes, `read` gives back. Reading also survives what a language model makes of
it: tags that are not closed, text that was changed, left out, repeated or made up. The text between the tags
is aligned with the source; a mention is kept where every cheapest alignment puts all its characters on the
same stretch of the source, and is else counted and left out. None is guessed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from fedstrata.core.documents import Span

_TAG = re.compile(r"""<span\s+class\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')\s*>|</span\s*>""")
_LITERAL = re.compile(r"<(?=/?span)")
"""What would be taken for a tag if it stood in a note."""
_ESCAPED = "&lt;"
_FORBIDDEN = re.compile(r"""["'<>]""")
_MOST_CELLS = 2**23
"""Cells of an alignment at most; an output of that many letters has little to do with its input."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What of a marked-up text could not be used.

    Attributes:
        broken: Tags that are not closed, close nothing, or are not complete.
        unknown: Mentions of a type that was not asked for.
        unaligned: Mentions that stand for no one stretch of the source.
        unfinished: Texts that were cut off before their end.
    """

    broken: int = 0
    unknown: int = 0
    unaligned: int = 0
    unfinished: int = 0

    def __add__(self, other: Faults) -> Faults:
        return Faults(
            self.broken + other.broken,
            self.unknown + other.unknown,
            self.unaligned + other.unaligned,
            self.unfinished + other.unfinished,
        )


NO_FAULTS = Faults()


def unusable_types(types: Iterable[str]) -> list[str]:
    """Returns those of these names that cannot stand in a tag."""
    return [label for label in types if _FORBIDDEN.search(label) or label != label.strip() or not label]


def mark(text: str, spans: Iterable[Span]) -> str:
    """Writes mentions into a text.

    Mentions may nest; of two that cross each other, or are equal, the one that `markable` leaves out is not
    written. A discontinuous mention is written as the stretch that encloses it.

    Args:
        text: The source.
        spans: Its mentions, with offsets in it.
    """
    tags: defaultdict[int, list[str]] = defaultdict(list)
    kept = markable(spans)
    for span in kept:
        tags[span.end].append("</span>")  # before what begins here: all closing tags are alike
    for span in kept:
        tags[span.start].append(f'<span class="{span.label}">')
    escaped, bounds = escape(text), _bounds(text)
    places = {int(place): at for at, place in enumerate(bounds) if place in tags}
    pieces, last = [], 0
    for place in sorted(tags):
        pieces += [escaped[last : places[place]], *tags[place]]
        last = places[place]
    return "".join([*pieces, escaped[last:]])


def markable(spans: Iterable[Span]) -> list[Span]:
    """Returns the mentions that markup can hold, each before those within it.

    A mention is left out that crosses another: of the two a continuous one stays, and then the longest.
    """
    kept: list[Span] = []
    for span in sorted(
        set(spans), key=lambda each: (bool(each.fragments), each.start - each.end, each.start)
    ):
        if not any(_crosses(span, other) for other in kept):
            kept.append(span)
    return sorted(kept, key=lambda each: (each.start, -each.end, each.label))


def _crosses(one: Span, other: Span) -> bool:
    """Whether two mentions overlap without one holding the other, or are the same stretch and type."""
    if (one.start, one.end, one.label) == (other.start, other.end, other.label):
        return True
    return one.start < other.start < one.end < other.end or other.start < one.start < other.end < one.end


def escape(text: str) -> str:
    """Returns a text in which nothing can be taken for a tag."""
    return _LITERAL.sub(_ESCAPED, text)


def read(source: str, marked: str, types: Collection[str]) -> tuple[tuple[Span, ...], Faults]:
    """Reads mentions off a marked-up text.

    Args:
        source: The text that was to be marked.
        marked: What was made of it.
        types: The types that were asked for.

    Returns:
        The mentions with offsets in the source, sorted, each once; and what could not be used.
    """
    plain, found, broken = _without_tags(marked)
    known = [(start, end, label) for start, end, label in found if label in types]
    places, bounds = _places(plain, escape(source)), _bounds(source)
    spans, unaligned = set(), 0
    for start, end, label in known:
        stretch = places[start:end]
        if start < end and stretch[0] >= 0 and (np.diff(stretch) == 1).all():
            first, last = int(bounds[stretch[0]]), int(bounds[stretch[-1] + 1])
            if first >= 0 and last >= 0 and source[first:last].strip():
                spans.add(Span(first, last, label))
                continue
        unaligned += 1
    ordered = tuple(sorted(spans, key=lambda span: (span.start, span.end, span.label)))
    return ordered, Faults(broken=broken, unknown=len(found) - len(known), unaligned=unaligned)


def _bounds(source: str) -> np.ndarray:
    """Returns of each place in the escaped source, (characters + 1,), the place in the source itself.

    It is -1 within an escape, where no mention of the source can begin or end.
    """
    lengths = np.ones(len(source) + 1, dtype=np.int64)
    lengths[[found.start() for found in _LITERAL.finditer(source)]] = len(_ESCAPED)
    bounds = np.full(int(lengths.sum()), -1, dtype=np.int64)
    bounds[np.concatenate([[0], np.cumsum(lengths)[:-1]])] = np.arange(len(source) + 1)
    return bounds


def _without_tags(marked: str) -> tuple[str, list[tuple[int, int, str]], int]:
    """Returns the text between the tags, what each pair of tags encloses of it, and how many are broken."""
    pieces: list[str] = []
    opened: list[tuple[int, str]] = []
    found: list[tuple[int, int, str]] = []
    length = broken = last = 0
    for tag in _TAG.finditer(marked):
        pieces.append(marked[last : tag.start()])
        length, last = length + len(pieces[-1]), tag.end()
        label = tag[1] if tag[1] is not None else tag[2]
        if label is not None:
            opened.append((length, label.strip()))
        elif opened:
            start, label = opened.pop()
            found.append((start, length, label))
        else:
            broken += 1
    plain = "".join([*pieces, marked[last:]])
    return plain, found, broken + len(opened) + len(_LITERAL.findall(plain))


def _places(plain: str, source: str) -> np.ndarray:
    """Returns where each character of an output stands in the source, (characters,) int64; -1 for nowhere.

    What the output repeats from the beginning of the source, and then from its end, is at its place. In
    between, a character has a place if it is matched, and with the same one, in all cheapest alignments.
    """
    one, other = _codes(plain), _codes(source)
    first = _common(one, other)
    last = _common(one[first:][::-1], other[first:][::-1])
    places = np.full(len(one), -1, dtype=np.int64)
    places[:first] = np.arange(first)
    places[len(one) - last :] = np.arange(len(other) - last, len(other))
    inner = _unique_matches(one[first : len(one) - last], other[first : len(other) - last])
    places[first : len(one) - last] = np.where(inner >= 0, inner + first, -1)
    return places


def _codes(text: str) -> np.ndarray:
    """Returns the code points of a text, (characters,) uint32; blanks are all alike, as they look alike."""
    alike = "".join(" " if character.isspace() else character for character in text)
    return np.frombuffer(alike.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Returns how many elements two arrays begin with in common."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def _unique_matches(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Aligns two arrays at the least number of insertions, deletions and substitutions (Levenshtein).

    Args:
        one: (n,) code points.
        other: (m,) code points.

    Returns:
        Of each element of `one` the index of the element of `other` with which every cheapest alignment
        matches it; -1 where there is none, (n,) int64.
    """
    nowhere = np.full(len(one), -1, dtype=np.int64)
    if not len(one) or not len(other) or len(one) * len(other) > _MOST_CELLS:
        return nowhere
    before = _distances(one, other)
    behind = _distances(one[::-1], other[::-1])[::-1, ::-1]
    least = before[-1, -1]
    equal = one[:, None] == other[None, :]
    # Element i of `one` is paired with element j of `other`, or dropped between j - 1 and j.
    paired = before[:-1, :-1] + ~equal + behind[1:, 1:] == least
    dropped = before[:-1] + 1 + behind[1:] == least
    unique = (paired.sum(axis=1) == 1) & ~dropped.any(axis=1) & (paired & equal).any(axis=1)
    return np.where(unique, paired.argmax(axis=1), nowhere)


def _distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the edit distances between all beginnings of two arrays, (n + 1, m + 1) int32."""
    steps = np.arange(len(other) + 1, dtype=np.int32)
    table = np.empty((len(one) + 1, len(other) + 1), dtype=np.int32)
    table[0] = steps
    for row, element in enumerate(one, start=1):
        cheapest = table[row - 1] + 1
        cheapest[1:] = np.minimum(cheapest[1:], table[row - 1, :-1] + (other != element))
        # Insertions chain along the row: the least of what any earlier cell costs plus the steps from it.
        table[row] = np.minimum.accumulate(cheapest - steps) + steps
    return table
