"""Random choices of the generator, each from a named seed."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

from fedstrata.core.seeding import Seed

T = TypeVar("T")


class Draw:
    """Draws from one seed, by `random.Random`: for single draws it is ten times faster than NumPy.

    Args:
        seed: The seed of this purpose.
    """

    def __init__(self, seed: Seed) -> None:
        self._random = random.Random(seed.integer())  # noqa: S311 - text, not secrets

    def pick(self, items: Sequence[T]) -> T:
        """Returns one item, all equally likely."""
        return items[int(self._random.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Returns True with the given probability."""
        return self._random.random() < probability

    def between(self, low: int, high: int) -> int:
        """Returns an integer in [low, high]."""
        return low + int(self._random.random() * (high - low + 1))

    def uniform(self, low: float, high: float) -> float:
        """Returns a number in [low, high)."""
        return low + self._random.random() * (high - low)

    def index(self, cumulative: Sequence[float]) -> int:
        """Returns an index, drawn by running sums of weights."""
        return min(bisect_right(cumulative, self._random.random() * cumulative[-1]), len(cumulative) - 1)

    def gamma(self, shape: float) -> float:
        """Returns a gamma variate of scale 1; normalised, several of them follow a Dirichlet distribution."""
        return self._random.gammavariate(shape, 1.0)

    def normal(self) -> float:
        """Returns a standard normal variate."""
        return self._random.normalvariate(0.0, 1.0)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Returns the items in random order."""
        return self._random.sample(items, len(items))
