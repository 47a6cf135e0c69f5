"""Document classification: one label a document, or any number of them.

A long document is read as overlapping windows, and the logits of its windows are pooled, by mean or maximum,
into those of the document. The loss is taken on the pooled logits, so an example is a document and
`training.batch_size` counts documents. All windows of a batch are in memory at once when training:
`task.max_windows` bounds what a long document costs, and a smaller batch with `training.accumulation` gives
the same gradient. A pair of texts is one window: see `fedstrata.tasks.document_labels`.

The labels of a corpus are those of all its documents, whatever their part of the split: which labels are in
question is the user's choice (of the 50 most frequent codes, say) and not something that is learnt. A label
that only test documents have cannot be found and counts as missed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, Problem, SettingError, refuse, refused
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Classes, Positive, idle_settings
from fedstrata.core.settings.source import Source, validate
from fedstrata.core.task import CardWords
from fedstrata.core.types import Tally
from fedstrata.data.select import named_in_vain, others, unnamed
from fedstrata.data.split import Split, every
from fedstrata.metrics.labels import CUTS, SINGLE_LABEL, areas, names_of, scores_from, tally_of
from fedstrata.tasks.document_labels import (
    LabelAnswer,
    LabelledDocument,
    LabellingTask,
    corrupted_labels,
    padded_types,
    pool,
    text_windows,
)
from fedstrata.tasks.floors import LabelFloors
from fedstrata.tasks.partial_labels import open_rows, partial_cross_entropy, stacked, unknown_classes
from fedstrata.tasks.texts import padding_id, require_one_each
from fedstrata.tasks.windows import CUT_INTO_WINDOWS, IGNORED, pad_ids, run_model

logger = logging.getLogger(__name__)
_UNLABELLED = "multi_label: %s of %s documents have no label; data.labels.without_labels=drop leaves them out"


class DocumentClassification(LabelFloors, LabellingTask):
    """Document classification: the labels of a note."""

    name: Literal["classify"] = "classify"
    labels: Classes = Field(
        default="auto",
        description="Labels to learn; `auto`: those of the documents. Name them for sites on separate "
        "machines where some sites lack some labels.",
    )
    problem_type: Literal["auto", "single_label", "multi_label"] = Field(
        default="auto",
        description="One label per document, or any number; `auto`: single_label if every document has "
        "exactly one.",
    )
    pooling: Literal["mean", "max"] = Field(
        default="mean", description="Pooling of the logits of a document's windows."
    )
    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.5, description="Probability threshold of a label (multi_label)."
    )
    positive_weight: Positive = Field(
        default=1.0,
        description="Loss weight of positive labels; negative labels have weight 1 (multi_label).",
    )

    kind: ClassVar[str] = "sequence-classification"
    whole_documents: ClassVar[bool] = True
    knows_partial_annotation: ClassVar[bool] = True
    learns: ClassVar[str] = "labels of documents (data.labels)"
    gives: ClassVar[tuple[str, ...]] = ("labels",)
    naming: ClassVar[tuple[str, ...]] = ("labels",)

    _classes: tuple[str, ...] = ()

    def _misfits(self) -> Iterator[SettingError]:
        yield from super()._misfits()
        if self.problem_type == "single_label":
            if self.labels != "auto" and len(self.labels) < 2:
                yield SettingError(
                    f"labels: {self.labels} leaves no choice; single_label needs two or more", "out_of_range"
                )
            several = ("multi_label",)
            owners = {"threshold": several, "positive_weight": several}
            for name in idle_settings(self, self.problem_type, owners):
                value = f"{name}={getattr(self, name):g} has no meaning with one label a document"
                yield SettingError(
                    f"{value}: the likeliest is taken; use problem_type multi_label", "no_effect"
                )

    def of_labels(self, labels: Sequence[str]) -> DocumentClassification:
        """Returns the task with these labels to learn, in the order of the model's outputs."""
        task = self.changed()
        task._classes = tuple(labels)
        return task

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in the order of the model's outputs."""
        return self._classes

    @property
    def needs_documents(self) -> bool:
        """Whether the labels, or how many of them a document has, are left to documents."""
        return any(self.left_to_documents())

    def left_to_documents(self) -> Iterator[Problem]:
        """Yields what is read from documents: the names of labels, and how many of them one may have."""
        yield from super().left_to_documents()
        if self.problem_type == "auto":
            message = "'auto' goes by the documents that are to be protected; say single_label or multi_label"
            yield Problem("task.problem_type", message, code="not_private")

    def fitted(self, clients: Mapping[str, Split]) -> DocumentClassification:
        """Returns the task for a corpus: its labels are those that are named, or of all documents, sorted.

        Raises:
            ConfigurationError: If there are too few labels, a document has one that is not named, or none or
                several where each must have one.
        """
        documents = every(clients)
        found = [(label, document.id) for document in documents for label in document.labels]
        labels = self.labels if self.labels != "auto" else sorted({label for label, _ in found})
        problems = unnamed("task.labels", found, labels)
        # One without a label in which nobody looked for some is not odd: it may have any of those.
        looked_through = [own for own in documents if own.labels or own.annotates is None]
        odd = [document for document in looked_through if len(set(document.labels)) != 1]
        if self.problem_type == "auto" and odd and not any(document.labels[1:] for document in odd):
            logger.warning(_UNLABELLED, f"{len(odd):,}", f"{len(documents):,}")
        task = self._resolved("multi_label" if odd else "single_label")
        one_each = task._one_each
        if len(labels) < 1 + one_each:
            message = f"the {len(documents)} documents have {len(labels)} different labels; at least "
            problems.append(
                Problem(
                    "data.labels",
                    f"{message}{1 + one_each} are needed to classify them",
                    code="not_enough_data",
                )
            )
        if one_each and odd:
            others = f", and {len(odd) - 1} more have not exactly one" if len(odd) > 1 else ""
            message = f"single_label, but document {odd[0].id!r} has {len({*odd[0].labels})} labels{others}"
            problems.append(Problem("task.problem_type", message, code="conflict"))
        refuse(problems)
        return task.of_labels(labels)

    def restored(self, classes: Sequence[str]) -> DocumentClassification:
        """Returns the task again for a model that was trained for it.

        Raises:
            ConfigurationError: It is not settled whether a document has one label or several.
        """
        if self.problem_type == "auto":
            message = "must be single_label or multi_label for a model that is trained already, not 'auto'"
            raise refused("task.problem_type", message, "missing")
        return self.of_labels(classes)

    def as_named(self) -> DocumentClassification:
        """Returns the task with the labels that are named; see `restored`."""
        return self.restored(() if self.labels == "auto" else self.labels)

    def named_in_vain(self, documents: Sequence[Document]) -> list[Problem]:
        """Returns a problem for each label that is named and that no document has."""
        names = () if self.labels == "auto" else self.labels
        return named_in_vain("task.labels", names, {each for own in documents for each in own.labels})

    @property
    def head_type(self) -> str:
        """What transformers calls this kind of classification; saved models say so."""
        return f"{self.problem_type}_classification"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The scores that are always present; AUC needs labels that some documents have and some lack.

        The first is accuracy with one label a document, micro-F1 with any number.
        """
        if self._one_each:
            return SINGLE_LABEL
        return ("micro_f1", "micro_precision", "micro_recall", *SINGLE_LABEL[1:])

    @property
    def metric_names(self) -> tuple[str, ...]:
        """`metrics`, those that may be undefined, and one F1 a label where there are not too many."""
        return (*self.metrics, *names_of(self.classes, () if self._one_each else CUTS))

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[LabelledDocument]:
        """Tokenizes documents; each one is an example, one without tokens too.

        With one label a document, a document without a label is ignored by the loss.

        Raises:
            ConfigurationError: If a document has a label that the task does not know, or the tokenizer has
                nothing to put between the texts of a pair.
        """
        message = f"is none of the {len(self.classes)} labels known"
        strangers = others(((label, own.id) for own in documents for label in own.labels), self.classes)
        refuse(
            [
                Problem("data.labels", f"{own!r} (document {id_!r}) {message}", code="unknown_name")
                for own, id_ in strangers
            ]
        )
        pad_id = padding_id(tokenizer)
        encoded = text_windows(documents, tokenizer, self, self.max_windows)
        numbers = [sorted({self._number[label] for label in document.labels}) for document in documents]
        return [
            LabelledDocument(
                index,
                *own,
                np.array(numbers[index], dtype=np.int32),
                pad_id,
                unknown_classes(documents[index], self.classes),
            )
            for index, own in enumerate(encoded)
        ]

    def corrupt(
        self, examples: Sequence[LabelledDocument], kind: str, tokenizer: Any, rng: Seed
    ) -> list[LabelledDocument]:
        """Returns the documents of a corrupt client; see `document_labels.corrupted_labels`."""
        return corrupted_labels(examples, kind, tokenizer, rng, classes=len(self.classes))

    def collate(self, examples: Sequence[LabelledDocument]) -> dict[str, Tensor]:
        """Pads the windows of documents to one batch.

        Returns:
            `input_ids` and `attention_mask`, (windows, tokens) int64: the windows of the first document, then
            those of the second; `token_type_ids` of the same shape where examples have types; `document`,
            (windows,) int64: which of the examples each belongs to;
            `labels`, (documents,) int64 with one label a document, else (documents, labels) float32 of zeros
            and ones.
        """
        rows = [window for example in examples for window in example.windows]
        numbers = np.repeat(np.arange(len(examples)), [len(example.windows) for example in examples])
        if self._one_each:
            labels = torch.tensor([next(iter(example.targets.tolist()), IGNORED) for example in examples])
        else:
            labels = torch.zeros(len(examples), len(self.classes))
            for row, example in enumerate(examples):
                labels[row, torch.from_numpy(example.targets).long()] = 1.0
        padded = pad_ids(rows, examples[0].pad_id)
        types = padded_types(examples)
        unknown = stacked(examples, len(self.classes))
        return {**padded, **types, **unknown, "document": torch.from_numpy(numbers), "labels": labels}

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the summed loss and its number of terms.

        With one label a document: the cross entropies, one term a document. With any number: the binary cross
        entropies of all labels of all documents, of which each is a term. Labels that nobody looked for in a
        document are no terms; a document without its one label may have any of them
        (`fedstrata.tasks.partial_labels`).
        """
        logits, labels = self._pooled(run_model(module, batch), batch), batch["labels"]
        unknown = batch.get("unknown")
        if self._one_each:
            losses = partial_cross_entropy(logits, labels, unknown, nothing=IGNORED)
            return losses.sum(), self.terms(batch).sum()
        weight = logits.new_full((len(self.classes),), self.positive_weight)
        known = None if unknown is None else (~unknown).to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(logits, labels, known, pos_weight=weight, reduction="sum")
        return losses, self.terms(batch).sum()

    def terms(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns 1 for each document of whose label something is known, else 0; or of how many labels."""
        labels, unknown = batch["labels"], batch.get("unknown")
        if self._one_each:
            known = labels != IGNORED
            return (known if unknown is None else known | open_rows(labels, unknown, IGNORED)).long()
        every = torch.ones_like(labels, dtype=torch.int64) if unknown is None else (~unknown).long()
        return every.sum(dim=1)

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the pooled logits of each document, (labels,) float32.

        No more windows run at a time than the batch has documents, so that `training.eval_batch_size` bounds
        the memory however long the documents are.
        """
        windows, documents = len(batch["input_ids"]), len(batch["labels"])
        with torch.no_grad():
            logits = [
                run_model(module, {name: rows[start : start + documents] for name, rows in batch.items()})
                for start in range(0, windows, documents)
            ]
            return list(self._pooled(torch.cat(logits), batch).cpu().numpy())

    def decode(
        self,
        documents: Sequence[Document],
        examples: Sequence[LabelledDocument],
        predictions: Sequence[np.ndarray],
    ) -> list[LabelAnswer]:
        """Reads probabilities and labels off logits."""
        require_one_each(documents, examples, predictions)
        if not documents:
            return []
        logits = torch.from_numpy(np.stack(predictions)).double()
        return self.answers((logits.softmax(dim=-1) if self._one_each else logits.sigmoid()).numpy())

    def answers(self, probabilities: np.ndarray) -> list[LabelAnswer]:
        """Returns the answers that probabilities amount to: the likeliest label, or all from the threshold.

        Args:
            probabilities: Of each document, (documents, labels) float64.
        """
        if self._one_each:
            given = np.eye(len(self.classes), dtype=bool)[probabilities.argmax(axis=-1)]
        else:
            given = probabilities >= self.threshold
        names = np.array(self.classes, dtype=object)
        return [LabelAnswer(tuple(names[row]), own) for row, own in zip(given, probabilities, strict=True)]

    def tally(self, documents: Sequence[Document], answers: Sequence[LabelAnswer]) -> dict[str, float]:
        """Counts the labels of each document; see `fedstrata.metrics.labels.tally_of`."""
        gold = self._indicators([document.labels for document in documents])
        given = self._indicators([answer.labels for answer in answers])
        looked = self._decided(documents)
        return tally_of(gold, given, self._shares(answers), self.classes, looked)

    def apart(self, documents: Sequence[Document], answers: Sequence[LabelAnswer]) -> dict[str, float]:
        """Returns the areas under the curves of labels."""
        gold = self._indicators([document.labels for document in documents])
        return areas(gold, self._shares(answers), self._decided(documents))

    def scores(self, tally: Tally, apart: Mapping[str, float]) -> dict[str, float]:
        """Returns the scores of labels; see `fedstrata.metrics.labels.scores_from`."""
        return scores_from(tally, apart, self.classes, one_each=self._one_each)

    def known(self, document: Document) -> Document:
        """Returns the document with its labels that the task knows, and nothing else."""
        labels = tuple(label for label in document.labels if label in self._number)
        return replace(document, spans=(), relations=(), labels=labels)

    def scorable(self, document: Document) -> bool:
        """Whether the document has its one label, or somebody looked for any where there may be several."""
        return len(set(document.labels)) == 1 if self._one_each else super().scorable(document)

    def annotate(self, document: Document, answer: LabelAnswer) -> Document:
        """Returns the document with these labels; the metadata say each label's probability."""
        values = zip(self.classes, answer.probabilities, strict=True)
        probabilities = {f"probability/{label}": f"{value:.4f}" for label, value in values}
        labelled = replace(document, labels=answer.labels, metadata={**document.metadata, **probabilities})
        return replace(labelled, spans=(), relations=(), annotates=None)

    def card_words(self) -> CardWords:
        """Returns what a model card says of the task."""
        many = "the likeliest of"
        if not self._one_each:
            many = f"each that has a probability of {self.threshold:g} or more, of"
        what = f"Labels texts, with {many} these {len(self.classes)} labels: {', '.join(self.classes)}."
        most = self.max_windows
        cut = CUT_INTO_WINDOWS + (f" and reads the first {most} alone" if most else "")
        return CardWords(
            what, cut, "the pipeline above takes them as one window, longer than any it was trained on"
        )

    @cached_property
    def _number(self) -> dict[str, int]:
        """The number of each label."""
        return {label: number for number, label in enumerate(self.classes)}

    @property
    def _one_each(self) -> bool:
        return self.problem_type == "single_label"

    def _resolved(self, found: str) -> DocumentClassification:
        """Returns the task with what `auto` stands for, checked as if the user had said so."""
        if self.problem_type != "auto":
            return self
        values = self.model_dump() | {"problem_type": found}
        resolved, problems = validate(type(self), Source({"task": values}), section="task")
        if resolved is None:
            raise ConfigurationError(problems)
        return resolved

    def _pooled(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Pools logits over each document's windows: (windows, labels) to (documents, labels) float32."""
        return pool(logits.float(), batch["document"], len(batch["labels"]), self.pooling)

    def _decided(self, documents: Sequence[Document]) -> np.ndarray | None:
        """Returns which labels are known of each document that is scored, (documents, labels) bool.

        None stands for all: one that has its one label has no other one, whatever somebody looked for.
        """
        if self._one_each:
            return None
        looked = [document.looked_for(self.classes) for document in documents]
        return np.array(looked, dtype=bool).reshape(-1, len(self.classes))

    def _shares(self, answers: Sequence[LabelAnswer]) -> np.ndarray:
        """Returns the probability of each label, (documents, labels)."""
        return np.array([answer.probabilities for answer in answers]).reshape(-1, len(self.classes))

    def _indicators(self, labels: Sequence[Sequence[str]]) -> np.ndarray:
        """Returns which label each document has, (documents, labels) bool."""
        matrix = np.zeros((len(labels), len(self.classes)), dtype=bool)
        for row, own in enumerate(labels):
            matrix[row, [self._number[label] for label in own]] = True
        return matrix
