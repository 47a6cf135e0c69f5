"""What a client keeps between rounds, and where: nothing of it ever travels, or is ever half-written.

A store is written under the number of the round that wrote it, so that after a round that does not count, a
killed one for instance, the store of the last committed round is there.
"""

import hashlib
import logging
import re
from pathlib import Path
from urllib.parse import quote

from fedstrata.core.errors import FrameError
from fedstrata.core.files import TEMPORARY, private_folder
from fedstrata.core.types import Message
from fedstrata.wire import frame

logger = logging.getLogger(__name__)

KEEP = 2
"""Old versions that are kept: the newest may be the one under which the machine died."""

LONGEST_NAME = 255
"""Bytes that the name of a file or folder may have on every common file system."""


class ClientStore:
    """One client's private tensors on disk.

    Args:
        folder: `RUN/clients/ID`; made when first written.
        number: The round under way.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number

    def read(self) -> Message:
        """Returns the newest version up to the round under way; an empty message at first.

        In place of a damaged one of a round before stands, with a warning, the one before that: better what a
        client had a round ago than a client that fails from now on.

        Raises:
            FrameError: No version can be read, or not what was written in the round under way.
        """
        damaged: list[FrameError] = []
        for number in reversed(self._usable()):
            try:
                message = self._read(number)
            except FrameError as error:
                if number == self._number:
                    raise
                damaged.append(error)
            else:
                for each in damaged:
                    logger.warning("%s; what the client kept in round %d stands in for it", each, number)
                return message
        if damaged:
            raise damaged[0]
        return Message()

    def require_whole(self) -> None:
        """Checks what `read` would return.

        Raises:
            FrameError: It is damaged, whatever could stand in for it.
        """
        for number in self._usable()[-1:]:
            self._read(number)

    def write(self, message: Message) -> None:
        """Writes this round's version and removes those no resumed run can need."""
        private_folder(self._folder)
        frame.encode(message).write(self._path(self._number))
        older = [number for number in self._versions() if number < self._number]
        for number in older[:-KEEP]:
            self._path(number).unlink()

    @property
    def version(self) -> tuple[int, int] | None:
        """What tells the version of the round under way from any other; none where it has written none."""
        if self._number not in self._versions():
            return None
        facts = self._path(self._number).stat()
        return facts.st_ino, facts.st_mtime_ns

    def discard(self) -> None:
        """Removes what was written in the round under way, so that the version before it counts.

        What a process that was killed has written by half goes, too.
        """
        self._remove_half_written()
        if self._number in self._versions():
            self._path(self._number).unlink()

    def discard_after(self, committed: int) -> None:
        """Removes what is later than a run's last committed round, or half-written."""
        self._remove_half_written()
        for number in self._versions():
            if number > committed:
                self._path(number).unlink()

    def _remove_half_written(self) -> None:
        for path in self._folder.glob(f".*{TEMPORARY}"):
            path.unlink()

    def _read(self, number: int) -> Message:
        return frame.decode(frame.read(self._path(number)), Message)

    def _usable(self) -> list[int]:
        return [number for number in self._versions() if number <= self._number]

    def _versions(self) -> list[int]:
        return versions_in(self._folder, "store")

    def _path(self, number: int) -> Path:
        return self._folder / f"store-{number:05d}.safetensors"


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
        message = f"the server says run={run!r}, which is no id of 16 hexadecimal digits"
        raise FrameError(message, code="wrong_form")
    return home / f"run-{run}"


def versions_in(folder: Path, kind: str) -> list[int]:
    """Returns the numbers of the rounds of which a folder has a file of this kind, oldest first."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{kind}-*.safetensors"))
