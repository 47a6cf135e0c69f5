"""Who is at the server's end of the lines, and what comes from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from fedstrata.core.types import JSON
from fedstrata.split.messages import MOST, is_number

if TYPE_CHECKING:
    from fedstrata.core.errors import FedstrataError
    from fedstrata.split.transport.agreement import Agreement
    from fedstrata.split.transport.header import Header
    from fedstrata.split.transport.link import Link
    from fedstrata.split.transport.timing import Timing
    from fedstrata.wire.frame import Frame

_LEAST_PATIENCE = 0.5
"""Seconds; for who says less the server does not hurry more."""
Greeting: TypeAlias = Mapping[str, JSON]
"""What a client says of itself when it joins."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came from a client, or that nothing more will.

    Attributes:
        client: Who it is.
        session: Its session, of which it may have begun another since.
        header: The message's header; none if the client is lost.
        frame: Its content.
        lost: Why nothing more will come.
    """

    client: str
    session: str
    header: Header | None = None
    frame: Frame | None = None
    lost: FedstrataError | None = None


@dataclass
class Member:
    """One client's session.

    Attributes:
        asked: Since when the client is expected to say something; none if it waits for the server.
    """

    client: str
    session: str
    greeting: Greeting
    agreement: Agreement
    link: Link
    asked: float | None = field(default=None)

    @property
    def patience(self) -> float:
        """Seconds without a sign of life after which the client gives up, as far as it says so."""
        said = self.greeting.get("patience")
        return max(float(said), _LEAST_PATIENCE) if is_number(said, MOST) else float("inf")

    def is_late(self, timing: Timing, now: float) -> bool:
        """Whether the client has been asked something and has been silent for too long."""
        asked = None if self.link.has_arrived else self.asked
        return asked is not None and now - asked >= timing.answer

    def expiry(self, timing: Timing) -> float:
        """Returns when the client is given up if nothing happens."""
        times = ((self.link.down_since, timing.reconnect), (self.asked, timing.answer))
        return min((since + allowed for since, allowed in times if since is not None), default=float("inf"))
