"""Which masked sums a site has begun and released, on its disk: what a restarted process must not do again.

A server that has unmasked a sum and then claims to have crashed could ask for it again without one site; the
difference is that site's input. So a sum of which a share may have left is never begun again, and the site
knows that before the share leaves.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fedstrata.privacy.secure_sum.messages import SumName
from fedstrata.privacy.secure_sum.refusals import AlreadyReleased, AttemptNotHigher, AttemptsDamaged

_TABLE = """CREATE TABLE IF NOT EXISTS sums (
    run TEXT, round INTEGER, handler TEXT, call INTEGER, attempt INTEGER NOT NULL, released INTEGER NOT NULL,
    PRIMARY KEY (run, round, handler, call)) WITHOUT ROWID"""
_FIND = "SELECT attempt, released FROM sums WHERE run = ? AND round = ? AND handler = ? AND call = ?"
_BEGIN = "INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?, ?, 0)"
_RELEASE = "UPDATE sums SET released = 1 WHERE run = ? AND round = ? AND handler = ? AND call = ?"


class SumAttempts:
    """The highest attempt of each sum (run, round, handler, call), and whether it is released; a SQLite file.

    Args:
        path: The file, in the site's folder; it is made when first written, and must outlive the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: sqlite3.Connection | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Takes down at once what begins in the block: all of it is on the disk after it, or nothing is.

        A transaction has to wait for the disk five times, whatever is in it.

        Raises:
            AttemptsDamaged: The file cannot be read or written.
        """
        with self._transaction() as connection:
            self._open = connection
            try:
                yield
            finally:
                self._open = None

    def begin(self, name: SumName) -> None:
        """Takes down that an attempt begins, durably.

        Raises:
            AlreadyReleased: A share of an attempt of this sum may have left.
            AttemptNotHigher: An attempt was begun that is as high.
            AttemptsDamaged: The file cannot be read.
        """
        with self._transaction() as connection:
            attempt, released = self._found(connection, name) or (-1, False)
            if released:
                raise AlreadyReleased(
                    f"shares of this sum have left this site ({_sum_of(name)}, attempt {attempt}), and "
                    f"{name} is refused: the difference of two sums would be one site's input. The server "
                    "has to finish the unmasking that it stored, or to go on without this sum"
                )
            if name.attempt <= attempt:
                raise AttemptNotHigher(
                    f"{name} is refused: this site has seen attempt {attempt}; a new one must have a higher "
                    "number"
                )
            connection.execute(_BEGIN, (name.run, name.round, name.handler, name.call, name.attempt))

    def release(self, name: SumName) -> None:
        """Takes down that shares leave; when it returns, that is on the disk, and they may.

        Raises:
            AttemptNotHigher: A higher attempt was begun meanwhile, or this one never was.
            AttemptsDamaged: The file cannot be read.
        """
        with self._transaction() as connection:
            attempt, _ = self._found(connection, name) or (-1, False)
            if attempt != name.attempt:
                raise AttemptNotHigher(
                    f"no share leaves for {name}: this site has begun attempt {attempt} of it; finish that "
                    "one"
                )
            connection.execute(_RELEASE, (name.run, name.round, name.handler, name.call))

    @staticmethod
    def _found(connection: sqlite3.Connection, name: SumName) -> tuple[int, bool] | None:
        row = connection.execute(_FIND, (name.run, name.round, name.handler, name.call)).fetchone()
        return None if row is None else (int(row[0]), bool(row[1]))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yields a connection whose changes are all on the disk after the block, or none is.

        Within `together` that block is meant.
        """
        if self._open is not None:
            yield self._open
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
                connection.execute(
                    "PRAGMA synchronous = EXTRA"
                )  # the folder's entries, too, survive a power cut
                connection.execute("BEGIN IMMEDIATE")
                try:
                    connection.execute(_TABLE)
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise AttemptsDamaged(
                f"{self._path} tells which sums this site has released, and cannot be read or written "
                f"({error}); without it no sum is safe: restore it, or take part in a new run alone"
            ) from None


def _sum_of(name: SumName) -> str:
    return f"run {name.run}, round {name.round}, {name.handler}, call {name.call}"
