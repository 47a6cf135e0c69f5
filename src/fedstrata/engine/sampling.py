"""Who is drawn for a round."""

from collections.abc import Sequence
from typing import TypeVar

from fedstrata.core.seeding import Seed

Sampled = TypeVar("Sampled")


def sample(sites: Sequence[Sampled], share: float, rng: Seed) -> list[Sampled]:
    """Draws the clients of a round without replacement, in their usual order.

    Args:
        sites: All clients.
        share: Share of them that takes part; at least one does.
        rng: Seed of the draw.
    """
    chosen = rng.numpy().choice(len(sites), size=sample_size(len(sites), share), replace=False)
    return [sites[index] for index in sorted(chosen.tolist())]


def sample_size(clients: int, share: float) -> int:
    """Returns how many of all clients take part in a round."""
    return max(1, round(share * clients))
