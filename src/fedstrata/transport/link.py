"""One end of a line that outlives its connections; the same on both sides, and it knows nothing of gRPC.

Every message has a number. What is sent is kept until the other end says that it was taken, and after a new
connection everything behind the last number that arrived there is sent again. What arrives a second time is
dropped. An end that takes nothing is not sent more than a window holds, so memory is bounded on both sides.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Condition, Lock

from fedstrata.core.errors import FedstrataError, FrameError, LineError
from fedstrata.transport.header import Header, Kind, pack
from fedstrata.wire.frame import Frame

WINDOW = 64
"""Messages that may be on the way, or lie at the other end without having been taken; see `ahead` too."""
_SELDOM = 8
"""Messages that are taken before that is said, if there is nothing else to say."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message that may have to be sent again; it travels no earlier than `ready`."""

    sequence: int
    acknowledged: int
    data: bytes
    ready: float


class Link:
    """One end.

    Args:
        limit: Bytes that a message may have.
        ahead: Messages of so many bytes that may be on the way, or lie at the other end without having been
            taken; the same number at both ends.
        delay: Seconds for which every message is held back, for experiments with slow networks; who sends
            does not wait.
        changed: Notified of everything that happens; several links may share one.

    Attributes:
        changed: What to wait for.
        error: Why the line is over; none as long as it is not.
        heard: When the other end last gave a sign of life, by `time.monotonic`.
        down_since: Since when there has been no connection; none while there is one.
        bytes_sent: Bytes of all that was sent, headers and what was sent again with them.
    """

    def __init__(
        self, limit: int, *, ahead: int = 2, delay: float = 0.0, changed: Condition | None = None
    ) -> None:
        self.changed = changed or Condition()
        self.error: FedstrataError | None = None
        self.heard = time.monotonic()
        self.down_since: float | None = self.heard
        self.bytes_sent = 0
        self._limit, self._delay = limit, delay
        self._window, self._ahead = max(WINDOW, ahead), ahead * limit  # in messages, in bytes
        self._sending = Lock()
        self._outgoing: deque[_Sent] = deque()
        self._inbox: deque[tuple[Header, Frame, int]] = deque()
        self._sent = self._arrived = self._taken = self._told = 0
        self._taken_bytes = 0  # since it was last said how much was taken
        self._connection = self._connections = self._position = 0
        self._beat = False

    @property
    def arrived(self) -> int:
        """The number of the last message that arrived."""
        return self._arrived

    def holds(self, wanted: Callable[[Header], bool]) -> bool:
        """Whether something has arrived that is wanted, by its header, and was not yet taken."""
        with self.changed:
            return any(wanted(header) for header, _, _ in self._inbox)

    @property
    def delivered(self) -> bool:
        """Whether the other end has taken all that was sent, as far as it has said so."""
        return not self._outgoing

    @property
    def idle(self) -> bool:
        """Whether all that was sent has left, or the connection is gone on which it could."""
        gone = self.down_since is not None and self._connections > 0  # and not: yet to come
        return self._position == self._sent or gone

    def send(self, header: Header, frame: Frame, *, wait: float = 0.0) -> None:
        """Sends a message, now or once there is a connection.

        Args:
            header: Its header; the numbers are filled in.
            frame: Its content; copied, so that its tensors may change.
            wait: Seconds to wait until the other end has taken enough of what it was sent before.

        Raises:
            LineError: It does not, or the line is over, or the message is too large.
        """
        if frame.nbytes > self._limit:
            raise LineError(
                f"a message of {frame.nbytes} bytes is larger than the {self._limit} that were agreed",
                code="too_large",
            )
        with self._sending:
            with self.changed:
                free = self.changed.wait_for(lambda: self.error or self._has_room(frame.nbytes), wait)
                self._raise_error()
                if not free:
                    raise LineError(
                        f"the other side does not take what it is sent: {len(self._outgoing)} messages wait",
                        code="not_taken",
                    )
                sequence, taken = self._sent + 1, self._taken
            numbered = replace(header, sequence=sequence, acknowledged=taken)
            data = pack(numbered, frame.buffers())
            with self.changed:
                self._sent = sequence
                self._outgoing.append(_Sent(sequence, taken, data, time.monotonic() + self._delay))
                self.changed.notify_all()

    def receive(self, wait: float) -> tuple[Header, Frame] | None:
        """Returns the next message; none if none comes while the other end is silent for so many seconds.

        Raises:
            LineError: The line is over.
        """
        with self.changed:
            started = time.monotonic()
            while not self._inbox:
                self._raise_error()
                left = max(self.heard, started) + wait - time.monotonic()
                if left <= 0:
                    return None
                self.changed.wait(left)
            return self.take()

    def take(self) -> tuple[Header, Frame] | None:
        """Returns the next message if there is one."""
        with self.changed:
            if not self._inbox:
                return None
            header, frame, size = self._inbox.popleft()
            self._taken += 1
            self._taken_bytes += size
            self.changed.notify_all()
            return header, frame

    def flush(self, wait: float) -> None:
        """Waits until all that was sent has left, or the connection is gone on which it could."""
        with self.changed:
            self.changed.wait_for(lambda: self.idle or self.error, wait)

    def beat(self) -> None:
        """Gives a sign of life."""
        with self.changed:
            self._beat = True
            self.changed.notify_all()

    def lose(self, error: FedstrataError) -> None:
        """Ends the line; what has arrived can still be taken."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def connect(self, arrived: int) -> int:
        """Begins with a new connection; one that there was is over.

        Args:
            arrived: The last message that arrived at the other end.

        Returns:
            The number of the connection, for the other methods.

        Raises:
            FrameError: It was never sent, or is no longer here.
        """
        with self.changed:
            first = self._outgoing[0].sequence if self._outgoing else self._sent + 1
            if not first - 1 <= arrived <= self._sent:
                raise FrameError(
                    f"cannot go on behind message {arrived}: {first} to {self._sent} are here",
                    code="out_of_order",
                )
            self._connections += 1
            self._connection, self.down_since, self.heard = self._connections, None, time.monotonic()
            self._position = arrived
            self.changed.notify_all()
            return self._connection

    def disconnect(self, connection: int) -> None:
        """Hears that a connection is over; of one that has a successor this is nothing new."""
        with self.changed:
            if self._connection == connection:
                self._connection, self.down_since = 0, time.monotonic()
                self.changed.notify_all()

    def outgoing(self, connection: int) -> Iterator[list[bytes]]:
        """Yields what is to travel on a connection, as long as there is one and the line is not over.

        Each message lies in a list, out of which it is to be taken: gRPC keeps what it is given, one for each
        client, until there is something else to send.
        """
        while (data := self._next(connection)) is not None:
            self.bytes_sent += len(data)
            message = [data]
            del data
            yield message

    def come(self, connection: int, header: Header, frame: Frame | None, size: int) -> None:
        """Takes in what came on a connection.

        Args:
            connection: Its number; what comes on one that is over counts for nothing.
            header: The message's header.
            frame: Its content, if it is numbered.
            size: Its bytes.

        Raises:
            FrameError: A message is missing before it, or too many have not been taken.
        """
        with self.changed:
            if connection != self._connection:
                return
            self.heard = time.monotonic()
            self._forget(header.acknowledged)
            if header.sequence > self._arrived and frame is not None:
                if header.sequence != self._arrived + 1:
                    raise FrameError(
                        f"message {header.sequence} came behind {self._arrived}", code="out_of_order"
                    )
                held = sum(own for _, _, own in self._inbox)
                # Half as much again: who sends counts content alone, and what is taken is said later.
                if len(self._inbox) >= 2 * self._window or held + size > self._ahead + self._limit:
                    message = f"{len(self._inbox)} messages of {held} bytes came that nobody has taken"
                    raise FrameError(message, code="not_taken")
                self._arrived = header.sequence
                self._inbox.append((header, frame, size))
            self.changed.notify_all()

    def _next(self, connection: int) -> bytes | None:
        with self.changed:
            while self._connection == connection and self.error is None:
                index = self._position + 1 - self._outgoing[0].sequence if self._outgoing else 0
                entry = self._outgoing[index] if index < len(self._outgoing) else None
                wait = entry.ready - time.monotonic() if entry else None
                if entry and wait is not None and wait <= 0:
                    self._position = entry.sequence
                    self.changed.notify_all()
                    self._tell(entry.acknowledged)
                    return entry.data
                owed = self._taken - self._told >= _SELDOM or self._taken_bytes > self._limit // 4
                if owed or self._beat:
                    self._beat = False
                    self._tell(self._taken)
                    return pack(Header(Kind.ALIVE, acknowledged=self._taken))
                self.changed.wait(wait)
            return None

    def _tell(self, taken: int) -> None:
        self._told = max(self._told, taken)
        if self._told == self._taken:
            self._taken_bytes = 0

    def _forget(self, acknowledged: int) -> None:
        if acknowledged > self._sent:
            raise FrameError(
                f"message {acknowledged} was taken there, but {self._sent} was the last one here",
                code="out_of_order",
            )
        while self._outgoing and self._outgoing[0].sequence <= acknowledged:
            self._outgoing.popleft()

    def _has_room(self, size: int) -> bool:
        held = sum(len(each.data) for each in self._outgoing)
        return not self._outgoing or (len(self._outgoing) < self._window and held + size <= self._ahead)

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error
