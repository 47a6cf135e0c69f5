"""i2b2-2010: a `.txt` of tokens, set apart by blanks, and a `.con` file a document, also `.ast` and `.rel`.

Lines stay lines. A discontinuous mention is written as its envelope. Modifiers (`MODIFIER_TYPES` of
`fedstrata.core.documents`) and relations to them have no place in the format; how many were left out is
logged. If a document of the corpus has an assertion, all get an `.ast` file, if one has a relation, or says
that it lacks them, all that do not lack them get a `.rel` file.
"""

import logging
import re
from bisect import bisect, bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fedstrata.core.documents import MODIFIER_TYPES, Document, Span
from fedstrata.core.errors import DataError
from fedstrata.data.readers.i2b2 import ASSERTIONS, ASSERTIONS_SUFFIX, CONCEPTS_SUFFIX, RELATIONS_SUFFIX
from fedstrata.data.writers.layout import WrittenFile, by_folder, file_name_of
from fedstrata.data.writers.tokens import tokenise, trimmed

logger = logging.getLogger(__name__)

_OWN_TOKEN = re.compile(r"[^ \t\r\f\v\n]+")
"""What the reader takes for a token."""


def _concepts(document: Document) -> dict[int, Span]:
    """Returns the spans that are written, without white space at their ends, by their index."""
    concepts = {}
    for index, span in enumerate(document.spans):
        bounds = trimmed(document.text, span.start, span.end)
        if span.label not in MODIFIER_TYPES and bounds:
            concepts[index] = Span(*bounds, checked_label(span.label), assertion=span.assertion)
            if span.assertion and span.assertion not in ASSERTIONS:
                what, expected = f"assertion {span.assertion!r}", f"one of {', '.join(ASSERTIONS)}"
                raise DataError(
                    what, "cannot be written in an .ast file", expected=expected, code="unknown_name"
                )
    return concepts


def checked_label(label: str) -> str:
    """Returns a label that can be written.

    Raises:
        DataError: It cannot.
    """
    if '"' in label or not label.isprintable() or label != label.strip():
        expected = "no quotation mark, line break or outer blank"
        raise DataError(
            f"label {label!r}", "cannot be written in a .con file", expected=expected, code="wrong_form"
        )
    return label


@dataclass(frozen=True, slots=True)
class Concepts:
    """One document in this format.

    Attributes:
        text: What the `.txt` file holds.
        rows: What the `.con` file holds.
        assertions: What the `.ast` file would hold.
        relations: What the `.rel` file would hold.
        left_out: Spans without a row: modifiers, repetitions, and spans of blanks.
        relations_left_out: Relations without a row: those of spans without one, and repetitions.
        widened: Rows whose span began or ended within a token.
    """

    text: str
    rows: str
    assertions: str = ""
    relations: str = ""
    left_out: int = 0
    relations_left_out: int = 0
    widened: int = 0


def concepts_of(document: Document, *, own_tokens: bool = False) -> Concepts:
    """Returns what the files of a document hold.

    Args:
        document: The document.
        own_tokens: Whether its text is in this format already. It then stays as it is, white space sets its
            tokens apart, and a span that begins or ends within a token is widened to the whole of it.

    Raises:
        DataError: A label or an assertion cannot be written.
    """
    text, held = document.text, _concepts(document)
    before = dict.fromkeys(held.values())
    if own_tokens:
        tokens = [match.span() for match in _OWN_TOKEN.finditer(text)]
        held = {index: _widened(span, tokens) for index, span in held.items()}
    else:
        tokens = tokenise(text, [bound for span in before for bound in (span.start, span.end)])
    concepts = list(dict.fromkeys(held.values()))
    written, mentions = _text_and_mentions(text, tokens, concepts)
    relations = [
        f'{mentions[held[relation.head]]}||r="{checked_label(relation.label)}"||{mentions[held[relation.tail]]}\n'
        for relation in document.relations
        if relation.head in held and relation.tail in held
    ]
    rows = {span: f'{mentions[span]}||t="{span.label}"' for span in concepts}
    distinct = dict.fromkeys(relations)
    return Concepts(
        text if own_tokens else written,
        "".join(f"{row}\n" for row in rows.values()),
        "".join(f'{row}||a="{span.assertion}"\n' for span, row in rows.items() if span.assertion),
        "".join(distinct),
        left_out=len(document.spans) - len(concepts),
        relations_left_out=len(document.relations) - len(distinct),
        widened=sum(_widened(span, tokens) != span for span in before) if own_tokens else 0,
    )


def _widened(span: Span, tokens: list[tuple[int, int]]) -> Span:
    """Returns the span from the beginning of its first token to the end of its last one."""
    first = bisect(tokens, span.start, key=lambda token: token[1])
    last = bisect_left(tokens, span.end, key=lambda token: token[0]) - 1
    return replace(span, start=tokens[first][0], end=tokens[last][1])


def _text_and_mentions(
    text: str, tokens: list[tuple[int, int]], concepts: list[Span]
) -> tuple[str, dict[Span, str]]:
    """Returns the text as its tokens, and how files name concepts that begin and end at them."""
    breaks = [offset for offset, character in enumerate(text) if character == "\n"]
    lines: list[list[str]] = [[] for _ in range(len(breaks) + 1)]
    starts, ends = {}, {}
    for number, (start, end) in enumerate(tokens):
        line = bisect(breaks, start)
        place = f"{line + 1}:{len(lines[line])}"
        starts[start], ends[end] = (number, place), (number, place)
        lines[line].append(text[start:end])
    mentions = {}
    for span in concepts:
        (first, begin), (last, end_place) = starts[span.start], ends[span.end]
        quote = " ".join(text[start:end] for start, end in tokens[first : last + 1]).lower()
        mentions[span] = f'c="{quote}" {begin} {end_place}'
    return "\n".join(" ".join(line) for line in lines), mentions


def files(documents: Iterable[Document]) -> Iterator[WrittenFile]:
    """Yields the files of a corpus; see `layout.Writer`.

    Raises:
        DataError: An id cannot name a file, or a label or an assertion cannot be written.
    """
    written = [
        (folder / file_name_of(document), document, concepts_of(document))
        for folder, group in by_folder(documents).items()
        for document in group
    ]
    with_assertions = any(concepts.assertions for _, _, concepts in written)
    with_relations = any(concepts.relations or own.lacks_relations for _, own, concepts in written)
    for path, document, concepts in written:
        name = path.name  # with_suffix would take a dot in a name for the beginning of a suffix
        yield path.with_name(f"{name}.txt"), concepts.text
        yield path.with_name(name + CONCEPTS_SUFFIX), concepts.rows
        if with_assertions:
            yield path.with_name(name + ASSERTIONS_SUFFIX), concepts.assertions
        if with_relations and not document.lacks_relations:
            yield path.with_name(name + RELATIONS_SUFFIX), concepts.relations
    spans_left_out = sum(concepts.left_out for _, _, concepts in written)
    relations_left_out = sum(concepts.relations_left_out for _, _, concepts in written)
    if spans_left_out or relations_left_out:
        message = "the i2b2 format has no place for %d spans (modifiers, repetitions) and %d relations"
        logger.warning(message, spans_left_out, relations_left_out)
