"""Clients that talk with the server's half of a method, in one process.

Every message passes through a frame and is counted. One client runs at a time and hands over only while it
waits for a message, to the next in order that can go on: the same messages come in the same order every time,
and torch's global generators are each client's own. Clients that need not be there at once run one after the
other, without threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Semaphore, Thread
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedstrata.client.turn import Failed
from fedstrata.core.cohort import Service
from fedstrata.core.errors import LineError
from fedstrata.core.types import Message
from fedstrata.wire import frame
from fedstrata.wire.meter import Meter

Result = TypeVar("Result")
NOBODY = "the server waits for messages that no client is going to send"


@dataclass
class SimulatedLine:
    """One client's line; implements `core.client.Line`.

    Attributes:
        client: Whose it is.
        conversation: What it is part of.
        inbox: What has been said to the client and not yet received.
        waited: Seconds in which not the client was at work but the server or other clients.
    """

    client: str
    conversation: Conversation
    inbox: deque[Message] = field(default_factory=deque)
    waited: float = 0.0

    def send(self, message: Message) -> None:
        """Sends a message; what the server says to it is in the inboxes when this returns."""
        started = time.perf_counter()
        self.conversation.heard(self.client, message)
        self.waited += time.perf_counter() - started

    def receive(self) -> Message:
        """Waits for the next message.

        Raises:
            LineError: Nobody is left who could bring it about.
        """
        if not self.inbox:
            started = time.perf_counter()
            self.conversation.wait(self)
            self.waited += time.perf_counter() - started
        if not self.inbox:
            raise LineError(NOBODY)
        return self.inbox.popleft()


@dataclass
class TimedService:
    """The server's half of a method, whose work is timed; implements `core.cohort.Service`.

    Attributes:
        service: The server's half.
        worked: Told the seconds of each piece of its work, without those in which its answers travel.
        device: Where it works.
        together: Whether all clients must be there at once.
        ordered: Whether each client must end before the next.
    """

    service: Service
    worked: Callable[[float], None]
    device: torch.device
    together: bool = field(init=False)
    ordered: bool = field(init=False)

    def __post_init__(self) -> None:
        self.together, self.ordered = self.service.together, self.service.ordered

    def hear(self, client: str, message: Message) -> Iterator[tuple[str, Message]]:
        """Takes a client's message; yields what is now said, and to whom."""
        return self._timed(lambda: self.service.hear(client, message))

    def leave(self, client: str, *, lost: bool = False) -> Iterator[tuple[str, Message]]:
        """Hears that a client has no more to say; yields what is now said to others."""
        return self._timed(lambda: self.service.leave(client, lost=lost))

    def _timed(self, say: Callable[[], Iterable[tuple[str, Message]]]) -> Iterator[tuple[str, Message]]:
        answers: Iterator[tuple[str, Message]] | None = None
        while True:
            started = time.perf_counter()
            try:
                answers = iter(say()) if answers is None else answers
                answer = next(answers, None)
            finally:
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)  # what was asked of it is done before the clock stops
                self.worked(time.perf_counter() - started)
            if answer is None:
                return
            yield answer


