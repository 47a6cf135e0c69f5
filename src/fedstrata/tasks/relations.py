"""Relations between mentions that are known: every pair of them that may be related is a text to classify.

This is the pipeline of BERT-based relation extraction, and the baseline of Fed-MedLoRA for modifiers: the
two mentions are marked in the text around them (`fedstrata.tasks.mention_pairs`); the model's
classes are `none` and the types of relations. A document's relations are its pairs with another likeliest
class than `none`.

The logits of a pair are the sum of those that the model gives the two closing marks: one layer over what it
makes of both mentions (Baldini Soares et al., "Matching the Blanks", ACL 2019, find the states at the marks
well above the one at the start of the text), and the last marks rather than the first, so that a decoder has
read the mentions there. That layer is a token classifier's: what can learn `ner` can learn this.

A model is asked about the pairs of types that are related in the training documents (`task.modifiers`), not
more than `task.most_words` words apart. Scores are taken against all annotated relations: those between other
mentions count as missed, and so do all but the first in the alphabet where one pair has several.

Most candidates are not related. With `task.negatives` below 1 only a share of those is trained on, and each
of them counts for all it stands for, so that the expected loss is that over all candidates; scoring asks
about all of them. Documents that lack relations are neither trained on nor scored: nobody looked for any.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedstrata.core.documents import Document, Relation
from fedstrata.core.errors import Problem, SettingError, refuse, refused
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Classes, Fraction
from fedstrata.core.surveyed import PAIRS, RELATIONS
from fedstrata.core.task import CardWords
from fedstrata.core.types import Tally
from fedstrata.data.select import related_types, unknown_types
from fedstrata.data.split import Split, every
from fedstrata.metrics.relations import match_relations, triples_of
from fedstrata.metrics.spans import tally_of
from fedstrata.tasks.annotation_types import TypedTask
from fedstrata.tasks.corrupt import shuffled_windows
from fedstrata.tasks.floors import ALL_PAIRS, nothing_found
from fedstrata.tasks.mention_pairs import PairMarker, candidate_pairs, code_of, markable, require_signs
from fedstrata.tasks.partial_labels import partial_cross_entropy, stacked, unknown_classes
from fedstrata.tasks.texts import padding_id, require_single_texts, whole_texts
from fedstrata.tasks.windows import IGNORED, Row, pad_ids, run_model

NO_RELATION = "none"
"""What pairs of mentions without a relation are called."""


@dataclass(frozen=True, slots=True)
class MarkedPair(Row):
    """Two mentions of a document, as the model reads them.

    Attributes:
        document: Index of the document in the sequence that was encoded.
        main: Index of the main mention in the document's spans.
        modifier: Index of the modifier.
        input_ids: Token ids of the marked text, (tokens,) int32.
        marks: Where the marks of the two end, as `mention_pairs.PairMarker.window` has them.
        target: The number of its class; -100 where the document lacks relations.
        weight: How many pairs it stands for in the loss.
        pad_id: The id with which its window is padded.
        unknown: Which classes nobody looked for in the document, (classes,) bool; none if all were.
    """

    document: int
    main: int
    modifier: int
    input_ids: np.ndarray
    marks: tuple[int, int]
    target: int
    weight: float
    pad_id: int
    unknown: np.ndarray | None = None


class RelationClassification(TypedTask):
    """Relations between mentions that are known: a main mention and its modifiers.

    Classifies pairs of mentions, and scores the relations they amount to.
    """

    name: Literal["relations"] = "relations"
    types: Classes = Field(
        default="auto",
        description="Relation types to learn; `auto`: those of the training documents. Name them for "
        "sites on separate machines where some sites lack some types.",
    )
    max_length: Annotated[int, Field(ge=32)] = Field(
        default=128, description="Maximum length of a marked pair with its context in tokens."
    )
    modifiers: dict[str, list[str]] | Literal["auto"] = Field(
        default="auto",
        description="Modifier types by main entity type: the pairs that are classified. `auto`: those "
        "that are related in the training documents.",
    )
    typed: bool = Field(
        default=True,
        description="Show the model the types of the two mentions. Set it to false where the type of the "
        "modifier determines the relation.",
    )
    most_words: Annotated[int, Field(ge=0)] = Field(
        default=20, description="Maximum number of words between the two mentions of a pair."
    )
    negatives: Fraction = Field(
        default=1.0, description="Fraction of the unrelated pairs that is used for training."
    )

    learns: ClassVar[str] = "relations between mentions (data.relations)"
    gives: ClassVar[tuple[str, ...]] = ("relations",)
    outputs: ClassVar[tuple[str, ...]] = ("brat", "jsonl")
    naming: ClassVar[tuple[str, ...]] = ("types", "modifiers")
    class_words: ClassVar[str] = f"{NO_RELATION} and the types"
    floor_names: ClassVar[tuple[str, ...]] = (ALL_PAIRS,)
    beyond_texts: ClassVar[tuple[str, str]] = (
        "mentions (brat, i2b2, jsonl ...)",
        "task relations says how mentions that are marked already are related",
    )

    def _misfits(self) -> Iterator[SettingError]:
        if NO_RELATION in self.types:
            yield SettingError(
                f"types: {NO_RELATION!r} is the class of pairs without a relation; rename it", "reserved"
            )

    def fitted(self, clients: Mapping[str, Split]) -> RelationClassification:
        """Returns the task for a corpus: its types are those that are named, or of all training documents.

        Raises:
            ConfigurationError: No training document has a relation, another document has a type that none of
                them has or that is not named, a client has no pair to learn from, or documents are pairs of
                texts.
        """
        types, problems = self._found(clients)
        asked = related_types(every(clients, "train")) if self.modifiers == "auto" else self.modifiers
        task = self.changed(modifiers=asked).of_types(types)
        for name, own in clients.items():
            if own.train and not any(task._learnt(document) for document in own.train):
                message = f"the training documents of {name} have no two mentions to learn relations from"
                problems.append(Problem("partition", message, code="nothing_to_learn"))
        refuse(problems)
        return task

    def restored(self, classes: Sequence[str]) -> RelationClassification:
        """Returns the task again for a model that was trained for it.

        Raises:
            ConfigurationError: Its classes are not `none` and the types in their order, or the settings do
                not say which pairs a model is asked about.
        """
        if self.modifiers == "auto":
            message = "must name types of mentions for a model that is trained already, and not be 'auto'"
            raise refused("task.modifiers", message, "missing")
        return super().restored(classes)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuses a tokenizer that does not know the signs around mentions."""
        require_signs(tokenizer)

    def _fault_of(self, types: Sequence[str], count: int) -> Problem | None:
        if NO_RELATION in types:
            message = f"a relation may not be called {NO_RELATION!r}, the class of pairs without one"
            return Problem("data.relations", f"{message}; rename it", code="reserved")
        message = f"none of the {count} training documents has a relation"
        return None if types else Problem("data.relations", message, code="nothing_to_learn")

    def _types_of(self, classes: Sequence[str]) -> Sequence[str]:
        return classes[1:]

    @property
    def classes(self) -> tuple[str, ...]:
        """`none`, then the types."""
        return (NO_RELATION, *self._types)

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[MarkedPair]:
        """Marks every candidate pair of the documents.

        Raises:
            ConfigurationError: A document has a relation whose type the task does not know, or is a pair of
                texts; or the tokenizer does not fit (see `fedstrata.tasks.mention_pairs.PairMarker`).
        """
        return self._marked(documents, tokenizer, [self._candidates(document) for document in documents])

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[MarkedPair]:
        """Marks the pairs of the documents that are learnt from.

        Those are the related ones and, of the others, the share of `task.negatives`.

        Raises:
            ConfigurationError: As for `encode`.
        """
        return self._marked(documents, tokenizer, [self._learnt(document) for document in documents])

    def decisions(self, document: Document) -> Mapping[str, Sequence[str]]:
        """Returns the types of relations between candidates, and which of all candidates are related."""
        if not self.looked_for(document):
            return {}
        targets = self._targets(document)
        found = [targets.get(pair, 0) for pair in self._candidates(document)]
        return {
            RELATIONS: [self.classes[target] for target in found if target],
            PAIRS: ["related" if target else NO_RELATION for target in found],
        }

    def corrupt(
        self, examples: Sequence[MarkedPair], kind: str, tokenizer: Any, rng: Seed
    ) -> list[MarkedPair]:
        """Returns the pairs of a corrupt client; see `core.task.Task.corrupt`.

        The target of a pair is its class; the weight stays with the text. `none` becomes the first type.
        """
        if kind == "shuffled_tokens":
            inputs = shuffled_windows([each.input_ids for each in examples], tokenizer, rng)
            return [replace(each, input_ids=ids) for each, ids in zip(examples, inputs, strict=True)]
        targets = [each.target for each in examples]
        if kind == "shuffled_labels":
            targets = [targets[other] for other in rng.numpy().permutation(len(targets))]
        else:
            targets = [(target + 1) % len(self.classes) for target in targets]
        return [replace(each, target=target) for each, target in zip(examples, targets, strict=True)]

    def collate(self, examples: Sequence[MarkedPair]) -> dict[str, Tensor]:
        """Pads pairs on the right to the longest one.

        Returns:
            `input_ids` and `attention_mask`, (pairs, tokens) int64; `marks`, (pairs, 2) int64; `labels`,
            (pairs,) int64, the class or -100; `weights`, (pairs,) float32.
        """
        padded = pad_ids([each.input_ids for each in examples], examples[0].pad_id)
        return {
            **padded,
            "marks": torch.tensor([each.marks for each in examples]),
            "labels": torch.tensor([each.target for each in examples]),
            "weights": torch.tensor([each.weight for each in examples]),
            **stacked(examples, len(self.classes)),
        }

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the weighted sum of the cross entropies of all pairs, and the sum of their weights.

        A pair without a relation in a document in which nobody looked for some types may as well be of one of
        those; see `fedstrata.tasks.partial_labels`.
        """
        labels, weights = batch["labels"], batch["weights"]
        logits = _of_pairs(module, batch)
        losses = partial_cross_entropy(logits, labels, batch.get("unknown"))
        return (losses * weights).sum(), self.terms(batch).sum()

    def terms(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the weight of each pair that is learnt from, (pairs,)."""
        return batch["weights"].where(batch["labels"] != IGNORED, 0.0)

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the logits of each pair, (classes,) float32."""
        with torch.no_grad():
            return list(_of_pairs(module, batch).cpu().numpy())

    def decode(
        self, documents: Sequence[Document], examples: Sequence[MarkedPair], predictions: Sequence[np.ndarray]
    ) -> list[tuple[Relation, ...]]:
        """Reads the relations of each document, between its own spans and sorted, off the logits of pairs."""
        found: list[list[Relation]] = [[] for _ in documents]
        for pair, logits in zip(examples, predictions, strict=True):
            if likeliest := int(logits.argmax()):
                found[pair.document].append(Relation(pair.main, pair.modifier, self.classes[likeliest]))
        return [tuple(sorted(own)) for own in found]

    def tally(self, documents: Sequence[Document], answers: Sequence[Sequence[Relation]]) -> dict[str, float]:
        """Counts the relations of each document, as triples of main mention, modifier and type.

        See `fedstrata.metrics.relations`.
        """
        gold = [triples_of(document) for document in documents]
        found = [
            triples_of(replace(document, relations=tuple(document.of_looked_for(own))))
            for document, own in zip(documents, answers, strict=True)
        ]
        return tally_of(match_relations(gold, found), self._types)

    def floors(
        self, train: Sequence[Document], documents: Sequence[Document], tokenizer: Any
    ) -> Mapping[str, Sequence[tuple[Relation, ...]]]:
        """Takes all pairs for related whose types of mentions are in the training documents.

        A relation's type is the most frequent one of its types of mentions; of equals the first by name.
        """
        seen: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for document in map(self.known, train):
            for own in document.relations:
                seen[document.spans[own.head].label, document.spans[own.tail].label][own.label] += 1
        usual = {types: min(own, key=lambda label: (-own[label], label)) for types, own in seen.items()}

        def related(document: Document) -> tuple[Relation, ...]:
            spans = document.spans
            pairs = [(pair, [spans[index].label for index in pair]) for pair in self._candidates(document)]
            return tuple(
                Relation(*pair, label) for pair, own in pairs if (label := usual.get((own[0], own[1])))
            )

        return {ALL_PAIRS: [related(document) for document in documents]} if usual else {}

    def degenerate(self, tally: Tally, documents: int) -> str:
        """Says whether no relation was predicted."""
        return nothing_found(tally, "relation was predicted", documents)

    def known(self, document: Document) -> Document:
        """Returns the document with its mentions, and its relations of the task's types."""
        relations = tuple(own for own in document.relations if own.label in self._types)
        return replace(document, relations=relations, labels=())

    def annotate(self, document: Document, answer: Sequence[Relation]) -> Document:
        """Returns the document with its mentions and these relations."""
        relations = tuple(answer)
        return replace(document, relations=relations, labels=(), lacks_relations=False, annotates=None)

    def card_words(self) -> CardWords:
        """Returns what a model card says of the task."""
        what = f"Says how two mentions of a text are related: the likeliest of {', '.join(self.classes)}. "
        what += "They are marked as below, the main mention by `@ * type * ... @`, its modifier by "
        return CardWords(
            f"{what}`# ^ type ^ ... #`.",
            "asks it about every such pair of the mentions that a text comes with",
            "other text means nothing to it",
            around=f"two mentions, at most {self.most_words} words apart",
            code=code_of(self._asked, typed=self.typed),
        )

    @property
    def _asked(self) -> Mapping[str, Sequence[str]]:
        """The types of modifiers that each type of main mention is asked about with."""
        if self.modifiers == "auto":
            raise ValueError("modifiers must be resolved; `fitted` does that")
        return self.modifiers

    def _candidates(self, document: Document) -> list[tuple[int, int]]:
        return candidate_pairs(document, self._asked, self.most_words)

    def _targets(self, document: Document) -> dict[tuple[int, int], int]:
        """Returns the classes of the pairs that are related: of several the first."""
        ranked = sorted(document.relations, key=lambda relation: relation.label, reverse=True)
        return {(own.head, own.tail): self.classes.index(own.label) for own in ranked}

    def _learnt(self, document: Document) -> list[tuple[int, int]]:
        """Returns the candidates that are trained on: the related ones, and a share of the others.

        Which ones are drawn depends on nothing but the document's id and how many there are.
        """
        if document.lacks_relations:
            return []
        pairs = self._candidates(document)
        related = {(relation.head, relation.tail) for relation in document.relations}
        drawn = Seed(0).child("negatives", document.id).numpy().random(len(pairs)) < self.negatives
        return [pair for pair, chosen in zip(pairs, drawn.tolist(), strict=True) if chosen or pair in related]

    def _marked(
        self, documents: Sequence[Document], tokenizer: Any, pairs: Sequence[Sequence[tuple[int, int]]]
    ) -> list[MarkedPair]:
        """Makes the examples of these pairs of each document."""
        require_single_texts(documents, self.name)
        refuse(unknown_types(documents, "relations", self._types))
        pad_id = padding_id(tokenizer)
        marker = PairMarker(tokenizer, self.max_length, typed=self.typed)
        asked = [index for index, own in enumerate(pairs) if own]
        texts = whole_texts([documents[index] for index in asked], tokenizer, offsets=True)
        examples = []
        for index, (ids, offsets) in zip(asked, texts, strict=True):
            document = documents[index]
            text, targets = markable(document, ids, offsets), self._targets(document)
            unknown = unknown_classes(document, [None, *self._types])
            for pair in pairs[index]:
                target = IGNORED if document.lacks_relations else targets.get(pair, 0)
                weight = 1.0 if target else 1.0 / self.negatives
                window = marker.window(text, document.spans, *pair)
                examples.append(MarkedPair(index, *pair, *window, target, weight, pad_id, unknown))
        return examples


def _of_pairs(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the logits of each pair, (pairs, classes) float32: of its two closing marks together."""
    logits = run_model(module, batch)
    rows = torch.arange(len(logits), device=logits.device).unsqueeze(1)
    return logits[rows, batch["marks"]].float().sum(dim=1)
