"""Checkpoints: what a resumed run needs, and nothing is ever half-written.

A round is committed when its event is in the record, which is after its checkpoint was renamed into place.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from fedstrata.client.store import KEEP, ClientStore, client_folder, versions_in
from fedstrata.core.errors import FedstrataError, FrameError
from fedstrata.core.files import TEMPORARY, private_folder
from fedstrata.core.types import State
from fedstrata.wire import frame


class Checkpoints:
    """The committed rounds of a run.

    Args:
        folder: `RUN/checkpoints`; made when needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rounds(self) -> list[int]:
        """Returns the numbers of the rounds that have a checkpoint, oldest first."""
        return versions_in(self._folder, "round")

    def save(self, number: int, state: State) -> None:
        """Writes the state after a round; the round is committed once its event is in the record."""
        private_folder(self._folder)
        frame.encode(state).write(self._path(number))

    def prune(self) -> None:
        """Removes all but the newest checkpoints; to be called after a round is committed."""
        for old in self.rounds()[:-KEEP]:
            self._path(old).unlink()

    def load(self, committed: int) -> tuple[int, State]:
        """Returns the newest readable checkpoint of a committed round, and that round.

        What clients here kept in that round must be readable too, or the run would go on to other numbers.

        Args:
            committed: The last round whose event is in the record.

        Raises:
            FedstrataError: There is none.
        """
        failures = []
        for number in sorted((number for number in self.rounds() if number <= committed), reverse=True):
            try:
                state = frame.decode(frame.read(self._path(number)), State)
                for client in sorted(self._folder.parent.glob("clients/*")):
                    ClientStore(client, number).require_whole()
                return number, state
            except FrameError as error:
                failures.append(str(error))
        there = ", ".join(map(str, self.rounds())) or "none"
        reasons = "; ".join(failures) or f"{self._folder} holds those of rounds: {there}"
        message = f"the run cannot go on from any round up to {committed}: {reasons}"
        raise FedstrataError(message, code="unreadable" if failures else "not_found")

    def _path(self, number: int) -> Path:
        return self._folder / f"round-{number:05d}.safetensors"


def discard_uncommitted(run: Path, committed: int, counted: Iterable[str] = ()) -> None:
    """Removes, before a run is resumed, what is later than its last committed round or half-written.

    Args:
        run: The run directory.
        committed: The round.
        counted: Clients whose updates of the round after it count already.
    """
    ahead = {client_folder(run, client) for client in counted}
    for path in (*run.rglob(f".*{TEMPORARY}"), *run.rglob(".saving-*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for folder in run.glob("clients/*"):
        ClientStore(folder, committed).discard_after(committed + (folder in ahead))
