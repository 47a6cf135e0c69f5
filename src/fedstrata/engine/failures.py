"""Clients that are lost to a round: which errors are a client's own, who is left, what a failure leaves.

Only what can go wrong at one site and not at the next counts as a client's failure: training that diverges,
a damaged frame or store (any `FedstrataError` but a wrong configuration), the disk and the network
(`OSError`), and memory. Every other exception is a bug until shown otherwise: it would hit every client, and
a run that took it for an absence would go on without saying what is wrong. It stops the run, whatever
`federation.min_clients` is.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fedstrata.core.errors import ConfigurationError, FedstrataError
from fedstrata.core.seeding import Seed

_OUT_OF_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""How torch words a lack of memory where it raises a plain RuntimeError."""


class RoundAbandonedError(Exception):
    """Drop-outs leave too few clients of a round, and none has trained: the round ends without effect."""


@dataclass
class Attendance:
    """Which of a round's clients are still there, and how many it needs.

    Attributes:
        sampled: The clients of the round.
        dropped: Those of them that are lost once they have the plan (simulated drop-out).
        min_clients: How many must deliver; every one that does not drop out when none. With 0 the round needs
            nobody.
        lost: Why a client did not deliver, by its name, so far.
    """

    sampled: Sequence[str]
    dropped: frozenset[str] = frozenset()
    min_clients: int | None = None
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def needed(self) -> int:
        """How many must deliver."""
        if self.min_clients is not None:
            return self.min_clients
        return max(1, len(self.sampled) - len(self.dropped))

    @property
    def suffices(self) -> bool:
        """Whether enough can still deliver."""
        return len(self._left) >= self.needed

    @property
    def _left(self) -> set[str]:
        return set(self.sampled) - self.dropped - self.lost.keys()

    def why_not(self, number: int, command: str) -> str:
        """Says that a round cannot be completed, why, and how to go on.

        Args:
            number: The round.
            command: What goes on with the run.
        """
        lost, left = len(self.lost), len(self._left)
        rule = f"federation.min_clients is {self.min_clients}"
        if self.min_clients is None:
            rule = "every client that does not drop out must deliver (federation.min_clients is null)"
        reasons = "".join(f"\n  - {client}: {reason}" for client, reason in self.lost.items())
        kept = "Earlier rounds are kept. " if number > 1 else ""
        hint = f"; with federation.min_clients={left} it may go on without what failed" if left else ""
        return (
            f"round {number}: {lost} of {len(self.sampled)} clients lost, at most {left} can deliver, and "
            f"{rule}:{reasons}\n{kept}To try this one again: {command}{hint}"
        )


def drop_outs(clients: Sequence[str], chance: float, rng: Seed) -> frozenset[str]:
    """Draws the clients that drop out of a round, each by itself.

    A client that drops out at one chance also does at every greater one.

    Args:
        clients: The clients of the round.
        chance: Chance of each, in [0, 1).
        rng: Seed of the draw.
    """
    return frozenset(client for client in clients if rng.child(client).numpy().random() < chance)


def is_client_failure(error: Exception) -> bool:
    """Whether a round may go on without the client that raised this.

    Example:
        >>> is_client_failure(OSError(28, "No space left on device")), is_client_failure(KeyError("x"))
        (True, False)
    """
    if isinstance(error, FedstrataError):
        return not isinstance(error, ConfigurationError)
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY):
        return True
    return isinstance(error, OSError | MemoryError | torch.OutOfMemoryError)


def message_of(error: BaseException) -> str | None:
    """Returns what may be recorded of an error's text: our own; any other may quote a note."""
    return str(error) if isinstance(error, FedstrataError) else None


def describe(error: Exception) -> str:
    """Returns an error's kind and what may be shown of its text."""
    told = message_of(error)
    if isinstance(error, OSError):  # the operating system's words, and a path
        told = ": ".join(str(part) for part in (error.strerror, error.filename) if part)
    name = type(error).__name__
    return f"{name}: {told}" if told else name


def release_memory(error: BaseException) -> None:
    """Frees what the frames of a failed training still hold: activations, anchors, the optimiser's state.

    A traceback keeps every local variable alive, and the next client needs the memory.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    gc.collect()  # optimisers and their schedules refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
