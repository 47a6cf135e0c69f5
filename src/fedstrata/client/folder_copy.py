"""A client's folder at two places: in the run directory, and where its turns are computed.

What a client keeps between rounds travels only where it is a simulated one whose turns are computed on other
machines: whatever happens there, all that counts lies in the run directory. Of a folder goes what the other
place lacks. Its stored states of frozen blocks do not: they are large, and are computed anew where they are
missing.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstrata.core.files import TEMPORARY, private_folder, write_atomically
from fedstrata.models.prefix_cache import FILE

Listing: TypeAlias = Mapping[str, tuple[int, int, int]]
"""What tells each file of a folder, by name, from any other version of it."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What makes one version of a folder another one.

    Attributes:
        written: The bytes of each file that is new or another one, by name: (bytes,) uint8.
        removed: The names of those that are gone.
    """

    written: Mapping[str, NDArray[np.uint8]]
    removed: tuple[str, ...] = ()


def listing(folder: Path) -> Listing:
    """Returns the files of a folder; none if it is not there."""
    found = {}
    for path in sorted(folder.glob("*")):
        if path.is_file() and path.name != FILE and not path.name.endswith(TEMPORARY):
            facts = path.stat()
            found[path.name] = facts.st_ino, facts.st_size, facts.st_mtime_ns
    return found


def changes(folder: Path, since: Listing) -> Changes:
    """Returns what has become of a folder since it was listed."""
    now = listing(folder)
    changed = [name for name, version in now.items() if since.get(name) != version]
    written = {name: np.fromfile(folder / name, dtype=np.uint8) for name in changed}
    return Changes(written, tuple(name for name in since if name not in now))


def apply(made: Changes, folder: Path, stamp: int, *, durable: bool) -> None:
    """Makes the same changes to the other copy of a folder.

    Args:
        made: The changes.
        folder: The copy; made if it is not there.
        stamp: The time, in nanoseconds, that what is written is said to be of. The clock of a file system
            may stand still for milliseconds, in which a file can be written twice.
        durable: Whether it must be on disk when this returns.
    """
    if made.written:
        private_folder(folder)
    for name, data in made.written.items():
        write_atomically(folder / name, [data.data], durable=durable)
        os.utime(folder / name, ns=(stamp, stamp))
    for name in made.removed:
        (folder / name).unlink(missing_ok=True)
