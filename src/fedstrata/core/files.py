"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TEMPORARY = ".tmp"
"""How the names of files that are being written end; whoever died while writing leaves one behind."""


def write_atomically(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a file under a temporary name, flushes it to disk, and renames it.

    Args:
        path: The file; what was there before is replaced.
        pieces: Its content, in order.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # it may be large, and the disk full
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name itself must survive a power cut
    finally:
        os.close(folder)
