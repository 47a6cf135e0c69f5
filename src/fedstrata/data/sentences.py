"""Sentences of a note, by character offsets."""

import re
from collections.abc import Iterator
from itertools import pairwise

_LINE = re.compile(r"[^\n\r]*(?:\r\n|\r|\n|$)")
WIDEST = 160
"""Characters of a line at most for a text to be taken for one whose lines are broken to a width."""
FULL = 0.75
"""Length, as a share of the longest line's, from which a line is taken to go on with the next one."""
BROKEN_LINES = 3
"""Lines of that length, with a next one, that a text must have at least."""


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yields where each sentence begins and ends, without the blanks around it, from left to right.

    A sentence ends with its line (`lines`): headings, list items and laboratory values of clinical notes have
    no full stop. Within a line sentencex decides, whose rules know abbreviations and decimal points.

    Args:
        text: The note. Of English, or at least written like it.
    """
    from sentencex import get_sentence_boundaries  # noqa: PLC0415 - needed only where notes are cut

    for start, end in lines(text):
        flat = text[start:end].translate({ord("\n"): " ", ord("\r"): " "})  # it would take it for an end
        for boundary in get_sentence_boundaries("en", flat):
            yield from _stripped(text, start + boundary["start_index"], start + boundary["end_index"])


def lines(text: str) -> Iterator[tuple[int, int]]:
    """Yields where each line begins and ends, without the blanks around it; blank ones are left out.

    Where a text is broken to a width, as notes of MIMIC-III are, a break behind a line that is about as long
    as the longest does not count.

    Args:
        text: The note.
    """
    found = [match.span() for match in _LINE.finditer(text) if match[0]]
    sizes = [len(text[start:end].rstrip()) for start, end in found]
    width = max(sizes, default=0)
    full = [size >= FULL * width and bool(after) for size, after in pairwise([*sizes, 0])]
    broken = width <= WIDEST and sum(full) >= BROKEN_LINES
    begin = None
    for (start, end), goes_on in zip(found, full, strict=True):
        begin = start if begin is None else begin
        if not (broken and goes_on):
            yield from _stripped(text, begin, end)
            begin = None


def _stripped(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields a stretch without the blanks around it, unless nothing else is in it."""
    stretch = text[start:end]
    if stretch.strip():
        yield start + len(stretch) - len(stretch.lstrip()), start + len(stretch.rstrip())
