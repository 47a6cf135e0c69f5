"""i2b2-2010 concepts: a `.txt` of tokens, set apart by blanks, and a `.con` file a document.

Lines stay lines. A discontinuous mention is written as its envelope. Modifiers (`MODIFIER_TYPES` of
`fedstrata.core.documents`) and relations have no place in the format; how many were left out is logged.
"""

from __future__ import annotations

import logging
from bisect import bisect
from collections.abc import Iterable, Iterator

from fedstrata.core.documents import MODIFIER_TYPES, Document, Span
from fedstrata.core.errors import DataError
from fedstrata.data.writers.layout import WrittenFile, by_folder, file_name_of
from fedstrata.data.writers.tokens import tokenise, trimmed

logger = logging.getLogger(__name__)


def _concepts(document: Document) -> list[Span]:
    concepts = []
    for span in document.spans:
        bounds = trimmed(document.text, span.start, span.end)
        if span.label not in MODIFIER_TYPES and bounds:
            concepts.append(Span(*bounds, _checked(span.label)))
    return list(dict.fromkeys(concepts))


def _checked(label: str) -> str:
    if '"' in label or not label.isprintable() or label != label.strip():
        expected = "no quotation mark, line break or outer blank"
        raise DataError(f"label {label!r}", "cannot be written in a .con file", expected=expected)
    return label


def _text_and_concepts(document: Document, concepts: list[Span]) -> tuple[str, str]:
    """Returns the contents of the two files."""
    text = document.text
    breaks = [offset for offset, character in enumerate(text) if character == "\n"]
    tokens = tokenise(text, [bound for span in concepts for bound in (span.start, span.end)])
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
            name, concepts = file_name_of(document), _concepts(document)
            spans_left_out += len(document.spans) - len(concepts)
            relations_left_out += len(document.relations)
            text, rows = _text_and_concepts(document, concepts)
            yield folder / f"{name}.txt", text
            yield folder / f"{name}.con", rows
    if spans_left_out or relations_left_out:
        message = "the i2b2 format has no place for %d spans (modifiers, repetitions) and %d relations"
        logger.warning(message, spans_left_out, relations_left_out)
