"""A look-up tagger: the floor that every trained model must beat.

It remembers the mentions of the training documents and marks the same words wherever it meets them, so what
it scores is what a corpus gives away through repeated vocabulary alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedstrata.core.documents import Document, Span

_WORD = re.compile(r"\d+|[^\W\d_]+|[^\w\s]|_")
"""A run of digits, a run of letters, or one other character: the dose in `5mg` is a word of its own."""


@dataclass(frozen=True, slots=True)
class LookupTagger:
    """Marks the longest known mention at each place, with the type it had most often in training.

    Words are compared without regard to case and to the white space between them.

    Attributes:
        lexicon: The type of each known mention, by its words.
        longest: The most words a known mention beginning with a word has.
    """

    lexicon: Mapping[tuple[str, ...], str]
    longest: Mapping[str, int]

    @classmethod
    def fit(cls, documents: Iterable[Document]) -> LookupTagger:
        """Learns from annotated documents.

        Args:
            documents: The training documents; their discontinuous mentions are left out.

        Returns:
            The tagger. Of types that are equally frequent for a mention, the first in alphabetical order is
            taken.
        """
        seen: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for document in documents:
            for span in document.spans:
                if not span.fragments:
                    seen[_words(document.text[span.start : span.end])][span.label] += 1
        seen.pop((), None)
        lexicon = {
            words: min(counts, key=lambda label: (-counts[label], label)) for words, counts in seen.items()
        }
        longest: dict[str, int] = {}
        for words in lexicon:
            longest[words[0]] = max(longest.get(words[0], 0), len(words))
        return cls(lexicon, longest)

    def predict(self, document: Document) -> tuple[Span, ...]:
        """Returns the known mentions in a document's text, from left to right and without overlaps."""
        places = [match.span() for match in _WORD.finditer(document.text)]
        words = _words(document.text)
        spans = []
        position = 0
        while position < len(words):
            length = self._match(words, position)
            if length:
                label = self.lexicon[words[position : position + length]]
                spans.append(Span(places[position][0], places[position + length - 1][1], label))
            position += max(length, 1)
        return tuple(spans)

    def _match(self, words: tuple[str, ...], position: int) -> int:
        """Returns the number of words of the longest known mention that begins here; 0 for none."""
        most = min(self.longest.get(words[position], 0), len(words) - position)
        for length in range(most, 0, -1):
            if words[position : position + length] in self.lexicon:
                return length
        return 0


def _words(text: str) -> tuple[str, ...]:
    return tuple(match.group().casefold() for match in _WORD.finditer(text))
