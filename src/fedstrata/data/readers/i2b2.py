r"""i2b2-2010 concepts: `ID.txt`, one sentence a line and tokens apart, and `ID.con`.

    c="renal carcinoma" 8:4 8:5||t="problem"

Lines count from 1, tokens from 0, both ends included; a concept may span lines. Tokens are what ASCII white
space sets apart, as the challenge's byte-oriented tools see them: a no-break space is part of its token.

Tools disagree on one thing: whether a line that begins with white space begins with an empty token (as a
split on `\s+` in Java gives it) or not. The quoted texts decide, for the whole file. They are compared
without regard to case, since `.con` files quote in lower case, or to the amount of white space.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, numbered_lines, read_text, stem

_CONCEPT = re.compile(r'c="(.*)" ([0-9]{1,9}):([0-9]{1,9}) ([0-9]{1,9}):([0-9]{1,9})\|\|t="([^"]+)"')
_SHAPE = 'c="TEXT" LINE:TOKEN LINE:TOKEN||t="TYPE"'
_TOKEN = re.compile(r"[^ \t\r\f\v]+")
_TOKEN_OR_EMPTY_START = re.compile(r"^(?=[ \t\r\f\v])|[^ \t\r\f\v]+")

Lines = list[list[tuple[int, int]]]
"""The `(start, end)` of every token, line by line."""


@dataclass(frozen=True, slots=True)
class _Concept:
    """One line of a `.con` file."""

    line: int
    quote: str
    first: tuple[int, int]
    last: tuple[int, int]
    label: str


def _tokens(text: str, pattern: re.Pattern[str]) -> Lines:
    lines = text.split("\n")
    begins = accumulate((len(line) + 1 for line in lines), initial=0)
    return [
        [(begin + match.start(), begin + match.end()) for match in pattern.finditer(line)]
        for begin, line in zip(begins, lines, strict=False)
    ]


def _parse(path: Path) -> list[_Concept]:
    concepts = []
    for number, line in numbered_lines(read_text(path)):
        if not line.strip():
            continue
        match = _CONCEPT.fullmatch(line.strip())
        if match is None:
            raise DataError(path, "malformed concept line", line=number, expected=_SHAPE)
        first, last = (int(match[2]), int(match[3])), (int(match[4]), int(match[5]))
        if last < first:
            where = f"from {match[2]}:{match[3]} to {match[4]}:{match[5]}"
            raise DataError(path, f"the concept runs backwards, {where}", line=number)
        concepts.append(_Concept(number, match[1], first, last, match[6]))
    return concepts


def _position(tokens: Lines, place: tuple[int, int]) -> tuple[int, int]:
    line, token = place
    if not 1 <= line <= len(tokens):
        raise LookupError(f"the text has no line {line}, it has {len(tokens)}")
    if token >= len(tokens[line - 1]):
        raise LookupError(f"line {line} of the text has no token {token}, it has {len(tokens[line - 1])}")
    return tokens[line - 1][token]


def _span(text: str, tokens: Lines, concept: _Concept) -> Span:
    """Finds a concept in the text; raises `LookupError` saying why it is not there."""
    start, end = _position(tokens, concept.first)[0], _position(tokens, concept.last)[1]
    quoted = text[start:end].lstrip()  # an empty first token leaves white space before the mention
    if not quoted or quoted.casefold().split() != concept.quote.casefold().split():
        where = "{}:{} to {}:{}".format(*concept.first, *concept.last)
        raise LookupError(f"the concept ({concept.label}) does not quote the text at {where}")
    return Span(end - len(quoted), end, concept.label)


def _spans(path: Path, text: str, concepts: list[_Concept]) -> list[Span]:
    problems = []
    for pattern in (_TOKEN, _TOKEN_OR_EMPTY_START):
        tokens = _tokens(text, pattern)
        spans = []
        for concept in concepts:
            try:
                spans.append(_span(text, tokens, concept))
            except LookupError as error:
                problems.append((concept.line, str(error)))
                break
        else:
            return spans
    line, message = problems[0]
    raise DataError(path, message, line=line, expected="lines counted from 1 and tokens from 0")


def read(source: Source) -> list[Document]:
    """Reads one text and its concepts.

    Args:
        source: The `.txt` file, with its `.con` file or without one.

    Returns:
        One document, its id the file's name without the suffix. A concept listed twice is kept once.

    Raises:
        DataError: A line does not follow the format, or quotes another text than stands at its tokens.
    """
    text = read_text(source.path)
    spans: list[Span] = []
    if source.annotations is not None:
        spans = _spans(source.annotations, text, _parse(source.annotations))
    ordered = sorted(set(spans), key=lambda span: (span.start, span.end, span.label))
    return [Document(stem(source.path, FORMAT.suffixes), text, tuple(ordered))]


FORMAT = Format(
    read,
    suffixes=(".txt",),
    annotation_suffix=".con",
    text_folder="txt",
    annotation_folders=("concept", "concepts"),
)
