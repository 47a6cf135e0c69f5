"""CoNLL columns: `TOKEN<TAB>TAG` (IOB2), a sentence for each line of a text, documents set apart by comments.

Of spans that overlap the longest is written (of equal ones the first), and a discontinuous one as its
envelope; a line break inside a span ends no sentence. Relations have no place in the format; how much was
left out is logged. Labels are spelled as `fedstrata.data.readers.labels` says.
"""

import logging
from collections.abc import Iterable, Iterator

from fedstrata.core.documents import Document, Span
from fedstrata.data.writers.layout import FileLabels, WrittenFile, by_folder, name_of
from fedstrata.data.writers.tokens import tokenise, trimmed

logger = logging.getLogger(__name__)


def _longest(document: Document) -> list[Span]:
    """Returns the spans that are written, sorted; none of them overlap."""
    bounds = [(trimmed(document.text, span.start, span.end), span.label) for span in document.spans]
    spans = [Span(*found, label) for found, label in bounds if found]
    chosen: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        if all(span.end <= other.start or other.end <= span.start for other in chosen):
            chosen.append(span)
    return sorted(chosen, key=lambda span: span.start)


def _rows(document: Document, spans: list[Span], labels: FileLabels) -> Iterator[str]:
    text = document.text
    yield f"# newdoc id = {name_of(document)}\n"
    remaining = iter(spans)
    span = next(remaining, None)
    before = 0
    for start, end in tokenise(text, [bound for span in spans for bound in (span.start, span.end)]):
        while span is not None and span.end <= start:
            span = next(remaining, None)
        inside = span is not None and span.start < start
        if "\n" in text[before:start] and before and not inside:
            yield "\n"
        tag = "O"
        if span is not None and span.start <= start:
            tag = f"{'I' if inside else 'B'}-{labels(span.label)}"
        yield f"{text[start:end]}\t{tag}\n"
        before = end
    yield "\n"


def files(documents: Iterable[Document]) -> Iterator[WrittenFile]:
    """Yields the files of a corpus, one for each site and split; see `layout.Writer`.

    Raises:
        DataError: An id cannot be written, or two labels would be written alike.
    """
    spans_left_out = relations_left_out = 0
    labels = FileLabels()
    for folder, group in by_folder(documents).items():
        blocks: list[str] = []
        for document in group:
            spans = _longest(document)
            spans_left_out += len(document.spans) - len(spans)
            relations_left_out += len(document.relations)
            blocks.extend(_rows(document, spans, labels))
        yield folder / "documents.conll", "".join(blocks)
    if spans_left_out or relations_left_out:
        message = "the CoNLL format has no place for %d overlapping spans and %d relations"
        logger.warning(message, spans_left_out, relations_left_out)
