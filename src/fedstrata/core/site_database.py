"""The one SQLite file in which a site keeps what must outlive its process: `site.sqlite` in its home.

It holds what was released under differential privacy, what was summed under masks, and what the site's policy
counts. Each of these has tables of its own, made when they are first written. In a simulation every client
has such a file in its folder.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from fedstrata.core.errors import RefusedError
from fedstrata.core.files import keep_names, private_folder

SITE_DATABASE = "site.sqlite"
"""The file's name, in the home of a site or in the folder of a simulated client."""
WAIT = 60.0
"""Seconds to wait for another process that writes the same file."""


class SiteDatabaseError(RefusedError):
    """A site can no longer read or write what it has released, so nothing more may leave it."""

    code = "unreadable"


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Makes all changes of the block durable when it ends, or none of them if it raises."""
    connection.execute("PRAGMA synchronous = EXTRA")  # also the folder's entries survive a power cut
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def site_database(path: Path, tables: Sequence[str]) -> Iterator[sqlite3.Connection]:
    """Yields a connection whose changes are all on the disk after the block, or none of them.

    Args:
        path: The file; it is made with mode 600 if it does not exist.
        tables: `CREATE TABLE IF NOT EXISTS` statements of the tables that the block uses.

    Raises:
        SiteDatabaseError: The file cannot be read or written.
    """
    private_folder(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        keep_names(path.parent)
    try:
        with (
            closing(sqlite3.connect(path, WAIT, isolation_level=None)) as connection,
            transaction(connection),
        ):
            for statement in tables:
                connection.execute(statement)
            yield connection
    except sqlite3.Error as error:
        raise SiteDatabaseError(
            f"{path} records what this site has released, and cannot be read or written ({error}); without "
            "it nothing more may be released: restore the file"
        ) from None
