"""Learning from documents in which nobody looked for some classes.

Where a site annotates some types and not others, a token (or a pair of mentions) that is marked as nothing is
either nothing or of a type nobody looked for there. Its loss is -log of the summed probability of all classes
that go with what is known: the marginal likelihood of a partial annotation.

Source: Greenberg, Bansal, Verga and McCallum, "Marginal Likelihood Training of BiLSTM-CRF for Biomedical
    Named Entity Recognition from Disjoint Label Sets", EMNLP 2018, for sequences of tags; here for each token
    by itself, as these models have no transitions. Tsuboi et al. (COLING 2008) have it for any partial
    annotation.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedstrata.core.documents import Document
from fedstrata.tasks.windows import IGNORED

ABSENT = 0
"""The class of what is marked as nothing."""


def unknown_classes(document: Document, names: Sequence[str | None]) -> np.ndarray | None:
    """Returns which classes nobody looked for in a document, (classes,) bool; none if there is no such one.

    Args:
        document: The document.
        names: The type or label that each class stands for; none for that of nothing.
    """
    if document.annotates is None:
        return None
    unknown = np.array([name is not None and name not in document.annotates for name in names])
    return unknown if unknown.any() else None


def stacked(examples: Sequence[Any], classes: int) -> dict[str, Tensor]:
    """Returns `unknown` of examples, (examples, classes) bool; nothing where all classes are known in all."""
    if all(example.unknown is None for example in examples):
        return {}
    none = np.zeros(classes, dtype=bool)
    rows = [none if example.unknown is None else example.unknown for example in examples]
    return {"unknown": torch.from_numpy(np.stack(rows))}


def open_rows(labels: Tensor, unknown: Tensor, nothing: int) -> Tensor:
    """Returns which rows are marked as nothing and may have a class nobody looked for, (rows,) bool."""
    return (labels == nothing) & unknown.any(dim=1)


def partial_cross_entropy(
    logits: Tensor, labels: Tensor, unknown: Tensor | None, nothing: int = ABSENT
) -> Tensor:
    """Returns the loss of each row, (rows,): its cross entropy, or that of all that goes with nothing.

    Args:
        logits: (rows, classes).
        labels: The class of each row, (rows,) int64; `IGNORED` where it has no loss.
        unknown: The classes that a row that is marked as nothing may have, (rows, classes) bool; none if no
            row has any.
        nothing: What such a row is labelled with: the class of nothing; or `IGNORED` where there is none, so
            that it has one of the others.
    """
    losses = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    if unknown is None:
        return losses
    rows = open_rows(labels, unknown, nothing)
    compatible = unknown | ~rows[:, None]  # other rows keep all: a sum over nothing would spoil gradients
    if nothing != IGNORED:
        compatible[:, nothing] = True
    marginal = logits.logsumexp(dim=1) - logits.masked_fill(~compatible, -torch.inf).logsumexp(dim=1)
    return torch.where(rows, marginal, losses)
