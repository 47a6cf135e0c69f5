"""`egress.jsonl`: a line for everything that leaves a client, on its disk before the bytes are on their way.

What a line holds is in docs/ledger.md, and how it is read and checked in `privacy.ledger_verification`. A
client that is a process of its own writes durably: whatever kills it, at least what was sent stands in its
ledger. In a simulation nothing leaves the machine, so there a line is only handed to the operating system.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.core.client import Line as ClientLine
from fedstrata.core.errors import refused
from fedstrata.core.files import keep_names, private_folder
from fedstrata.core.types import JSON, Message, Update
from fedstrata.privacy.ledger_verification import (
    LEDGER,
    NOTHING,
    VERSION,
    Line,
    canonical,
    hash_of_line,
)
from fedstrata.record.log import LineLog
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

UNPROTECTED = "none"
LOCAL = "local differential privacy"
JOINT = "joint differential privacy"
SEEDED = f"{UNPROTECTED}: noise from the run's seed, an experiment"
MASKED = "secure aggregation"
EXCHANGED = "keys, sealed shares or signatures of secure aggregation"
"""Kinds of protection; there may be others. What begins as the first protects nobody."""
_LONGEST_VALUE = 200
"""Characters of a value that stands in a line as it is."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn something is sent in, and which.

    Attributes:
        client: The client.
        run: The id of the run; none in a simulation, and where nobody has said it yet.
        round: The round; 0 for what belongs to none.
        handler: What runs at the client.
        call: How often that was called in the round.
    """

    client: str
    run: str | None = None
    round: int = 0
    handler: str = ""
    call: int = 0


def masked(protection: str) -> str:
    """Returns the protection of what has masks over one that it has already."""
    return MASKED if protection == UNPROTECTED else f"{MASKED}; {protection}"


class Ledger:
    """Takes down what a client sends in one turn; a context manager that lets go of the file.

    Args:
        folder: The client's; made, like the file, for the first line.
        turn: The turn.
        durable: Whether a line must be on disk, and not only with the operating system, before its bytes
            leave.
        hashed: Whether lines hold the hash of what is sent: not in a simulation, where nothing leaves and
            nobody signs, and hashing takes several times as long as adding the update to the mean.
    """

    def __init__(self, folder: Path, turn: Turn, *, durable: bool, hashed: bool = True) -> None:
        self._path, self._turn, self._durable = folder / LEDGER, turn, durable
        self._hashed = hashed
        self._log: LineLog | None = None
        self._number, self._before = 0, NOTHING
        self._sent: dict[tuple[Any, ...], int] = {}

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def append(
        self,
        what: str,
        message: Message,
        sent: Frame,
        protection: str = UNPROTECTED,
        epsilon: float | None = None,
    ) -> None:
        """Takes down what is about to be sent; what was sent before in the same turn is told as such.

        Args:
            what: Its kind: an update, a message, a greeting, scores, a failure.
            message: What is sent.
            sent: The same as a frame.
            protection: How it is protected.
            epsilon: What the client has spent with it; none where nothing bounds it.

        Raises:
            ConfigurationError: The ledger cannot be gone on with, or another process writes to it.
        """
        log = self._log or self._open()
        line: dict[str, Any] = {
            "version": VERSION,
            "number": self._number + 1,
            "before": self._before,
            "client": self._turn.client,
            "run": self._turn.run,
            "round": self._turn.round,
            "handler": self._turn.handler,
            "call": self._turn.call,
            "what": what,
            "frame": sent.sha256() if self._hashed else None,
            "bytes": sent.nbytes,
            "tensors": {
                name: [frame.name_of(each.dtype), [*each.shape], each.nbytes]
                for name, each in message.tensors.items()
            },
            "values": _values_of(message),
            "protection": protection,
            "epsilon": epsilon,
        }
        line["again"] = self._sent.get(_key(line)) if self._hashed else None
        line["hash"] = hash_of_line(line)
        try:
            log.write(canonical(line), durable=self._durable)
        except BaseException:  # half of it may be there, which is cut off when the file is opened again
            self.__exit__()
            raise
        self._note(line)
        self._number, self._before = line["number"], line["hash"]

    def head(self) -> str:
        """Returns the hash of the last line; zeros where there is none.

        Raises:
            ConfigurationError: The ledger cannot be gone on with, or another process writes to it.
        """
        if self._log is None and self._path.exists():
            self._open()
        return self._before

    def line(self, line: ClientLine) -> RecordedLine:
        """Returns a client's line to the server on which all that it says is taken down first."""
        return RecordedLine(line, lambda message, sent: self.append("message", message, sent))

    def _open(self) -> LineLog:
        """Opens the file; a line that was never written to its end is cut off, as nothing has left for it."""
        if begun := not self._path.exists():
            private_folder(self._path.parent)
        log = LineLog(self._path)
        try:
            if begun and self._durable:
                keep_names(self._path.parent)
            self._go_on()
        except BaseException:
            log.close()
            raise
        self._log = log
        return log

    def _go_on(self) -> None:
        """Finds the end of the last whole line; what lies behind it is cut off."""
        with self._path.open("r+b") as file:
            if not file.seek(0, 2):
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                end = text.rfind(b"\n") + 1
                self._look_back(text, end)
            if end < file.tell():
                file.truncate(end)

    def _look_back(self, text: mmap.mmap, end: int) -> None:
        """Learns where the chain is, and what of this round was sent already, from the last lines."""
        last = True
        while end:
            start = text.rfind(b"\n", 0, end - 1) + 1
            try:
                line = json.loads(text[start : end - 1])  # the whole of it is for whoever verifies
                if last:
                    self._number, self._before, last = int(line["number"]), str(line["hash"]), False
                if line["round"] < self._turn.round:
                    return
                self._note(line)
            except (ValueError, LookupError, TypeError, RecursionError):
                message = (
                    f"{self._path} is damaged: see fedstrata ledger verify {self._path}, and move it away"
                )
                raise refused("", message, "damaged") from None
            end = start

    def _note(self, line: Line) -> None:
        """Remembers the first line of what was sent."""
        self._sent[_key(line)] = line["again"] or line["number"]


@dataclass
class RecordedLine:
    """A client's line to the server that takes down what is said; implements `core.client.Line`.

    Attributes:
        line: What the messages go over.
        append: Takes one down.
    """

    line: ClientLine
    append: Callable[[Message, Frame], None]

    def send(self, message: Message) -> None:
        """Sends a message."""
        sent = frame.encode(message)
        self.append(message, sent)
        self.line.send(frame.decode(sent, Message))  # nothing is copied from a GPU twice

    def receive(self) -> Message:
        """Waits for the next message.

        Raises:
            LineError: None will come.
        """
        return self.line.receive()


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("what", "run", "round", "handler", "call", "frame"))


def _values_of(message: Message) -> dict[str, JSON]:
    """Returns what a message says beside its tensors, by name; what is long by its length alone."""
    values = {name: _shortened(value) for name, value in message.values.items()}
    return values | {"weight": message.weight} if isinstance(message, Update) else values


def _shortened(value: JSON) -> JSON:
    length = len(json.dumps(value))
    return value if length <= _LONGEST_VALUE else f"{length} characters of JSON"
