"""A client's documents, encoded when they are needed; and what is wrong with a corrupt client."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.federation import DATA_CORRUPTIONS, CorruptSettings
from fedstrata.core.task import Task
from fedstrata.data.split import Split, units_of


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
        unit: What of its training documents is a unit of differential privacy: `patient`, `document` or
            `window`; empty without.
        declared: How many units it declares to have.
    """

    id: str
    documents: Split
    task: Task
    tokenizer: Any
    corruption: Corruption | None = None
    parts: Sequence[Site] = ()
    unit: str = ""
    declared: int = 0

    def encode(self) -> list[Any]:
        """Returns the training examples, as the client uses them."""
        return [example for unit in self.encoded_units() for example in unit]

    def encoded_units(self) -> list[Sequence[Any]]:
        """Returns the training examples of each of its units, all together where there are none.

        Those of a unit are made of its documents alone, so that nothing of one is in another's; where it is a
        patient or a document they are made when they are looked at: a step looks at few.
        """
        if self.parts:
            return [unit for part in self.parts for unit in part.encoded_units()]
        if self.unit == "window":
            return [[example] for example in self._encoded(self.documents.train)]
        if not self.unit:
            return [self._encoded(self.documents.train)]
        own = units_of(self.documents.train, self.unit).values()
        return [Encoded(partial(self._encoded, documents)) for documents in own]

    def _encoded(self, documents: Sequence[Document]) -> list[Any]:
        examples, wrong = self.task.training_examples(documents, self.tokenizer), self.corruption
        if wrong is None or wrong.settings.kind not in DATA_CORRUPTIONS:
            return examples
        count = math.floor(wrong.settings.portion * len(examples) + 0.5)
        drawn = sorted(wrong.rng.child("portion").numpy().permutation(len(examples))[:count].tolist())
        chosen = [examples[index] for index in drawn]
        changed = self.task.corrupt(chosen, wrong.settings.kind, self.tokenizer, wrong.rng)
        for index, example in zip(drawn, changed, strict=True):
            examples[index] = example
        return examples

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
        """Its number of training examples, n_k; of units that it declares, if it does."""
        return self.declared or len(self.encode())


class Encoded(Sequence[Any]):
    """Examples that are encoded when they are first looked at.

    Args:
        encode: Encodes them.
    """

    def __init__(self, encode: Callable[[], list[Any]]) -> None:
        self._encode = encode

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: Any) -> Any:
        return self._examples[index]

    @cached_property
    def _examples(self) -> list[Any]:
        return self._encode()


class Examples(Sequence[Any]):
    """A site's training examples, encoded when the first is asked for: not every turn trains."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __len__(self) -> int:
        return len(self._all) if self._site.declared else self._site.count

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    @cached_property
    def units(self) -> list[Sequence[Any]]:
        """The examples of each unit, of which it may have none."""
        return self._site.encoded_units()

    @cached_property
    def _all(self) -> list[Any]:
        return [example for unit in self.units for example in unit]
