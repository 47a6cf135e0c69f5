"""Relations between mentions that are known: every pair of them that may be related is a text to classify.

This is the pipeline of BERT-based relation extraction, and the baseline of Fed-MedLoRA for modifiers: the
two mentions are marked in the text around them (`fedstrata.tasks.mention_pairs.markers`); the model's
classes are `none` and the types of relations. A document's relations are its pairs with another likeliest
class than `none`.

The logits of a pair are the sum of those that the model gives the two closing marks: one layer over what it
makes of both mentions (Baldini Soares et al., "Matching the Blanks", ACL 2019, find the states at the marks
well above the one at the start of the text), and the last marks rather than the first, so that a decoder has
read the mentions there. That layer is a token classifier's: what can learn `ner` can learn this.

A model is asked about the pairs of types that are related in the training documents (`task.modifiers`), not
more than `task.most_words` words apart. Scores are taken against all annotated relations: those between other
mentions count as missed, and so do all but the first in the alphabet where one pair has several;
`fedstrata.tasks.mention_pairs.candidates.reachability` says how many can be found at all.

Most candidates are not related. With `task.negatives` below 1 only a share of those is trained on, and each
of them counts for all it stands for, so that the expected loss is that over all candidates; scoring asks
about all of them. Documents that lack relations are neither trained on nor scored: nobody looked for any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from fedstrata.core.documents import Document, Relation
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.task import NO_RELATION
from fedstrata.data.select import relation_types, unknown_relations, unnamed
from fedstrata.metrics.relations import relation_scores, triples_of
from fedstrata.metrics.spans import OVERALL, score_names
from fedstrata.tasks.corrupt import shuffled_windows
from fedstrata.tasks.mention_pairs.candidates import candidate_pairs, related_types
from fedstrata.tasks.mention_pairs.markers import PairMarker, markable
from fedstrata.tasks.windows import (
    IGNORED,
    pad_ids,
    padding_id,
    require_single_texts,
    run_model,
    whole_texts,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedstrata.core.settings.task import RelationSettings
    from fedstrata.data.split import Split


@dataclass(frozen=True, slots=True)
class MarkedPair:
    """Two mentions of a document, as the model reads them.

    Attributes:
        document: Index of the document in the sequence that was encoded.
        main: Index of the main mention in the document's spans.
        modifier: Index of the modifier.
        input_ids: Token ids of the marked text, (tokens,) int32.
        marks: Where the marks of the two end, as `mention_pairs.markers.MarkedWindow` has them.
        target: The number of its class; -100 where the document lacks relations.
        weight: How many pairs it stands for in the loss.
        pad_id: The id with which its window is padded.
    """

    document: int
    main: int
    modifier: int
    input_ids: np.ndarray
    marks: tuple[int, int]
    target: int
    weight: float
    pad_id: int

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def windows(self) -> tuple[np.ndarray, ...]:
        """The rows of a batch this example fills: its own token ids."""
        return (self.input_ids,)


class RelationClassification:
    """Classifies pairs of mentions, and scores the relations they amount to.

    Args:
        settings: Windows and candidates; `modifiers` must not be `auto`.
        types: The types of relations.
    """

    kind: ClassVar[str] = "token-classification"
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    needs_annotations: ClassVar[bool] = True
    gives: ClassVar[tuple[str, ...]] = ("relations",)
    reads_spans: ClassVar[bool] = True
    packed: ClassVar[bool] = False
    metric: ClassVar[str] = "f1"
    metrics: ClassVar[tuple[str, ...]] = OVERALL
    problem_type: ClassVar[None] = None

    def __init__(self, settings: RelationSettings, types: Sequence[str]) -> None:
        if settings.modifiers == "auto":
            raise ValueError("modifiers must be resolved; `from_documents` does that")
        self.settings, self.types = settings, tuple(sorted(set(types)))
        self.modifiers: Mapping[str, Sequence[str]] = settings.modifiers
        self._number = {label: number for number, label in enumerate(self.labels)}

    @classmethod
    def from_documents(
        cls, settings: RelationSettings, clients: Mapping[str, Split]
    ) -> RelationClassification:
        """Makes the task for a corpus: its types are those that are named, or of all training documents.

        Raises:
            ConfigurationError: No training document has a relation, another document has a type that none of
                them has or that is not named, a client has no pair to learn from, or documents are pairs of
                texts.
        """
        require_single_texts((document for own in clients.values() for document in own.all), "relations")
        train = [document for own in clients.values() for document in own.train]
        types = relation_types(train)
        if not types or NO_RELATION in types:
            message = f"none of the {len(train)} training documents has a relation"
            if types:
                message = (
                    f"a relation may not be called {NO_RELATION!r}, the class of pairs without one; rename it"
                )
            raise ConfigurationError([Problem("data.relations", message)])
        if settings.modifiers == "auto":
            settings = settings.model_copy(update={"modifiers": related_types(train)})
        problems: list[Problem] = []
        if settings.types != "auto":
            types = tuple(settings.types)
            every = (item for own in clients.values() for item in own.all)
            occurring = ((relation.label, item.id) for item in every for relation in item.relations)
            problems += unnamed("task.types", occurring, types)
        else:
            for part in ("validation", "test"):
                scored = (item for own in clients.values() for item in getattr(own, part))
                problems += unknown_relations(scored, types, part)
        task = cls(settings, types)
        for name, own in clients.items():
            if own.train and not any(task._learnt(document) for document in own.train):
                message = f"the training documents of {name} have no two mentions to learn relations from"
                problems.append(Problem("partition", message))
        if problems:
            raise ConfigurationError(problems)
        return task

    @classmethod
    def from_labels(cls, settings: RelationSettings, labels: Sequence[str]) -> RelationClassification:
        """Makes the task again for a model that was trained for it.

        Args:
            settings: As a run's `config.yaml` has them, where `modifiers` is resolved.
            labels: The model's classes in order.

        Raises:
            ConfigurationError: They are not `none` and the types in their order, or the settings do not say
                which pairs a model is asked about.
        """
        if settings.modifiers == "auto":
            message = "must name types of mentions for a model that is trained already, and not be 'auto'"
            raise ConfigurationError([Problem("task.modifiers", message)])
        task = cls(settings, labels[1:])
        if not task.types or task.labels != tuple(labels):
            message = (
                f"its classes are not those of task relations, {NO_RELATION} and the types: {list(labels)}"
            )
            raise ConfigurationError([Problem("model.name", message)])
        return task

    @property
    def labels(self) -> tuple[str, ...]:
        """`none`, then the types."""
        return (NO_RELATION, *self.types)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The micro scores, then those of every type."""
        return score_names(self.types)

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[MarkedPair]:
        """Marks every candidate pair of the documents.

        Raises:
            ConfigurationError: A document has a relation whose type the task does not know, or is a pair of
                texts; or the tokenizer does not fit (see `fedstrata.tasks.mention_pairs.markers.PairMarker`).
        """
        return self._marked(documents, tokenizer, [self._candidates(document) for document in documents])

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[MarkedPair]:
        """Marks the pairs of the documents that are learnt from.

        Those are the related ones and, of the others, the share of `task.negatives`.

        Raises:
            ConfigurationError: As for `encode`.
        """
        return self._marked(documents, tokenizer, [self._learnt(document) for document in documents])

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
            targets = [(target + 1) % len(self.labels) for target in targets]
        return [replace(each, target=target) for each, target in zip(examples, targets, strict=True)]

    def collate(self, examples: Sequence[MarkedPair]) -> dict[str, Tensor]:
        """Pads pairs on the right to the longest one.

        Returns:
            `input_ids` and `attention_mask`, (pairs, tokens) int64; `marks`, (pairs, 2) int64; `labels`,
            (pairs,) int64, the class or -100; `weights`, (pairs,) float32.
        """
        padded = pad_ids([each.input_ids for each in examples], [each.pad_id for each in examples])
        return {
            **padded,
            "marks": torch.tensor([each.marks for each in examples]),
            "labels": torch.tensor([each.target for each in examples]),
            "weights": torch.tensor([each.weight for each in examples]),
        }

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the weighted sum of the cross entropies of all pairs, and the sum of their weights."""
        labels, weights = batch["labels"], batch["weights"]
        logits = _of_pairs(module, batch)
        losses = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        return (losses * weights).sum(), weights[labels != IGNORED].sum()

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the logits of each pair, (classes,) float32."""
        with torch.no_grad():
            return list(_of_pairs(module, batch).cpu().numpy())

    def decode(
        self,
        documents: Sequence[Document],
        examples: Sequence[MarkedPair],
        predictions: Sequence[np.ndarray],
    ) -> list[tuple[Relation, ...]]:
        """Reads relations off logits.

        Args:
            documents: The documents that were encoded.
            examples: All their pairs.
            predictions: The logits of each pair, (classes,).

        Returns:
            The relations of each document, between its own spans, sorted.
        """
        found: list[list[Relation]] = [[] for _ in documents]
        for pair, logits in zip(examples, predictions, strict=True):
            if likeliest := int(logits.argmax()):
                found[pair.document].append(Relation(pair.main, pair.modifier, self.labels[likeliest]))
        return [tuple(sorted(own, key=lambda each: (each.head, each.tail))) for own in found]

    def score(self, documents: Sequence[Document], answers: Sequence[Sequence[Relation]]) -> dict[str, float]:
        """Scores the relations of each document, as triples of main mention, modifier and type.

        See `fedstrata.metrics.relations.relation_scores`.
        """
        gold = [triples_of(document) for document in documents]
        found = [
            triples_of(replace(document, relations=tuple(own)))
            for document, own in zip(documents, answers, strict=True)
        ]
        return relation_scores(gold, found, self.types)

    def known(self, document: Document) -> Document:
        """Returns the document with its mentions, and its relations of the task's types."""
        relations = tuple(own for own in document.relations if own.label in self.types)
        return replace(document, relations=relations, labels=())

    def scorable(self, document: Document) -> bool:
        """Whether somebody looked for relations in the document."""
        return not document.lacks_relations

    def annotate(self, document: Document, answer: Sequence[Relation]) -> Document:
        """Returns the document with its mentions and these relations."""
        return replace(document, relations=tuple(answer), labels=(), lacks_relations=False)

    def _candidates(self, document: Document) -> list[tuple[int, int]]:
        return candidate_pairs(document, self.modifiers, self.settings.most_words)

    def _targets(self, document: Document) -> dict[tuple[int, int], int]:
        """Returns the classes of the pairs that are related: of several the first."""
        ranked = sorted(document.relations, key=lambda relation: relation.label, reverse=True)
        return {(own.head, own.tail): self._number[own.label] for own in ranked}

    def _learnt(self, document: Document) -> list[tuple[int, int]]:
        """Returns the candidates that are trained on: the related ones, and a share of the others.

        Which ones are drawn depends on nothing but the document's id and how many there are.
        """
        if document.lacks_relations:
            return []
        pairs = self._candidates(document)
        related = {(relation.head, relation.tail) for relation in document.relations}
        drawn = Seed(0).child("negatives", document.id).numpy().random(len(pairs)) < self.settings.negatives
        return [pair for pair, chosen in zip(pairs, drawn.tolist(), strict=True) if chosen or pair in related]

    def _marked(
        self, documents: Sequence[Document], tokenizer: Any, pairs: Sequence[Sequence[tuple[int, int]]]
    ) -> list[MarkedPair]:
        """Makes the examples of these pairs of each document."""
        require_single_texts(documents, "relations")
        if problems := unknown_relations(documents, self.types):
            raise ConfigurationError(problems)
        settings, pad_id = self.settings, padding_id(tokenizer)
        marker = PairMarker(tokenizer, settings.max_length, typed=settings.typed)
        asked = [index for index, own in enumerate(pairs) if own]
        texts = whole_texts([documents[index] for index in asked], tokenizer, offsets=True)
        examples = []
        for index, (ids, offsets) in zip(asked, texts, strict=True):
            document = documents[index]
            text, targets = markable(document, ids, offsets), self._targets(document)
            for pair in pairs[index]:
                target = IGNORED if document.lacks_relations else targets.get(pair, 0)
                weight = 1.0 if target else 1.0 / self.settings.negatives
                window = marker.window(text, document.spans, *pair)
                own = MarkedPair(index, *pair, window.input_ids, window.marks, target, weight, pad_id)
                examples.append(own)
        return examples


def _of_pairs(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the logits of each pair, (pairs, classes) float32: of its two closing marks together."""
    logits = run_model(module, batch)
    rows = torch.arange(len(logits), device=logits.device).unsqueeze(1)
    return logits[rows, batch["marks"]].float().sum(dim=1)
