"""A client's documents, encoded when they are needed; and what is wrong with a corrupt client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.federation import DATA_CORRUPTIONS, CorruptSettings
from fedstrata.core.task import Task
from fedstrata.data.split import Split


@dataclass(frozen=True, slots=True)
class Corruption:
    """What is wrong with one client.

    Attributes:
        settings: The kind and its strength.
        rng: Seed of what is wrong with its examples, which is the same in every round.
    """

    settings: CorruptSettings
    rng: Seed


@dataclass
class Site:
    """One client's documents; they are encoded for its turn and not kept encoded.

    Attributes:
        id: The client's name.
        documents: Its documents by split.
        task: What encodes them.
        tokenizer: The model's tokenizer.
        corruption: What is wrong with the client; none if it is honest.
        parts: The clients whose training examples it holds instead of its own, each of them as corrupt as it
            would be; scores stay those of the sites.
    """

    id: str
    documents: Split
    task: Task
    tokenizer: Any
    corruption: Corruption | None = None
    parts: Sequence[Site] = ()

    def encode(self) -> list[Any]:
        """Returns the training examples, as the client uses them."""
        if self.parts:
            return [example for part in self.parts for example in part.encode()]
        examples, wrong = self.task.training_examples(self.documents.train, self.tokenizer), self.corruption
        if wrong is None or wrong.settings.kind not in DATA_CORRUPTIONS:
            return examples
        return self.task.corrupt(examples, wrong.settings.kind, self.tokenizer, wrong.rng)

    @property
    def distortion(self) -> CorruptSettings | None:
        """What the client does to its change; none if it is honest, or only its examples are corrupt."""
        wrong = self.corruption
        return None if wrong is None or wrong.settings.kind in DATA_CORRUPTIONS else wrong.settings

    def scored(self, part: str) -> list[Document]:
        """Returns its documents of a part of the split that answers can be scored against."""
        return [document for document in getattr(self.documents, part) if self.task.scorable(document)]

    @cached_property
    def count(self) -> int:
        """Its number of training examples, n_k."""
        return len(self.encode())


class Examples(Sequence[Any]):
    """A site's training examples, encoded when the first is asked for: not every turn trains."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._encoded: list[Any] | None = None

    def __len__(self) -> int:
        return self._site.count

    def __getitem__(self, index: Any) -> Any:
        if self._encoded is None:
            self._encoded = self._site.encode()
        return self._encoded[index]
