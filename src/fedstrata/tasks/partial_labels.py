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


def partial_cross_entropy(logits: Tensor, labels: Tensor, unknown: Tensor | None) -> Tensor:
    """Returns the loss of each row, (rows,): its cross entropy, or that of what goes with `ABSENT`.

    Args:
        logits: (rows, classes).
        labels: The class of each row, (rows,) int64; `IGNORED` where it has no loss.
        unknown: The classes that a row of class `ABSENT` may have as well, (rows, classes) bool; none if no
            row has any.
    """
    losses = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    if unknown is None:
        return losses
    compatible = unknown.clone()
    compatible[:, ABSENT] = True
    return torch.where((labels == ABSENT) & unknown.any(dim=1), marginal_loss(logits, compatible), losses)


def marginal_loss(logits: Tensor, compatible: Tensor) -> Tensor:
    """Returns -log of the summed probability of some classes of each row, (rows,).

    Args:
        logits: (rows, classes).
        compatible: Which classes are summed over, (rows, classes) bool; at least one a row.
    """
    return logits.logsumexp(dim=1) - logits.masked_fill(~compatible, -torch.inf).logsumexp(dim=1)
