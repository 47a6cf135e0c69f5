"""What a task says of the documents it is given: what is to be decided in them, and what it does not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from fedstrata.core.metric import ExtraMetrics

if TYPE_CHECKING:
    from fedstrata.core.documents import Document

MENTIONS, RELATIONS, LABELS, PAIRS = "mentions", "relations", "labels", "pairs"
"""The kinds of what is decided; `pairs` are those that relations are looked for between."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """What of documents is not read, since there is room for no more.

    Attributes:
        documents: Documents.
        cut: Of these, those that are cut.
        tokens: Tokens of all of them.
        lost: Of these, those that are not read.
    """

    documents: int = 0
    cut: int = 0
    tokens: int = 0
    lost: int = 0

    def __add__(self, other: Truncation) -> Truncation:
        return Truncation(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int]]) -> Truncation:
        """Returns what is not read of documents.

        Args:
            sizes: Of each document its tokens, and how many of them are not read.
        """
        tokens, lost = (sum(each) for each in zip(*sizes, strict=True)) if sizes else (0, 0)
        return cls(len(sizes), sum(own > 0 for _, own in sizes), tokens, lost)


class SurveyedTask(ExtraMetrics):
    """Base of tasks: what they say of documents before anything is learnt."""

    if TYPE_CHECKING:

        @property
        def classes(self) -> tuple[str, ...]:
            """See `fedstrata.core.task.Task.classes`."""

        @property
        def known_types(self) -> tuple[str, ...]:
            """See `fedstrata.core.task.Task.known_types`."""

        @property
        def finds(self) -> tuple[str, ...]:
            """See `fedstrata.core.task.Task.finds`."""

        @property
        def main_mentions(self) -> tuple[str, ...] | None:
            """See `fedstrata.core.task.Task.main_mentions`."""

        def known(self, document: Document) -> Document:
            """See `fedstrata.core.task.Task.known`."""

    @property
    def decided(self) -> Mapping[str, Sequence[str]]:
        """The types and labels that are to be decided on, by kind; an empty list stands for any."""
        mains, types = self.main_mentions, self.known_types
        others = types if mains is None else [name for name in types if name not in mains]
        every = {MENTIONS: types if mains is None else mains, RELATIONS: others, LABELS: self.classes}
        found = {"spans": MENTIONS, RELATIONS: RELATIONS, LABELS: LABELS}
        return {kind: every[kind] for what, kind in found.items() if what in self.finds}

    def looked_for(self, document: Document) -> dict[str, list[str]]:
        """Returns of what is to be decided on, by kind, what somebody looked for in a document.

        A kind that nobody looked for is left out.
        """
        looked = {}
        for kind, names in self.decided.items():
            known = document.looked_for(names)
            if (any(known) or not names) and not (kind == RELATIONS and document.lacks_relations):
                looked[kind] = list(compress(names, known))
        return looked

    def decisions(self, document: Document) -> Mapping[str, Sequence[str]]:
        """Returns the right answers to what is decided in a document, by kind (`MENTIONS` and so on).

        A kind that nobody looked for in the document is left out.
        """
        known, mains = self.known(document), self.main_mentions
        found = {
            MENTIONS: [span.label for span in known.spans if mains is None or span.label in mains],
            RELATIONS: [relation.label for relation in known.relations],
            LABELS: known.labels,
        }
        return {kind: found[kind] for kind in self.looked_for(document)}

    def truncation(self, documents: Sequence[Document], tokenizer: Any) -> Truncation | None:
        """Returns what of documents is not read for want of room; none if all of any text is read."""
        return None
