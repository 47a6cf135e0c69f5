"""Random choices of the generator, each from a named seed."""

import random
from collections.abc import Sequence
from typing import TypeVar

from fedstrata.core.seeding import Seed

T = TypeVar("T")


class Draw(random.Random):
    """Draws from one seed, with Python's generator: for single draws it is ten times faster than NumPy.

    Args:
        seed: The seed of this purpose.
    """

    def __init__(self, seed: Seed) -> None:
        super().__init__(seed.integer())

    def pick(self, items: Sequence[T]) -> T:
        """Returns one item, all equally likely."""
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Returns True with the given probability."""
        return self.random() < probability

    def between(self, low: int, high: int) -> int:
        """Returns an integer in [low, high]."""
        return low + int(self.random() * (high - low + 1))

    def index(self, cumulative: Sequence[float]) -> int:
        """Returns an index, drawn by running sums of weights."""
        return self.choices(range(len(cumulative)), cum_weights=cumulative)[0]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Returns the items in random order."""
        return self.sample(items, len(items))
