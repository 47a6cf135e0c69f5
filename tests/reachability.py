"""How much of what documents are annotated with perfect answers would give back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedstrata.core.documents import Document
from fedstrata.tasks.mention_pairs import candidate_pairs
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.windows import Window


@dataclass(frozen=True, slots=True)
class RelationsReached:
    """How many annotated relations perfect answers would give back, and why the others are lost.

    Attributes:
        relations: Distinct annotated relations.
        candidates: Pairs of mentions that a model is asked about.
        other_types: Lost: between types of mentions that it is not asked about.
        far_apart: Lost: too many words apart.
        several: Lost: another relation of the same two mentions is the one that is learnt.
    """

    relations: int
    candidates: int
    other_types: int
    far_apart: int
    several: int

    @property
    def recall(self) -> float:
        """The share of the relations that perfect answers would give back."""
        reached = self.relations - self.other_types - self.far_apart - self.several
        return reached / self.relations if self.relations else 0.0


@dataclass(frozen=True, slots=True)
class MentionsReached:
    """How many annotated mentions perfect tags would give back exactly, and why the others are lost.

    Attributes:
        mentions: Distinct annotated mentions.
        discontinuous: Lost: in several pieces.
        overlapping: Lost: continuous, and overlapping another mention.
        misaligned: Lost: neither; they begin or end within a token, at a blank or, with `task.whole_words`,
            within a word, or share a token with a neighbour.
    """

    mentions: int
    discontinuous: int
    overlapping: int
    misaligned: int

    @property
    def unreachable(self) -> int:
        """Mentions that no prediction can match, whatever the model."""
        return self.discontinuous + self.overlapping + self.misaligned


def relations_reached(
    documents: Iterable[Document], modifiers: Mapping[str, Sequence[str]], most_words: int
) -> RelationsReached:
    """Counts the relations that answers about candidates can hold; see `candidate_pairs`."""
    relations = asked = other_types = far_apart = several = 0
    for document in documents:
        candidates = set(candidate_pairs(document, modifiers, most_words))
        distinct = set(document.relations)
        pairs = {(relation.head, relation.tail) for relation in distinct}
        apart = [
            (document.spans[main].label, document.spans[modifier].label)
            for main, modifier in pairs - candidates
        ]
        fitting = sum(modifier in modifiers.get(main, ()) for main, modifier in apart)
        relations, asked = relations + len(distinct), asked + len(candidates)
        several += len(distinct) - len(pairs)
        other_types, far_apart = other_types + len(apart) - fitting, far_apart + fitting
    return RelationsReached(relations, asked, other_types, far_apart, several)


def mentions_reached(
    task: NamedEntityRecognition, documents: Sequence[Document], examples: Sequence[Window]
) -> MentionsReached:
    """Counts the annotated mentions that this tokenizer and flat tags cannot give back.

    Args:
        task: The task.
        documents: The documents that were encoded.
        examples: All their windows, in the order in which `encode` gave them.
    """
    mentions = discontinuous = overlapping = misaligned = 0
    best = task.decode(documents, examples, [window.tags for window in examples])
    for document, reached in zip(documents, best, strict=True):
        gold = set(document.spans)
        mentions += len(gold)
        for lost in gold.difference(reached):
            if lost.fragments:
                discontinuous += 1
            elif any(other.start < lost.end and lost.start < other.end for other in gold - {lost}):
                overlapping += 1
            else:
                misaligned += 1
    return MentionsReached(mentions, discontinuous, overlapping, misaligned)