class Conversation:
    """The lines of all clients of a round to one service.

    Args:
        service: The server's half.
        meter: Counts what travels.
    """

    def __init__(self, service: Service, meter: Meter) -> None:
        self._service, self._meter = service, meter
        self._lines: dict[str, SimulatedLine] = {}
        self._turns: dict[str, _Turn[Any]] = {}

    def hold(
        self, work: Iterable[tuple[str, Callable[[SimulatedLine], Result]]]
    ) -> Iterator[tuple[str, Result]]:
        """Runs what clients do, and yields what that returns: in order, but for failures, which come at once.

        An exception of one ends all; it is raised here.

        Args:
            work: What each client does with its line. Where not all must be there at once it is asked for one
                after the other.
        """
        if not self._service.together:
            for client, begin in work:
                self._lines = {client: SimulatedLine(client, self)}
                result = begin(self._lines[client])
                if isinstance(result, Failed):
                    yield client, result
                self._say(self._service.leave(client, lost=isinstance(result, Failed)))
                if not isinstance(result, Failed):
                    yield client, result
            return
        turns = {client: _Turn(begin, SimulatedLine(client, self)) for client, begin in work}
        self._lines = {client: turn.line for client, turn in turns.items()}
        self._turns = dict(turns)
        yield from self._take_turns()
        for client, turn in turns.items():
            if not isinstance(turn.result, Failed):
                yield client, turn.result

    def heard(self, client: str, message: Message) -> None:
        """Brings a client's message to the service, and its answers to the lines."""
        sent = frame.encode(message)
        self._meter.count_said(client, sent, up=True)
        self._say(self._service.hear(client, frame.decode(sent, Message)))

    def wait(self, line: SimulatedLine) -> None:
        """Lets others go on until there is a message on the line, or nobody who could go on."""
        if turn := self._turns.get(line.client):
            turn.hand_over()

    def _say(self, answers: Iterable[tuple[str, Message]]) -> None:
        for client, message in answers:
            sent = frame.encode(message)
            self._meter.count_said(client, sent, up=False)
            if client in self._lines:
                self._lines[client].inbox.append(frame.decode(sent, Message))

    def _take_turns(self) -> Iterator[tuple[str, Any]]:
        """Lets clients go on, one at a time, until all have ended, and yields those that fail.

        An error of one ends all.
        """
        try:
            while pending := [turn for turn in self._turns.values() if not turn.ended]:
                able = [turn for turn in pending if turn.able]
                for turn in able or pending:  # with nobody able, each wakes up to find that nothing came
                    turn.go_on()
                    if turn.ended:
                        yield from self._ended(turn)
        finally:
            for turn in self._turns.values():
                turn.break_off()

    def _ended(self, turn: _Turn[Any]) -> Iterator[tuple[str, Any]]:
        """Tells the service that a client has ended."""
        if turn.error is not None:
            raise turn.error
        client, lost = turn.line.client, isinstance(turn.result, Failed)
        if lost:
            yield client, turn.result
        self._say(self._service.leave(client, lost=lost))


class _BrokenOff(BaseException):
    """The conversation is over; no failure of the client that hears it."""


class _Turn(Generic[Result]):
    """One client's thread, which runs only between `go_on` and the next `hand_over`."""

    def __init__(self, work: Callable[[SimulatedLine], Result], line: SimulatedLine) -> None:
        self.line, self.ended = line, False
        self.error: BaseException | None = None
        self.result: Result
        self._work, self._random = work, _random_state()
        self._mine, self._theirs = Semaphore(0), Semaphore(0)
        self._thread: Thread | None = None
        self._broken_off = False

    @property
    def able(self) -> bool:
        """Whether the client has something to do: it has not begun, or a message has come."""
        return self._thread is None or bool(self.line.inbox)

    def go_on(self) -> None:
        """Lets the client run until it waits or has ended; called by the one who deals out turns."""
        before = _random_state()
        _set_random_state(self._random)
        if self._thread is None:
            self._thread = Thread(target=self._run, name=f"client {self.line.client}", daemon=True)
            self._thread.start()
        else:
            self._mine.release()
        self._theirs.acquire()
        self._random = _random_state()
        _set_random_state(before)

    def hand_over(self) -> None:
        """Stops the client until it is let go on; called by its thread."""
        self._theirs.release()
        self._mine.acquire()
        if self._broken_off:
            raise _BrokenOff

    def break_off(self) -> None:
        """Ends the client where it waits, if it does: nobody will let it go on, and it holds a model."""
        if self._thread is not None and not self.ended:
            self._broken_off = True
            self.go_on()
            self.error = None

    def _run(self) -> None:
        try:
            self.result = self._work(self.line)
        except BaseException as error:  # raised again where turns are dealt out
            self.error = error
        finally:
            self.ended = True
            self._theirs.release()


def _random_state() -> list[Tensor]:
    """Returns the states of torch's global generators, the processor's first."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())]


def _set_random_state(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
