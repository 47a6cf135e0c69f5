"""Corrupt clients (`federation.corrupt`): who they are, and what makes them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedstrata.core.settings.federation import DATA_CORRUPTIONS, CorruptSettings, share_of

if TYPE_CHECKING:
    from fedstrata.core.seeding import Seed
    from fedstrata.core.task import Task


@dataclass(frozen=True, slots=True)
class Corruption:
    """What is wrong with one client.

    Attributes:
        settings: The kind and its strength.
        rng: Seed of what is wrong with its examples, which is the same in every round.
    """

    settings: CorruptSettings
    rng: Seed

    def of_examples(self, task: Task, examples: Sequence[Any], tokenizer: Any) -> list[Any]:
        """Returns the client's training examples as it uses them."""
        if self.settings.kind not in DATA_CORRUPTIONS:
            return list(examples)
        return task.corrupt(examples, self.settings.kind, tokenizer, self.rng)

    @property
    def of_updates(self) -> CorruptSettings | None:
        """What the client does to its change; none if only its examples are corrupt."""
        return None if self.settings.kind in DATA_CORRUPTIONS else self.settings


def corrupt_clients(clients: Sequence[str], settings: CorruptSettings, rng: Seed) -> dict[str, Corruption]:
    """Draws the corrupt clients.

    They are the same for every kind, and a client that is corrupt at one share also is at every greater one.

    Args:
        clients: All clients that train.
        settings: How many, and what is wrong with them.
        rng: Seed of the draw.

    Returns:
        What is wrong with each corrupt client, by its name, in the order of the clients.
    """
    count = share_of(settings.share, len(clients))
    drawn = sorted(rng.numpy().permutation(len(clients))[:count].tolist())
    return {clients[index]: Corruption(settings, rng.child(clients[index])) for index in drawn}
