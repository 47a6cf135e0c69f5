"""What one instruction asks for, and about which stretch of a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedstrata.core.documents import Span

Kind = Literal["ner", "re"]
"""Mentions, or modifiers of a mention."""


@dataclass(frozen=True, slots=True)
class Question:
    """What one instruction is about.

    Attributes:
        document: Index of the document.
        start: Where its sentence begins in the document's text.
        end: One past where it ends.
        main: The mention whose modifiers are asked for, with offsets in the document; none if all mentions
            are.
    """

    document: int
    start: int
    end: int
    main: Span | None = None

    @property
    def kind(self) -> Kind:
        """Whether mentions or modifiers are asked for."""
        return "ner" if self.main is None else "re"

    def holds(self, span: Span) -> bool:
        """Whether a mention is in the sentence."""
        return self.start <= span.start and span.end <= self.end

    def within(self, span: Span) -> Span:
        """Returns a mention of the document with offsets in the sentence; one in pieces as a whole."""
        return Span(span.start - self.start, span.end - self.start, span.label)

    def outside(self, span: Span) -> Span:
        """Returns a mention of the sentence with offsets in the document."""
        return Span(span.start + self.start, span.end + self.start, span.label)
