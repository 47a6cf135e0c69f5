"""i2b2-2010 concepts: a `.txt` of tokens, set apart by blanks, and a `.con` file a document.

Lines stay lines. A discontinuous mention is written as its envelope. Modifiers (`MODIFIER_TYPES` of
`fedstrata.core.documents`) and relations have no place in the format; how many were left out is logged.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect, bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedstrata.core.documents import MODIFIER_TYPES, Document, Span
from fedstrata.core.errors import DataError
from fedstrata.data.writers.layout import WrittenFile, by_folder, file_name_of
from fedstrata.data.writers.tokens import tokenise, trimmed

logger = logging.getLogger(__name__)

_OWN_TOKEN = re.compile(r"[^ \t\r\f\v\n]+")
"""What the reader takes for a token."""


def _concepts(document: Document) -> list[Span]:
    concepts = []
    for span in document.spans:
        bounds = trimmed(document.text, span.start, span.end)
        if span.label not in MODIFIER_TYPES and bounds:
            concepts.append(Span(*bounds, checked_label(span.label)))
    return list(dict.fromkeys(concepts))


def checked_label(label: str) -> str:
    """Returns a label that can be written.

    Raises:
        DataError: It cannot.
    """
    if '"' in label or not label.isprintable() or label != label.strip():
        expected = "no quotation mark, line break or outer blank"
        raise DataError(f"label {label!r}", "cannot be written in a .con file", expected=expected)
    return label


@dataclass(frozen=True, slots=True)
class Concepts:
    """One document in this format.

    Attributes:
        text: What the `.txt` file holds.
        rows: What the `.con` file holds.
        left_out: Spans without a row: modifiers, repetitions, and spans of blanks.
        widened: Rows whose span began or ended within a token.
    """

    text: str
    rows: str
    left_out: int = 0
    widened: int = 0


def concepts_of(document: Document, *, own_tokens: bool = False) -> Concepts:
    """Returns what the two files of a document hold.

    Args:
        document: The document.
        own_tokens: Whether its text is in this format already. It then stays as it is, white space sets its
            tokens apart, and a span that begins or ends within a token is widened to the whole of it.

    Raises:
        DataError: A label cannot be written.
    """
    text, concepts = document.text, _concepts(document)
    if not own_tokens:
        tokens = tokenise(text, [bound for span in concepts for bound in (span.start, span.end)])
        written, rows = _text_and_rows(text, tokens, concepts)
        return Concepts(written, rows, len(document.spans) - len(concepts))
    tokens = [match.span() for match in _OWN_TOKEN.finditer(text)]
    whole = [_widened(span, tokens) for span in concepts]
    distinct = list(dict.fromkeys(whole))
    _, rows = _text_and_rows(text, tokens, distinct)
    widened = sum(before != after for before, after in zip(concepts, whole, strict=True))
    return Concepts(text, rows, len(document.spans) - len(distinct), widened)


def _widened(span: Span, tokens: list[tuple[int, int]]) -> Span:
    """Returns the span from the beginning of its first token to the end of its last one."""
    first = bisect(tokens, span.start, key=lambda token: token[1])
    last = bisect_left(tokens, span.end, key=lambda token: token[0]) - 1
    return Span(tokens[first][0], tokens[last][1], span.label)


def _text_and_rows(text: str, tokens: list[tuple[int, int]], concepts: list[Span]) -> tuple[str, str]:
    """Returns the text as its tokens, and the rows of concepts that begin and end at them."""
    breaks = [offset for offset, character in enumerate(text) if character == "\n"]
    lines: list[list[str]] = [[] for _ in range(len(breaks) + 1)]
    starts, ends = {}, {}
    for number, (start, end) in enumerate(tokens):
        line = bisect(breaks, start)
        place = f"{line + 1}:{len(lines[line])}"
        starts[start], ends[end] = (number, place), (number, place)
        lines[line].append(text[start:end])
    rows = []
    for span in concepts:
        (first, begin), (last, end_place) = starts[span.start], ends[span.end]
        quote = " ".join(text[start:end] for start, end in tokens[first : last + 1]).lower()
        rows.append(f'c="{quote}" {begin} {end_place}||t="{span.label}"\n')
    return "\n".join(" ".join(line) for line in lines), "".join(rows)


def files(documents: Iterable[Document]) -> Iterator[WrittenFile]:
    """Yields the files of a corpus.

    Args:
        documents: The documents.

    Yields:
        Path and text of each file.

    Raises:
        DataError: An id cannot name a file, or a label cannot be written.
    """
    spans_left_out = relations_left_out = 0
    for folder, group in by_folder(documents).items():
        for document in group:
            name, concepts = file_name_of(document), concepts_of(document)
            spans_left_out += concepts.left_out
            relations_left_out += len(document.relations)
            yield folder / f"{name}.txt", concepts.text
            yield folder / f"{name}.con", concepts.rows
    if spans_left_out or relations_left_out:
        message = "the i2b2 format has no place for %d spans (modifiers, repetitions) and %d relations"
        logger.warning(message, spans_left_out, relations_left_out)
