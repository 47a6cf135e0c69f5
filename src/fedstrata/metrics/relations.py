"""Precision, recall and F1 of relations, as triples of a main mention, its modifier, and the relation's type.

- Strict: both places and the type are those of an annotated triple of the same document.
- Lenient: both places overlap those of the annotated triple, and the type is the same; one to one, as for
  mentions ("constituent entities overlap with gold spans and the relation type matches", Fed-MedLoRA,
  "Evaluation metrics").
- Untyped, strict or lenient: the same without regard to the relation's type.

The types of the two mentions do not count in a triple: they are scored as mentions. Where relations are named
after their modifiers, as Fed-MedLoRA's are, the type of the modifier is that of the triple.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedstrata.core.documents import Document, Span
from fedstrata.metrics.matching import Item, Matching, place_of


@dataclass(frozen=True, slots=True, order=True)
class Triple:
    """A relation of a document, with its two mentions.

    Attributes:
        main: The main mention, for example a problem.
        modifier: The modifier, for example a severity.
        label: The relation's type.
    """

    main: Span
    modifier: Span
    label: str


def triples_of(document: Document) -> tuple[Triple, ...]:
    """Returns the relations of a document."""
    return tuple(
        Triple(document.spans[relation.head], document.spans[relation.tail], relation.label)
        for relation in document.relations
    )


def match_relations(gold: Sequence[Iterable[Triple]], predicted: Sequence[Iterable[Triple]]) -> Matching:
    """Matches the annotated relations of each document with the predicted ones, in the same order."""
    return Matching(
        gold, predicted, lambda own: Item((place_of(own.main), place_of(own.modifier)), own.label)
    )
