"""The server's end of all lines: who is there, sending to each client, receiving from any.

What carries the lines is said by the kinds of hub: gRPC's streams (`grpc.hub`), or whatever else.
"""

import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import count
from threading import Condition

from fedstrata.core.errors import FedstrataError, FrameError, LineError, RefusedError
from fedstrata.core.types import JSON, Message
from fedstrata.transport.agreement import Agreement, accept
from fedstrata.transport.header import Header, Kind, pack
from fedstrata.transport.link import Link
from fedstrata.transport.members import Arrival, Greeting, Member
from fedstrata.transport.timing import LONGEST_WAIT, Timing
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

_logger = logging.getLogger(__name__)
_BEATS = 4
"""Signs of life to those who wait, in the time after which they would give up."""


class Hub(ABC):
    """The server's end of all lines.

    Args:
        agree: Returns what is agreed with the client that greets so, or refuses it (`RefusedError`).
        timing: How long to wait.
        welcome: Returns what a client is told when its session begins.
        settings: What is said of the run to a client before it joins.

    Attributes:
        timing: How long to wait.
        turns: The numbers of turns; none comes twice.
        at_work_since: When the server last looked at its lines; none while it waits for what comes on them.
    """

    def __init__(
        self,
        agree: Callable[[str, Greeting], Agreement],
        *,
        timing: Timing | None = None,
        welcome: Callable[[str], Mapping[str, JSON]] = lambda client: {},
        settings: Mapping[str, JSON] | None = None,
    ) -> None:
        self.timing = timing or Timing()
        self._agree, self._welcome = agree, welcome
        self._changed = Condition()
        self._members: dict[str, Member] = {}
        self._losses: deque[Arrival] = deque()
        self._refusing: set[str] = set()  # who has said that it does not join
        self.turns = count(1)
        self._next = 0
        self._beat = 0.0
        self.at_work_since: float | None = None
        self._settings = frame.encode(Message({}, settings or {})).tobytes()

    @property
    def present(self) -> tuple[str, ...]:
        """The clients that have a session."""
        with self._changed:
            return tuple(self._members)

    @property
    def members(self) -> tuple[Member, ...]:
        """The sessions there are, to be looked at alone."""
        with self._changed:
            return tuple(self._members.values())

    def revoked(self, clients: Collection[str]) -> set[str]:
        """Returns which of these clients may no longer join, as far as the lines tell."""
        return set()

    def ended(self) -> Mapping[str, RefusedError]:
        """Returns whose sessions may not go on, and why, as far as the lines tell."""
        return {}

    def greeting(self, client: str) -> Greeting:
        """Returns what a client said of itself when it joined.

        Raises:
            LineError: It is not there.
        """
        return self._member(client).greeting

    def session(self, client: str) -> str:
        """Returns a client's present session; empty if it is not there."""
        with self._changed:
            return self._members[client].session if client in self._members else ""

    def has_taken(self, client: str) -> bool:
        """Whether a client has taken all that it was sent; it may be gone."""
        with self._changed:
            return client not in self._members or self._members[client].link.delivered

    def bytes_sent(self, client: str) -> int:
        """Returns the bytes that were sent to a client in its session, headers and repetitions with them."""
        return self._member(client).link.bytes_sent

    def wait_for(self, clients: Collection[str], seconds: float) -> None:
        """Waits until clients are there, and still are; to be called while nobody is asked anything.

        Raises:
            LineError: One does not come in time.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while True:
                self._expire()
                self._let_go()
                if not (missing := set(clients) - self._members.keys()):
                    return
                if missing <= self._refusing | (revoked := self.revoked(missing)):
                    why = {"by a policy of their site": missing - revoked, "revoked": revoked}
                    told = [f"{reason}: {', '.join(sorted(who))}" for reason, who in why.items() if who]
                    code = "policy_refused" if missing - revoked else "revoked"
                    raise LineError(f"clients do not join this run, {'; '.join(told)}", code=code)
                if (now := time.monotonic()) >= until:
                    late = ", ".join(sorted(missing))
                    raise LineError(f"clients have not joined within {seconds:g} s: {late}", code="timed_out")
                self._wait(min(until, self._expiry()) - now)

    def send(self, client: str, header: Header, content: Frame) -> None:
        """Sends a client something of a turn, in which it is expected to say something; does not wait.

        Raises:
            LineError: The client is lost.
        """
        member = self._member(client)
        member.link.send(header, content)
        member.ask(header)

    def tell(self, client: str, header: Header, content: Frame) -> None:
        """Sends a client something that it need not answer; does not wait.

        Raises:
            LineError: The client is lost.
        """
        member = self._member(client)
        member.link.send(header, content)
        member.asked = member.task = None

    def receive(self, seconds: float, unless: Callable[[], bool] = lambda: False) -> Arrival | None:
        """Returns what comes next from any client, or the next one that is lost.

        While this waits, clients that wait too get signs of life.

        Args:
            seconds: How long to wait; none is returned after that.
            unless: What ends the wait as well; asked whenever something has happened on any line.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while True:
                self._expire()
                self._give_signs()  # whatever there is to be taken: a busy server is alive too
                if (found := self._taken()) is not None:
                    return found
                now = time.monotonic()
                if now >= until or unless():
                    return None
                self._wait(min(until, self._beat, self._expiry()) - now)

    def drop(self, client: str, error: FedstrataError) -> None:
        """Ends a client's session; it is told why, and may join again unless it is refused for good."""
        with self._changed:
            if (member := self._members.pop(client, None)) is not None:
                member.link.lose(error)
                self._changed.notify_all()

    def stop(self, seconds: float = 5.0, *, complete: bool = False) -> None:
        """Ends all sessions.

        Args:
            seconds: How long clients have to take what was sent to them.
            complete: Whether all is done that they came for; if not, they may expect the server to come back.
        """
        links = [self._member(client).link for client in self.present]
        for link in links:
            with suppress(FedstrataError):  # of a line that is over, whatever for
                link.send(Header(Kind.END), frame.encode(Message({}, {"complete": complete})))
        for link in links:
            link.flush(seconds)
        for client in self.present:
            self.drop(client, LineError("the server has ended"))
        self._close(seconds)

    @abstractmethod
    def _close(self, seconds: float) -> None:
        """Ends all connections; those that are under way have so many seconds."""

    def _member(self, client: str) -> Member:
        with self._changed:
            if client not in self._members:
                raise LineError(f"client {client!r} is not connected")
            return self._members[client]

    def _wait(self, seconds: float) -> None:
        self.at_work_since = None
        self._changed.wait(max(0.0, min(seconds, LONGEST_WAIT)))

    def _taken(self) -> Arrival | None:
        """Returns what comes next if something is there; clients take turns."""
        members = list(self._members.values())
        for step in range(len(members)):
            member = members[(self._next + step) % len(members)]
            if (item := member.link.take()) is not None:
                self._next = (self._next + step + 1) % len(members)
                try:
                    member.hear(item[0])
                except FedstrataError as error:
                    self._lose(member, error)
                    break
                return Arrival(member.client, member.session, *item)
        return self._losses.popleft() if self._losses else None

    def _let_go(self) -> None:
        """Loses those who have said that they leave, whatever else they have said before."""
        for member in list(self._members.values()):
            if member.link.holds(lambda header: header.kind == Kind.END):
                self._lose(member, LineError(f"client {member.client!r} has left", code="left"))

    def _expire(self) -> None:
        """Gives up those who are silent for too long; the first thing in every look at the lines."""
        self.at_work_since = now = time.monotonic()
        ended = self.ended()
        for member in list(self._members.values()):
            down = member.link.down_since
            if member.client in ended:
                self._lose(member, ended[member.client])
            elif member.link.error is not None:
                self._lose(member, member.link.error)
            elif down is not None and now - down >= self.timing.reconnect:
                message = f"has been without a connection for {self.timing.reconnect:g} s"
                self._lose(member, LineError(f"client {member.client!r} {message}"))
            elif member.is_late(self.timing, now):
                message = f"has not answered for {self.timing.answer:g} s"
                self._lose(member, LineError(f"client {member.client!r} {message}", code="timed_out"))

    def _give_signs(self) -> None:
        """Gives all clients a sign of life when one is due, in time for the one that gives up first."""
        now = time.monotonic()
        if now >= self._beat:
            members = self._members.values()
            self._beat = now + min([self.timing.answer, *(each.patience for each in members)]) / _BEATS
            for member in members:
                member.link.beat()

    def _expiry(self) -> float:
        """Returns when the next one is given up if nothing happens."""
        return min((member.expiry(self.timing) for member in self._members.values()), default=float("inf"))

    def _lose(self, member: Member, error: FedstrataError) -> None:
        if self._members.get(member.client) is member:
            del self._members[member.client]
        member.link.lose(error)
        self._losses.append(Arrival(member.client, member.session, lost=error))
        facts = {"event": "lost", "client": member.client}
        _logger.info("client %s is lost: %s", member.client, error, extra={"facts": facts})

    def _refuses(self, client: str) -> None:
        """Hears that a client has heard the settings and does not join."""
        with self._changed:
            self._refusing.add(client)
            self._changed.notify_all()

    def _admit(self, client: str, greeting: Greeting, session: str, shown: bytes = b"") -> Member:
        """Returns the session of a client that greets.

        Args:
            client: Who it is, beyond doubt.
            greeting: What it says of itself.
            session: The session that it says it has; empty for none.
            shown: What is kept of the token that it shows, if there are any.

        Raises:
            RefusedError: What it holds does not fit.
            LineError: Its session is over.
        """
        with self._changed:
            member = self._members.get(client)
            if session:
                if member is None or member.session != session:
                    raise LineError(
                        f"the session of client {client!r} is not known here; join again", code="session_over"
                    )
                return member
        agreement = self._agree(client, greeting)
        with self._changed:
            if (member := self._members.get(client)) is not None:
                message = f"another process has joined as client {client!r}"
                self._lose(member, RefusedError(message, code="replaced"))
            link = Link(
                agreement.largest, ahead=agreement.ahead, delay=self.timing.delay, changed=self._changed
            )
            new = Member(client, secrets.token_hex(16), greeting, agreement, link, shown)
            self._members[client] = new
            self._refusing.discard(client)
            self._beat = 0.0  # it may give up sooner than all others
            self._changed.notify_all()
            return new

    def _welcome_of(self, member: Member) -> bytes:
        """Returns the message with which a connection begins."""
        values: dict[str, JSON] = {
            "session": member.session,
            "arrived": member.link.arrived,
            **self._welcome(member.client),
        }
        return pack(Header(Kind.WELCOME), frame.encode(Message({}, values)).buffers())

    def _take_in(self, member: Member, connection: int, data: bytes) -> None:
        """Takes in what came on a connection.

        Raises:
            FrameError: It is not what was agreed; the session is over.
        """
        try:
            accept(member.link, connection, data, member.agreement)
        except FrameError as error:
            told = FrameError(f"client {member.client!r} sent what was not agreed: {error}", code=error.code)
            member.link.lose(told)
            raise told from None
