"""Sentences of a note, by character offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE = re.compile(r"[^\n\r]+")


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yields where each sentence begins and ends, without the blanks around it, from left to right.

    A sentence ends with its line: headings, list items and laboratory values of clinical notes have no full
    stop. Within a line sentencex decides, whose rules know abbreviations and decimal points.

    Args:
        text: The note. Of English, or at least written like it.
    """
    from sentencex import get_sentence_boundaries  # noqa: PLC0415 - needed only where notes are cut

    for line in _LINE.finditer(text):
        for boundary in get_sentence_boundaries("en", line[0]):
            start, end = boundary["start_index"], boundary["end_index"]
            sentence = line[0][start:end]
            if sentence.strip():
                left = len(sentence) - len(sentence.lstrip())
                right = len(sentence.rstrip())
                yield line.start() + start + left, line.start() + start + right


def lines(text: str) -> Iterator[tuple[int, int]]:
    """Yields where each line begins and ends, without the blanks around it; blank ones are left out."""
    for line in _LINE.finditer(text):
        if line[0].strip():
            left = len(line[0]) - len(line[0].lstrip())
            yield line.start() + left, line.start() + len(line[0].rstrip())
