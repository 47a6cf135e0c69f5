"""What a score must beat that takes no language model, in each task; `Task.floors` says which.

All is made of one site's training documents, for its own documents. Answers that are all one thing, or
nothing, are told from what was counted, so that a site needs to say no more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedstrata.core.documents import Document
from fedstrata.core.task import Task
from fedstrata.core.types import Tally
from fedstrata.data.choices import NONE_RIGHT, choices_of
from fedstrata.metrics.counts import Counts
from fedstrata.metrics.labels import SINGLE_LABEL
from fedstrata.tasks.causal import CausalTask
from fedstrata.tasks.document_labels import LabelAnswer
from fedstrata.tasks.questions import ClozeAnswer, Questions

LOOKUP, ALL_PAIRS, MAJORITY = "look-up table", "all pairs related", "majority class"
LEAD, UNIGRAM = "lead-n", "unigram"
ENOUGH = 5
"""Documents from which on it is told that all were answered alike: of fewer they may well be."""


class LabelFloors(Task):
    """Base of the tasks whose answers are labels of documents."""

    floor_names: ClassVar[tuple[str, ...]] = (MAJORITY,)

    def floors(
        self, train: Sequence[Document], documents: Sequence[Document], tokenizer: Any
    ) -> Mapping[str, Sequence[Any]]:
        """Gives all documents the labels that would be best for the training documents, the same ones.

        That is the most frequent label; with any number of labels the most frequent ones, as many as make
        the best micro F1.
        """
        labels, shares = constant_labels(train, self.classes, one_each=self.metric == SINGLE_LABEL[0])
        return {MAJORITY: [LabelAnswer(labels, shares)] * len(documents)} if labels else {}

    def degenerate(self, tally: Tally, documents: int) -> str:
        """Says whether all documents were given the same labels, or none."""
        return one_answer(tally, self.classes, documents)


class QuestionFloors(CausalTask):
    """Base of the task whose answers are chosen from given ones."""

    floor_names: ClassVar[tuple[str, ...]] = (MAJORITY,)

    if TYPE_CHECKING:

        @property
        def words(self) -> dict[str, str]:
            """The word of each label."""

        @property
        def _questions(self) -> Questions:
            """The questions."""

    def floors(
        self, train: Sequence[Document], documents: Sequence[Document], tokenizer: Any
    ) -> Mapping[str, Sequence[Any]]:
        """Answers all questions as most training questions are to be answered.

        With choices of a document's own that is the choice which is right most often, by its place among
        them; where each choice is asked about by itself, that all are right, or none.
        """
        answers = self._constant(train, documents)
        return {MAJORITY: answers} if answers else {}

    def _constant(self, train: Sequence[Document], documents: Sequence[Document]) -> list[ClozeAnswer]:
        form = self._questions.form
        if form == "label":
            names = tuple(self.words)
            labels, shares = constant_labels(train, names, one_each=True)
            same = ClozeAnswer(labels, dict(zip(names, shares.tolist(), strict=True)))
            return [same] * len(documents) if labels else []
        known = [document for document in train if document.labels]
        right = Counter(label for document in known for label in document.labels)
        if form == "each":
            choices = sum(len(choices_of(document)) for document in known)
            every = right.total() - right[NONE_RIGHT] > choices / 2
            given = [tuple(choices_of(each)) if every else (NONE_RIGHT,) for each in documents]
        else:
            ranked = [label for label, _ in right.most_common() if label != NONE_RIGHT or form == "referent"]
            given = [_first_of(ranked, document) for document in documents]
        return [ClozeAnswer(labels, {}) for labels in given] if known else []

    def degenerate(self, tally: Tally, documents: int) -> str:
        """Says whether all questions about labels had one answer, or no choice was taken for right."""
        form = self._questions.form
        if form == "label":
            return one_answer(tally, tuple(self.words), documents)
        return nothing_found(tally, "choice was taken for right", documents) if form == "each" else ""


def _first_of(ranked: Sequence[str], document: Document) -> tuple[str]:
    """Returns the first of these answers that a document may have, or else its first choice."""
    choices = choices_of(document)
    return (
        next((label for label in ranked if label in choices or label == NONE_RIGHT), next(iter(choices))),
    )


def constant_labels(
    train: Sequence[Document], classes: Sequence[str], *, one_each: bool
) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the labels that are best given to all documents alike, and each label's share of documents.

    Args:
        train: The training documents.
        classes: The labels that count; of equally frequent ones the first is taken.
        one_each: Whether each document has exactly one; others do not count then.

    Returns:
        Labels in the order of the classes, none where no document has any; and shares, (labels,) float64, of
        the documents in which the label was looked for.

    >>> notes = [Document(str(n), "", labels=own) for n, own in enumerate([("a",), ("b",), ("b", "a")])]
    >>> constant_labels(notes, ["a", "b", "c"], one_each=False)[0]
    ('a', 'b')
    """
    shape = len(train), len(classes)
    given = np.array([[label in each.labels for label in classes] for each in train], bool).reshape(shape)
    looked = np.array([each.looked_for(classes) for each in train], bool).reshape(shape)
    if one_each:
        alone = given.sum(axis=1, keepdims=True) == 1
        given, looked = given & alone, np.broadcast_to(alone, shape)
    counts, annotated = (given & looked).sum(axis=0), looked.sum(axis=0)
    if not counts.any():
        return (), np.zeros(len(classes))
    shares = counts / np.maximum(annotated, 1)
    ranked = np.argsort(-shares, kind="stable")
    f1 = 2 * np.cumsum(counts[ranked]) / (counts.sum() + np.cumsum(annotated[ranked]))
    best = 1 if one_each else int(f1.argmax()) + 1
    return tuple(classes[number] for number in sorted(ranked[:best])), shares


def one_answer(tally: Tally, labels: Sequence[str], documents: int) -> str:
    """Says, if so, that all documents were given the same labels, by what was counted of each label."""
    given = {label: Counts.of(tally, ends=f"/{label}").predicted for label in labels}
    if documents < ENOUGH or not set(given.values()) <= {0, documents}:
        return ""
    same = ", ".join(repr(label) for label, count in given.items() if count)
    return (
        f"all {documents} documents were answered {same}" if same else _nothing("label was given", documents)
    )


def nothing_found(tally: Tally, what: str, documents: int, prefix: str = "") -> str:
    """Says, if so, that nothing was found in any document.

    Args:
        tally: What was counted, with what was predicted under `{prefix}predicted`.
        what: What was not: a noun, and what would have been done to it.
        documents: How many documents there are.
        prefix: What the name of the count begins with.
    """
    found = tally.get(f"{prefix}predicted")
    return _nothing(what, documents) if found == 0 and documents >= ENOUGH else ""


def _nothing(what: str, documents: int) -> str:
    return f"no {what} in any of {documents} documents"
