"""PubTator: titles and abstracts, and the mentions in them.

    10192393|t|A common human skin tumour is caused by activating mutations in beta-catenin.
    10192393|a|WNT signalling orchestrates a number of developmental programs.
    10192393<TAB>15<TAB>26<TAB>skin tumour<TAB>DiseaseClass<TAB>D012878

A document's text is its title, a blank and its abstract, and offsets count its characters from 0. Some tools
put a line break between the two, or nothing: the first of these under which every line quotes the text at its
offsets is taken, for each document. White space in quotes does not count.

Concepts (the column after the type, and those of composite mentions) and relations between concepts (lines
whose second column is a word) are checked for their shape and left out. A document that a file has twice is
read once; one that differs from its first copy is refused. Blank lines between and within documents may be
there or not; a document may lack its abstract.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, filled_lines

_PASSAGE = re.compile(r"([^|\t]+)\|([ta])\|(.*)")
_OFFSET = re.compile(r"[0-9]{1,12}")
_SEPARATORS = (" ", "\n", "")
_SHAPES = "ID|t|TITLE, ID|a|ABSTRACT, ID<TAB>START<TAB>END<TAB>MENTION<TAB>TYPE or ID<TAB>RELATION<TAB>..."


@dataclass(slots=True)
class _Article:
    """The lines of one document, as they are read."""

    path: Path
    id: str
    line: int
    title: str
    abstract: str | None = None
    mentions: list[tuple[int, str, Span]] = field(default_factory=list)  # with the line and the quoted text

    def take(self, line: int, content: str) -> None:
        """Takes in a line after the title."""
        passage = _PASSAGE.fullmatch(content)
        fields = content.split("\t")
        name = passage[1].strip() if passage else fields[0].strip()
        if passage is None and len(fields) < 4:
            raise DataError(self.path, "no line of this format", line=line, expected=_SHAPES)
        if name != self.id:
            message, expected = "belongs to another document than the line before", "ID|t|TITLE first"
            raise DataError(self.path, message, line=line, expected=expected, code="conflict")
        if passage is not None:
            if self.abstract is not None:
                raise DataError(self.path, "a second abstract of one document", line=line, code="duplicate")
            self.abstract = passage[3]
        elif all(_OFFSET.fullmatch(text) for text in fields[1:3]):
            if len(fields) < 5 or not fields[4].strip():
                raise DataError(
                    self.path, "a mention without a type", line=line, expected=_SHAPES, code="missing"
                )
            start, end = int(fields[1]), int(fields[2])
            if start >= end:
                message = f"{start} {end} is no stretch of text"
                raise DataError(self.path, message, line=line, expected="START < END", code="out_of_range")
            self.mentions.append((line, fields[3], Span(start, end, fields[4].strip())))
        elif any(_OFFSET.fullmatch(text) for text in fields[1:3]) or not fields[1].strip():
            raise DataError(self.path, "malformed annotation", line=line, expected=_SHAPES, code="wrong_form")

    def document(self) -> Document:
        """Returns the document, its text as the offsets count it."""
        wrong = []
        for separator in _SEPARATORS:
            text = f"{self.title}{separator}{self.abstract}" if self.abstract is not None else self.title
            misquoted = [
                (line, span)
                for line, quote, span in self.mentions
                if span.end > len(text) or text[span.start : span.end].split() != quote.split()
            ]
            if not misquoted:
                return Document(self.id, text, tuple(sorted({span for _, _, span in self.mentions})))
            wrong += misquoted[:1]
        line, span = wrong[0]
        message = f"the mention ({span.label}) does not quote the text at {span.start} {span.end}"
        expected = "offsets in characters of title, blank and abstract, from 0"
        raise DataError(self.path, message, line=line, expected=expected, code="misquoted")


def _articles(path: Path) -> list[_Article]:
    articles: list[_Article] = []
    for number, line in filled_lines(path):
        passage = _PASSAGE.fullmatch(line)
        if passage and passage[2] == "t":
            articles.append(_Article(path, passage[1].strip(), number, passage[3]))
        elif articles:
            articles[-1].take(number, line)
        else:
            raise DataError(
                path,
                "a document does not begin here",
                line=number,
                expected="ID|t|TITLE",
                code="out_of_order",
            )
    return articles


def read(source: Source) -> list[Document]:
    """Reads one file of documents.

    Returns:
        Its documents in order, each under the identifier the file gives it.

    Raises:
        DataError: A line does not follow the format or quotes another text, or two documents of one
            identifier differ.
    """
    documents: dict[str, Document] = {}
    for article in _articles(source.path):
        document = article.document()
        if documents.setdefault(document.id, document) != document:
            message = f"a second document {document.id} that differs from the first"
            raise DataError(source.path, message, line=article.line, code="duplicate")
    return list(documents.values())


FORMAT = Format(read, suffixes=(".txt", ".pubtator", ".txt.gz", ".pubtator.gz"))
