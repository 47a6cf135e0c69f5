"""What clients hold: documents, patients, lengths and classes by part, as a record and a report say it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from fedstrata.core.documents import Document
from fedstrata.core.settings.report import shown
from fedstrata.core.surveyed import SurveyedTask
from fedstrata.data.duplicates import Duplicates, Repeated
from fedstrata.data.patients import patients_of
from fedstrata.data.split import PARTS, Split

Decided: TypeAlias = "Mapping[str, Sequence[Sequence[str]]]"
"""What is decided in documents, by kind: the right answers in each document in which somebody looked."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a client has of one part of the split.

    Attributes:
        documents: The documents.
        decided: What is decided in them.
        looked: In how many of them somebody looked for each type or label that is to be decided on.
    """

    documents: Sequence[Document]
    decided: Decided
    looked: Mapping[str, int]

    @classmethod
    def of(cls, documents: Sequence[Document], task: SurveyedTask) -> "Holding":
        """Looks through documents."""
        decided: dict[str, list[Sequence[str]]] = {}
        looked = dict.fromkeys(chain.from_iterable(task.decided.values()), 0)
        for document in documents:
            for kind, answers in task.decisions(document).items():
                decided.setdefault(kind, []).append(answers)
            for name in chain.from_iterable(task.looked_for(document).values()):
                looked[name] += 1
        return cls(documents, decided, looked)

    def classes(self, kind: str) -> Counter[str]:
        """Returns how often each class is the right answer."""
        return Counter(answer for answers in self.decided.get(kind, ()) for answer in answers)


Holdings: TypeAlias = "Mapping[str, Mapping[str, Holding]]"
"""What each client has, by part of the split."""


def holdings_of(clients: Mapping[str, Split], task: SurveyedTask) -> dict[str, dict[str, Holding]]:
    """Looks through the documents of clients."""
    return {
        name: {part: Holding.of(getattr(own, part), task) for part in PARTS} for name, own in clients.items()
    }


def overview(holdings: Holdings, duplicates: Duplicates, *, hide: bool) -> dict[str, Any]:
    """Returns what clients hold as JSON.

    Args:
        holdings: What they hold.
        duplicates: What of it repeats what.
        hide: Whether small counts are hidden; null stands for them then.

    Returns:
        By client and part of the split `documents`; `patients`, none where no document names one; `words`,
        the median and the ninth decile of documents, none of few that are hidden; `classes`, how often each
        is a right answer, by kind first; `looked`, in how many documents somebody looked for each type or
        label, without those that were looked for in all documents. `duplicates`: see
        `fedstrata.data.duplicates.Duplicates`.
    """
    told = partial(shown, hide=hide)
    every = [own for parts in holdings.values() for own in parts.values()]
    kinds = dict.fromkeys(kind for own in every for kind in own.decided)
    partly = sorted(
        {name for own in every for name, count in own.looked.items() if count < len(own.documents)}
    )
    named = any(document.patient for own in every for document in own.documents)

    def classes(own: Holding, kind: str) -> dict[str, int | None]:
        return {name: told(count) for name, count in sorted(own.classes(kind).items())}

    return {
        "documents": _each(holdings, lambda own: told(len(own.documents))),
        "patients": _each(holdings, lambda own: told(len(patients_of(own.documents)))) if named else None,
        "words": _each(holdings, lambda own: _lengths(own.documents, hide=hide)),
        "classes": {kind: _each(holdings, partial(classes, kind=kind)) for kind in kinds},
        "looked": {name: _each(holdings, partial(_looked, name=name, hide=hide)) for name in partly},
        "duplicates": {
            "learnt": {
                name: {part: _told(own, hide=hide) for part, own in parts.items()}
                for name, parts in duplicates.learnt.items()
            },
            "elsewhere": {name: _told(own, hide=hide) for name, own in duplicates.elsewhere.items()},
            "compared": duplicates.compared,
        },
    }


def _each(holdings: Holdings, facts: Callable[[Holding], Any]) -> dict[str, dict[str, Any]]:
    return {name: {part: facts(own) for part, own in parts.items()} for name, parts in holdings.items()}


def _looked(own: Holding, name: str, *, hide: bool) -> int | None:
    return shown(own.looked[name], hide=hide)


def _told(repeated: Repeated, *, hide: bool) -> dict[str, int | None]:
    return {name: shown(count, hide=hide) for name, count in asdict(repeated).items()}


def _lengths(documents: Sequence[Document], *, hide: bool) -> list[int] | None:
    """Returns the median and the ninth decile of the words of documents; none of no documents."""
    if not shown(len(documents), hide=hide):
        return None
    words = [sum(len(text.split()) for text in document.texts) for document in documents]
    return [int(each) for each in np.quantile(words, [0.5, 0.9], method="nearest")]
