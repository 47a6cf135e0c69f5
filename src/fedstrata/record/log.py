"""The record of a run: one event a line, appended and flushed as things happen.

An event is a JSON object with `event`, `time` (UTC, ISO 8601) and the facts. The file is only ever appended
to: a resumed run adds a `resumed` event, and for a round that was run twice the later `round` event counts.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedstrata.core.errors import DataError
from fedstrata.core.files import errors_naming, hold, open_private

Listener = Callable[[str, Mapping[str, Any]], None]
"""Told `(event, facts)` as a run goes on."""


class LineLog:
    """A file to which whole lines are appended; no other process writes to it as long as it is open.

    Args:
        path: The file.

    Raises:
        ConfigurationError: Another process writes to it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, open_private(path, "ab", 0)
        hold(self._file, f"another process is at work on the run in {path.parent}")

    def write(self, line: bytes, *, durable: bool) -> None:
        """Appends a line.

        Args:
            line: Its bytes, without the line break.
            durable: Whether they must be on disk, and not only with the operating system, before this
                returns.
        """
        left = memoryview(line + b"\n")
        with errors_naming(self._path, self._path):
            while left:
                left = left[self._file.write(left) :]
            if durable:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class RecordLog(LineLog):
    """Appends events to a JSONL file.

    Args:
        path: The file; a line that a killed run left half-written is closed before the next one, so that it
            does not spoil it.

    Raises:
        ConfigurationError: Another process writes to it.
    """

    def __init__(self, path: Path) -> None:
        self._torn = _is_torn(path)
        super().__init__(path)

    def append(self, event: str, facts: Mapping[str, Any], *, durable: bool = False) -> None:
        """Appends one event.

        Args:
            event: Its kind.
            facts: What is to be known of it.
            durable: Whether it must be on disk, and not only with the operating system, before this returns.

        Raises:
            ValueError: A fact is not JSON; NaN is not.
        """
        line = {"event": event, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **facts}
        text = "\n" * self._torn + json.dumps(line, allow_nan=False)
        self.write(text.encode(), durable=durable)
        self._torn = False


def read_events(path: Path) -> list[dict[str, Any]]:
    """Returns the events of a record, none if there is none; half-written and damaged lines are left out."""
    return _parse(path.read_bytes()) if path.is_file() else []


@contextmanager
def as_written(record: Path) -> Iterator[None]:
    """Within it, the events of a record are taken to have the facts that are always written.

    Raises:
        DataError: One has not.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError):
        raise DataError(record, "a line of it is not as it was written", code="damaged") from None


class Follower:
    """Reads a record while another process writes it.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """Returns the events written since the last call; a line still being written comes later."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        return _parse(complete)


def _parse(text: bytes) -> list[dict[str, Any]]:
    events = []
    for line in text.split(b"\n"):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        known = isinstance(event, dict) and isinstance(event.get("event"), str)
        if known and isinstance(event.get("round", 0), int) and _is_moment(event.get("time")):
            events.append(event)
    return events


def _is_moment(time: Any) -> bool:
    """Whether something that a line says is a time; a line may say none."""
    try:
        return time is None or bool(datetime.fromisoformat(time))
    except (ValueError, TypeError):
        return False


def committed_rounds(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns one `round` event for each round, the last one recorded, in order."""
    rounds = {event["round"]: event for event in events if event["event"] == "round"}
    return [rounds[number] for number in sorted(rounds)]


def _is_torn(path: Path) -> bool:
    """Whether a file's last line was not written to its end; nothing else of it is read."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
