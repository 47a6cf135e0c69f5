"""One seed per purpose, derived and never consumed.

Every random decision of a run has a name: `Seed(0).child("train", round, client)`. A child depends only on
that name and not on what was drawn before, so a resumed run, another order of clients, or another engine
draws the same numbers. The idea is FedJAX's (https://github.com/google/fedjax), which threads one key per
purpose through a round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Seed:
    """A node in the tree of seeds.

    Attributes:
        root: The number the user set.
        path: The names from the root to this node.

    Examples:
        >>> Seed(7).child("partition").integer() == Seed(7).child("partition").integer()
        True
        >>> Seed(7).child("partition").integer() == Seed(7).child("split").integer()
        False
    """

    root: int
    path: tuple[str | int, ...] = ()

    def child(self, *names: str | int) -> Seed:
        """Returns the seed of a narrower purpose."""
        return Seed(self.root, (*self.path, *names))

    def integer(self) -> int:
        """Returns this seed as a number in [0, 2^63), a good hash of its whole path."""
        digest = hashlib.blake2b(repr((self.root, *self.path)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def numpy(self) -> np.random.Generator:
        """Returns a fresh NumPy generator."""
        return np.random.default_rng(self.integer())

    def torch(self) -> torch.Generator:
        """Returns a fresh torch generator on the CPU."""
        import torch  # noqa: PLC0415 - heavy, and `fedstrata synth` does without it

        return torch.Generator().manual_seed(self.integer())

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Seeds torch's global generators, on every device, within the block; puts them back after it."""
        import torch  # noqa: PLC0415

        devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
        # Without a GPU `torch.manual_seed` queues the seed for one, with a stack trace: milliseconds.
        seed = torch.manual_seed if devices else torch.default_generator.manual_seed
        with torch.random.fork_rng(devices=devices):
            seed(self.integer())
            yield
