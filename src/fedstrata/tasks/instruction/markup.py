"""Mentions as markup in a text, `<span class="problem">chest pain</span>`, and back to character offsets.

Writing is exact: what `mark` writes, `read` gives back, but for blanks at the ends of a mention, which do not
belong to it. Reading also survives what a language model makes of it: tags that are not closed, text that was
changed, left out, repeated or made up. The text between the tags is aligned with the source; a mention is
kept where every cheapest alignment puts all its characters on the same stretch of the source, and is else
counted and left out. None is guessed.

An alignment's cost is its number of insertions, deletions and substitutions (Levenshtein). One of cost d
keeps within d places of the diagonal, so a band around it is enough: it is made wider until no cheaper way
can lie outside.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

import numpy as np

from fedstrata.core.documents import Span

_TAG = re.compile(r"""<span\s+class\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')\s*>|</span\s*>""", re.IGNORECASE)
_LITERAL = re.compile(r"<(?=/?span)", re.IGNORECASE)
"""What would be taken for a tag if it stood in a note."""
_CUT_OFF = re.compile(r"</?(?:s|sp|spa|span[^<>]*)?\Z", re.IGNORECASE)
"""The beginning of a tag at the end of a text."""
_ESCAPED = "&lt;"
CLOSING = "</span>"
"""The tag that ends a mention."""
_FORBIDDEN = re.compile(r"""["'<>]""")
_MOST_CELLS = 2**23
"""Cells of a band at most; an output that differs so much has little to do with its source."""
_FIRST_MARGIN, _WIDER = 8, 4
"""Places that the first band has on both sides, and how many times more the next."""
_NOWHERE = np.int32(2**29)
"""The cost of what cannot be."""
_SENTINEL = np.uint32(2**32 - 1)
"""No code point."""

Faults = Counter[str]
"""How much of marked-up texts could not be used.

- `broken`: tags that are not closed, close nothing, or are not complete;
- `unknown`: mentions of a type that was not asked for;
- `unaligned`: mentions that stand for no one stretch of the source;
- `unfinished`: texts that were cut off before their end;
- `unreachable`: annotated mentions that copy decoding cannot mark.
"""


def unusable_types(types: Iterable[str]) -> list[str]:
    """Returns those of these names that cannot stand in a tag."""
    return [label for label in types if _FORBIDDEN.search(label) or label != label.strip() or not label]


def opening(label: str) -> str:
    """Returns the tag that begins a mention of a type."""
    return f'<span class="{label}">'


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
        tags[span.end].append(CLOSING)  # before what begins here: all closing tags are alike
    for span in kept:
        tags[span.start].append(opening(span.label))
    escaped, bounds = escape(text), source_places(text)
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


def read(
    source: str, marked: str, types: Collection[str], *, finished: bool = True
) -> tuple[tuple[Span, ...], Faults]:
    """Reads mentions off a marked-up text.

    Args:
        source: The text that was to be marked.
        marked: What was made of it.
        types: The types that were asked for.
        finished: Whether that is all of it. Of one that was cut off, and repeats the source from its
            beginning so far, the end of the source is what is missing.

    Returns:
        The mentions with offsets in the source, sorted, each once and without blanks at its ends; and what
        could not be used.
    """
    plain, found, broken = _without_tags(marked)
    known = [(start, end, label) for start, end, label in found if label in types]
    output, whole = _Characters(plain), _Characters(escape(source))
    places, bounds = _places(output, whole, plain, finished=finished), source_places(source)
    spans, unaligned = set(), 0
    for start, end, label in known:
        text = plain[start:end]
        first, last = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
        stretch = places[output.order[first] : output.order[last - 1] + 1] if first < last else places[:0]
        if len(stretch) and stretch[0] >= 0 and (np.diff(stretch) == 1).all():
            begin, stop = bounds[whole.at[stretch[0]]], bounds[whole.at[stretch[-1]] + 1]
            if begin >= 0 and stop >= 0:
                spans.add(Span(int(begin), int(stop), label))
                continue
        unaligned += 1
    faults = Faults(broken=broken, unknown=len(found) - len(known), unaligned=unaligned)
    return tuple(sorted(spans)), faults


