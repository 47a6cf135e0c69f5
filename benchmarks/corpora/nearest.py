"""A linker of mentions that are near each other: the floor that every trained model of relations must beat.

Every mention that may modify one nearby is taken to modify the nearest, so what it scores is what types and
distances give away without reading a word.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedstrata.core.documents import Document, Relation
from fedstrata.tasks.mention_pairs import candidate_pairs, words_apart


@dataclass(frozen=True, slots=True)
class NearestLinker:
    """Links every candidate modifier to the nearest main mention, by the relation such types mostly have.

    Attributes:
        relation: The type of relation by the types of main mention and modifier.
        most_words: Words between two mentions, at most.
    """

    relation: Mapping[tuple[str, str], str]
    most_words: int

    @classmethod
    def fit(cls, documents: Iterable[Document], most_words: int) -> NearestLinker:
        """Learns from annotated documents which types go together, and by which relation.

        Args:
            documents: The training documents.
            most_words: Words between two mentions, at most; see `fedstrata.tasks.mention_pairs`.

        Returns:
            The linker. Of relations that are equally frequent the first in alphabetical order is taken.
        """
        seen: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for document in documents:
            for relation in document.relations:
                types = (document.spans[relation.head].label, document.spans[relation.tail].label)
                seen[types][relation.label] += 1
        commonest = {types: min(own, key=lambda name: (-own[name], name)) for types, own in seen.items()}
        return cls(commonest, most_words)

    def predict(self, document: Document) -> tuple[Relation, ...]:
        """Returns the relations of a document's mentions, sorted; of two as near the first in the text."""
        modifiers: defaultdict[str, list[str]] = defaultdict(list)
        for main_type, modifier_type in self.relation:
            modifiers[main_type].append(modifier_type)
        apart = words_apart(document)
        nearest: dict[int, int] = {}
        for main, modifier in candidate_pairs(document, modifiers, self.most_words):
            best = nearest.setdefault(modifier, main)
            if apart[main, modifier] < apart[best, modifier]:
                nearest[modifier] = main
        labels = [span.label for span in document.spans]
        pairs = sorted((main, modifier) for modifier, main in nearest.items())
        return tuple(Relation(main, own, self.relation[labels[main], labels[own]]) for main, own in pairs)
