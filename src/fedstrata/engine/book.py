"""The book of a round: who takes part, what travelled, who was lost, and what the record says of it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstrata.client.failures import describe, message_of
from fedstrata.core.errors import DROPPED_OUT, ClientsLostError
from fedstrata.core.types import ClientInfo, Plan, Update
from fedstrata.record.log import Listener
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame
from fedstrata.wire.meter import Meter


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


@dataclass
class Book:
    """The book of one round.

    Attributes:
        number: The round, counted from 1.
        folder: The run directory, for messages.
        listen: Told of every event.
        attendance: Who is lost so far, and whether enough are left.
        command: What runs it, for messages.
        meter: Counts the round's bytes.
        calls: How often each handler was called.
        losses: The training loss and the weight of each client that has trained.
        trained_parameters: The most numbers that any of them trained.
        serve_seconds: Time in which the server worked at its part of a divided model so far.
    """

    number: int
    folder: Path
    listen: Listener
    attendance: Attendance
    command: str
    meter: Meter = field(default_factory=Meter)
    calls: Counter[str] = field(default_factory=Counter)
    losses: dict[str, tuple[float, float]] = field(default_factory=dict)
    trained_parameters: int = 0
    serve_seconds: float = 0.0
    _before: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def loss(self) -> float | None:
        """The clients' mean training loss, weighted like their updates; none before the first update."""
        total = sum(weight for _, weight in self.losses.values())
        return sum(loss * weight for loss, weight in self.losses.values()) / total if total else None

    def present(
        self, handler: str, clients: Sequence[ClientInfo], plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Frame]]:
        """Yields the clients that work, each with the plan that it has got; the others are lost.

        Raises:
            RoundAbandonedError: Drop-outs leave too few; everybody got the plan.
        """
        self.calls[handler] += 1
        goes_on = self.attendance.suffices
        for info in clients:
            if info.id in self.attendance.lost:
                continue
            sent = frame.encode(plan_of(info))
            bytes_down = self.meter.count_down(info.id, sent)
            if info.id in self.attendance.dropped:
                self._lose(info.id, DROPPED_OUT, None, DROPPED_OUT, bytes_down)
            elif goes_on:
                yield info, sent
        if not goes_on:
            raise RoundAbandonedError

    def served(self, seconds: float) -> None:
        """Counts the server's work at its part of a divided model."""
        self.serve_seconds += seconds

    def begin(self, client: str, sent: Frame) -> None:
        """Begins to count what a client's turn costs, its plan with it."""
        self._before[client] = self.meter.up[client], self.meter.down[client] - sent.nbytes

    def exchanged(self, client: str) -> tuple[int, int]:
        """Returns the bytes that a client has sent and got in its last turn."""
        up, down = self._before[client]
        return self.meter.up[client] - up, self.meter.down[client] - down

    def trained(self, client: str, update: Update, numbers: int) -> None:
        """Takes down the loss of an update and how many numbers it is of, if its handler has trained."""
        self.trained_parameters = max(self.trained_parameters, numbers)
        if isinstance(loss := update.values.get("loss"), float):
            self.losses[client] = (loss, update.weight)

    def deliver(self, info: ClientInfo, update: Update, seconds: float, **more: Any) -> None:
        """Tells that a client has delivered."""
        up, down = self.exchanged(info.id)
        facts = {
            "round": self.number,
            "client": info.id,
            "examples": info.examples,
            "loss": update.values.get("loss"),
            "bytes_down": down,
            "bytes_up": up,
            "seconds": seconds,
            **more,
        }
        self.listen("client", facts)

    def warn(self, message: str) -> None:
        """Tells whoever watches the run of something that does not end it."""
        self.listen("warning", {"message": message})

    def fail(self, client: str, error: Exception) -> None:
        """Loses a client by its own failure; ends the run if the round needs it.

        Raises:
            ClientsLostError: It does.
        """
        self.losses.pop(client, None)
        _, down = self.exchanged(client)
        self._lose(client, type(error).__name__, message_of(error), describe(error), down)
        if not self.attendance.suffices:
            again = f"{self.command} --resume --out {self.folder}"
            raise ClientsLostError(self.attendance.why_not(self.number, again)) from error

    def _lose(self, client: str, error: str, message: str | None, reason: str, bytes_down: int) -> None:
        self.attendance.lost[client] = reason
        facts = {"client": client, "error": error, "message": message, "bytes_down": bytes_down}
        self.listen("client_failed", {"round": self.number, **facts})