class _Characters:
    """The characters of a text with blanks all alike, as they look: a row of them is one.

    Args:
        text: The text.

    Attributes:
        codes: Code points, (characters,) uint32.
        at: Where each stands in the text, the first of a row of blanks, (characters,).
        order: Which of them each character of the text is, (characters of the text,).
    """

    def __init__(self, text: str) -> None:
        blank = np.array([character.isspace() for character in text], dtype=bool)
        kept = ~blank
        kept[:1] = True
        kept[1:] |= ~blank[:-1]
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.codes = np.where(blank, np.uint32(ord(" ")), codes)[kept]
        self.at = np.flatnonzero(kept)
        self.order = np.cumsum(kept) - 1


def source_places(source: str) -> np.ndarray:
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


def _places(output: _Characters, source: _Characters, plain: str, *, finished: bool) -> np.ndarray:
    """Returns where each character of an output stands in the source, (characters,) int64; -1 for nowhere.

    A character has a place if it is matched, and with the same one, in all cheapest alignments of the whole.
    """
    if not finished:
        whole_tags = len(_CUT_OFF.sub("", plain))
        so_far = int((output.at < whole_tags).sum())
        if np.array_equal(output.codes[:so_far], source.codes[:so_far]):
            places = np.full(len(output.codes), -1, dtype=np.int64)
            places[:so_far] = np.arange(so_far)
            return places
    return unique_matches(output.codes, source.codes)


def unique_matches(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Aligns two arrays.

    Args:
        one: (n,) uint32, code points.
        other: (m,) uint32, code points.

    Returns:
        Of each element of `one` the index of the element of `other` with which every cheapest alignment
        matches it; -1 where there is none, (n,) int64.
    """
    if np.array_equal(one, other):
        return np.arange(len(one))
    margin, excess = _FIRST_MARGIN, len(other) - len(one)
    while len(one) and len(other):
        low, high = min(excess, 0) - margin, max(excess, 0) + margin
        if (len(one) + 1) * (high - low + 1) > _MOST_CELLS:
            break
        before = _distances(one, other, low, high)
        least = before[-1, excess - low]
        if least < abs(excess) + 2 * (margin + 1):  # what it costs to leave the band and to come back
            behind = _distances(one[::-1], other[::-1], low, high)[::-1, ::-1]
            differing = _differing(one, other, low, high)
            # Element i of `one` is paired with element i + diagonal of `other`, or dropped in front of it.
            paired = before[:-1] + differing + behind[1:] == least
            dropped = before[:-1, 1:] + 1 + behind[1:, :-1] == least
            unique = (paired.sum(axis=1) == 1) & ~dropped.any(axis=1) & (paired & ~differing).any(axis=1)
            return np.where(unique, np.arange(len(paired)) + low + paired.argmax(axis=1), -1)
        margin *= _WIDER
    return np.full(len(one), -1, dtype=np.int64)


def _differing(one: np.ndarray, other: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns whether element i of `one` is another than element i + low + column, (n, diagonals) bool."""
    behind = max(0, len(one) + high - len(other))
    padded = np.concatenate([np.full(-low, _SENTINEL), other, np.full(behind, _SENTINEL)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, high - low + 1)[: len(one)]
    differing: np.ndarray = windows != one[:, None]
    return differing


def _distances(one: np.ndarray, other: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns the edit distances between beginnings of two arrays, (n + 1, diagonals) int32.

    Row i, column c is of the first i elements of `one` and the first i + low + c of `other`. Where there are
    no so many of `other` it means nothing, and nothing comes of it.
    """
    differing = _differing(one, other, low, high)
    steps = np.arange(high - low + 1, dtype=np.int32)
    table = np.empty((len(one) + 1, len(steps)), dtype=np.int32)
    table[0] = np.where(steps + low < 0, _NOWHERE, steps + low)
    for row in range(1, len(table)):
        cheapest = table[row - 1] + differing[row - 1]
        cheapest[:-1] = np.minimum(cheapest[:-1], table[row - 1, 1:] + 1)
        # Insertions chain along the row: the least of what any earlier cell costs plus the steps from it.
        table[row] = np.minimum.accumulate(cheapest - steps) + steps
    return table
