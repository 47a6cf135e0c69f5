"""Checkpoints and client stores: what a resumed run needs, and nothing is ever half-written.

A round is committed when its event is in the record, which is after its checkpoint was renamed into place.
Client stores are written under the number of the round that wrote them, so a run killed within a round
finds, for every client, the store of the last committed round.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from urllib.parse import quote

from fedstrata.core.errors import FedstrataError, FrameError
from fedstrata.core.files import TEMPORARY
from fedstrata.core.types import Message, State
from fedstrata.wire import frame

KEEP = 2
"""Old versions that are kept: the newest may be the one under which the machine died."""

LONGEST_NAME = 255
"""Bytes that the name of a file or folder may have on every common file system."""


class Checkpoints:
    """The committed rounds of a run.

    Args:
        folder: `RUN/checkpoints`; made when needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rounds(self) -> list[int]:
        """Returns the numbers of the rounds that have a checkpoint, oldest first."""
        return sorted(_number(path) for path in self._folder.glob("round-*.safetensors"))

    def save(self, number: int, state: State) -> None:
        """Writes the state after a round; the round is committed once its event is in the record."""
        self._folder.mkdir(parents=True, exist_ok=True)
        frame.encode(state).write(self._path(number))

    def prune(self) -> None:
        """Removes all but the newest checkpoints; to be called after a round is committed."""
        for old in self.rounds()[:-KEEP]:
            self._path(old).unlink()

    def load(self, committed: int) -> tuple[int, State]:
        """Returns the newest readable checkpoint of a committed round, and that round.

        Args:
            committed: The last round whose event is in the record.

        Raises:
            FedstrataError: None of them can be read.
        """
        failures = []
        for number in sorted((number for number in self.rounds() if number <= committed), reverse=True):
            try:
                return number, frame.decode(frame.read(self._path(number)), State)
            except FrameError as error:
                failures.append(str(error))
        there = ", ".join(map(str, self.rounds())) or "none"
        reasons = "; ".join(failures) or f"{self._folder} holds those of rounds: {there}"
        raise FedstrataError(f"no checkpoint up to round {committed} can be read: {reasons}")

    def _path(self, number: int) -> Path:
        return self._folder / f"round-{number:05d}.safetensors"


class ClientStore:
    """One client's private tensors on disk.

    Args:
        folder: `RUN/clients/ID`; made when first written.
        number: The round under way.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number

    def read(self) -> Message:
        """Returns the newest version up to the round under way; an empty message at first."""
        versions = [number for number in self._versions() if number <= self._number]
        if not versions:
            return Message()
        return frame.decode(frame.read(self._path(versions[-1])), Message)

    def write(self, message: Message) -> None:
        """Writes this round's version and removes those no resumed run can need."""
        self._folder.mkdir(parents=True, exist_ok=True)
        frame.encode(message).write(self._path(self._number))
        older = [number for number in self._versions() if number < self._number]
        for number in older[:-KEEP]:
            self._path(number).unlink()

    def discard(self) -> None:
        """Removes what was written in the round under way, so that the version before it counts."""
        if self._number in self._versions():
            self._path(self._number).unlink()

    def discard_after(self, committed: int) -> None:
        """Removes what is later than a run's last committed round, or half-written."""
        for path in self._folder.glob(f".*{TEMPORARY}"):
            path.unlink()
        for number in self._versions():
            if number > committed:
                self._path(number).unlink()

    def _versions(self) -> list[int]:
        return sorted(_number(path) for path in self._folder.glob("store-*.safetensors"))

    def _path(self, number: int) -> Path:
        return self._folder / f"store-{number:05d}.safetensors"


def discard_uncommitted(run: Path, committed: int) -> None:
    """Removes, before a run is resumed, what is later than its last committed round or half-written."""
    for path in (*run.rglob(f".*{TEMPORARY}"), *run.rglob(".saving-*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for folder in run.glob("clients/*"):
        ClientStore(folder, committed).discard_after(committed)


def client_folder(run: Path, client: str) -> Path:
    """Returns a client's folder; a name that is no safe file name is percent-encoded, and cut if too long."""
    name = quote(client, safe=" ")
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(client.encode()).hexdigest()
        name = f"{name[: LONGEST_NAME - 1 - len(digest)]}+{digest}"  # no plus sign is left by the encoding
    return run / "clients" / (name.replace(".", "%2E") if set(name) == {"."} else name)


def home_of(home: Path, run: object) -> Path:
    """Returns the folder of what clients on this machine keep of one run.

    Args:
        home: Of all runs.
        run: The run's id, as a server says it; none for a simulated run, whose own directory `home` is.

    Raises:
        FrameError: It is no id.
    """
    if run is None:
        return home
    if not isinstance(run, str) or not re.fullmatch(r"[0-9a-f]{16}", run):
        raise FrameError(f"the server says run={run!r}, which is no id of 16 hexadecimal digits")
    return home / f"run-{run}"


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
