"""`budget.db`: a SQLite file of a site that nobody else may read; what is changed in it is on the disk."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fedstrata.core.errors import ConfigurationError, refused
from fedstrata.core.files import errors_naming, keep_names, require_secret
from fedstrata.core.site_database import transaction

APPLICATION = 0x66734267
"""Stands in the head of the file, and tells it from those of other programs."""
VERSION = 2
"""Of what is in it."""
WAIT = 600.0
"""Seconds to wait for another run that is at the file: it works out an epsilon, for some seconds."""

_TABLES = (
    "CREATE TABLE terms (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # What one run may release, has begun to, and has released at one client, in turns of so many steps.
    "CREATE TABLE accounts (id TEXT PRIMARY KEY, run TEXT NOT NULL, client TEXT NOT NULL, "
    "opened TEXT NOT NULL, kind TEXT NOT NULL, sigma REAL NOT NULL, rate REAL NOT NULL, "
    "steps INTEGER NOT NULL, l2 REAL NOT NULL, l1 REAL NOT NULL, numbers INTEGER NOT NULL, "
    "cohort BLOB NOT NULL, reserved INTEGER NOT NULL, begun INTEGER NOT NULL, "
    "committed INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID",
    # Who was in it. Runs on the same units share a cohort: units are stored once, not once a run.
    "CREATE TABLE members (cohort BLOB, unit BLOB, PRIMARY KEY (cohort, unit)) WITHOUT ROWID",
)


def require_budget(path: Path) -> None:
    """Checks that a file, if it is there, is a budget of this version that nobody else may read.

    Raises:
        ConfigurationError: It is not.
    """
    with reading(path):
        pass


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Yields a connection that changes nothing; none where there is no such file, or nothing in it yet.

    Raises:
        ConfigurationError: The file is no budget, is damaged, or others may read it.
    """
    if not path.exists():
        yield None
        return
    with _connected(path, writes=False) as connection:
        yield connection if _is_made(connection, path) else None


@contextmanager
def writing(path: Path, *, make: bool = False) -> Iterator[sqlite3.Connection]:
    """Yields a connection whose changes are all on the disk after the block, or none is; one at a time.

    Args:
        path: The file.
        make: Whether to make it if it is not there.

    Raises:
        ConfigurationError: It is not there, is no budget, is damaged, or others may read it.
    """
    if make:
        _make(path)
    with _connected(path, writes=True) as connection, transaction(connection):
        if not _is_made(connection, path):
            if not make:
                raise _wrong(f"{path} holds nothing yet", "missing")
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        yield connection


def _make(path: Path) -> None:
    """Makes an empty file of mode 600 if there is none."""
    try:
        with errors_naming(path, path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise _wrong(f"{path} cannot be made ({error.strerror})", "unwritable") from None
    keep_names(path.parent)


@contextmanager
def _connected(path: Path, *, writes: bool) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise _wrong(f"{path} is no file", "not_found")
    require_secret(path)
    try:
        # A file that is missed is not made anew: what was spent would be forgotten.
        address = f"{path.absolute().as_uri()}?mode={'rw' if writes else 'ro'}"
        with closing(sqlite3.connect(address, WAIT, isolation_level=None, uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        message = f"{path} cannot be read or written ({error}); it tells what was spent: restore it"
        raise _wrong(message, "damaged" if _is_damaged(error) else "unreadable") from None


def _is_damaged(error: sqlite3.Error) -> bool:
    """Whether a file itself is not as SQLite wrote it; otherwise it is locked, or its disk fails."""
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)


def _is_made(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether a file has its tables; a run that was killed may leave one with nothing in it."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if application == 0 and not tables:
        return False
    if application != APPLICATION:
        raise _wrong(f"{path} is no budget of fedstrata; name another file", "wrong_format")
    if version != VERSION:
        message = f"{path} is a budget of version {version}, and this fedstrata reads version {VERSION}"
        raise _wrong(message, "unknown_version")
    return True


def _wrong(message: str, code: str) -> ConfigurationError:
    return refused("privacy.budget.path", message, code)
