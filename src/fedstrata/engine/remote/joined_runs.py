"""Which runs a client of a site has joined, and what the site's policy counts of the run that it is in.

All of it lies in the site's database, so that neither a restart nor another name of the run begins a count
anew. A client is in one run, until its people accept another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from sqlite3 import Connection

from fedstrata.client.store import client_folder, home_of
from fedstrata.core.errors import FrameError, RefusedError
from fedstrata.core.site_database import SITE_DATABASE, site_database
from fedstrata.core.types import JSON
from fedstrata.engine.run_folder import MAY_CHANGE_ON_RESUME
from fedstrata.privacy.ledger_verification import LEDGER, read_ledger

_TABLES = (
    "CREATE TABLE IF NOT EXISTS joined_runs (client TEXT NOT NULL, number INTEGER NOT NULL, "
    "run TEXT NOT NULL, joined REAL NOT NULL, ledger_lines INTEGER NOT NULL, "
    "PRIMARY KEY (client, number), UNIQUE (client, run))",
    "CREATE TABLE IF NOT EXISTS joined_settings (client TEXT NOT NULL, run TEXT NOT NULL, "
    "setting TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (client, run, setting))",
    "CREATE TABLE IF NOT EXISTS first_tasks (client TEXT NOT NULL, run TEXT NOT NULL, began REAL NOT NULL, "
    "PRIMARY KEY (client, run))",
    "CREATE TABLE IF NOT EXISTS scorings (client TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, "
    "sha256 TEXT NOT NULL, PRIMARY KEY (client, run, round, sha256))",
)
_VERSION = "fedstrata"
"""Stands among the settings: another version may know settings that an earlier session did not."""


class OtherRunError(RefusedError):
    """The server names another run than the one that this site has joined."""

    code = "other_run"


class ChangedSettingsError(RefusedError):
    """The server has changed settings of a run that must stay as they were when the run was joined."""

    code = "changed"


class JoinedRuns:
    """The runs that a client has joined, in order, and the counters of the last of them.

    Args:
        home: Where the client keeps what outlives a run.
        client: Its name.
        runs: How many runs its people have accepted, one after the other.

    Attributes:
        run: The run that this process takes part in; empty before its first session.
    """

    def __init__(self, home: Path, client: str, runs: int = 1) -> None:
        self._home, self._client, self._runs = home, client, runs
        self.run = ""

    @property
    def count(self) -> int:
        """How many runs the client has joined so far, by its database."""
        with self._database() as connection:
            return len(self._joined(connection))

    def enter(self, run: JSON, settings: Mapping[str, str]) -> Path:
        """Begins a session of a run, before anything is computed for it.

        Args:
            run: The run's id, as the server names it.
            settings: Hashes of what must stay the same while the run lasts (`lasting_settings`).

        Returns:
            The folder of what the client keeps of the run.

        Raises:
            FrameError: It is no id.
            OtherRunError: The client has joined another run, and its people have accepted no further one; or
                it was in this one before the last.
            ChangedSettingsError: Settings are not those with which the run was joined.
        """
        if not isinstance(run, str):
            raise FrameError(f"the server names no run to join, but {run!r:.40}", code="wrong_form")
        folder = home_of(self._home, run)
        with self._database() as connection:
            known = self._joined(connection)
            if run not in known[-1:]:
                self._require_accepted(run, known)
                self._begin(connection, run, len(known) + 1, settings)
            else:
                self._require_same(connection, run, settings)
        self.run = run
        return folder

    def hours(self) -> float:
        """Returns how long ago the first task of the run began; it begins now if there was none."""
        own, now = (self._client, self.run), time.time()
        with self._database() as connection:
            connection.execute("INSERT OR IGNORE INTO first_tasks VALUES (?, ?, ?)", (*own, now))
            query = "SELECT began FROM first_tasks WHERE client = ? AND run = ?"
            return (now - float(connection.execute(query, own).fetchone()[0])) / 3600

    def sent(self) -> int:
        """Returns how many bytes have left the client since the run was joined, by its ledgers.

        Raises:
            LedgerError: A ledger is not what the client wrote.
        """
        query = "SELECT ledger_lines FROM joined_runs WHERE client = ? AND run = ?"
        with self._database() as connection:
            found = connection.execute(query, (self._client, self.run)).fetchone()
        ledgers = {self._ledger(self._home): found[0] if found else 0}
        if self.run:
            ledgers[self._ledger(home_of(self._home, self.run))] = 0
        lines = (
            line
            for path, before in ledgers.items()
            if path.is_file()
            for line in read_ledger(path)
            if line["number"] > before and line["again"] is None
        )
        return sum(line["bytes"] for line in lines)

    def may_score(self, number: int, what: str, most: int) -> bool:
        """Whether a scoring may begin in a round: it is one of the first, or one of them asked for again.

        Args:
            number: The round.
            what: The hash of what is scored.
            most: How many different ones may begin in a round.
        """
        own = (self._client, self.run, number)
        query = "SELECT sha256 FROM scorings WHERE client = ? AND run = ? AND round = ?"
        with self._database() as connection:
            begun = {row[0] for row in connection.execute(query, own)}
            if what in begun:
                return True
            if len(begun) >= most:
                return False
            connection.execute("INSERT INTO scorings VALUES (?, ?, ?, ?)", (*own, what))
        return True

    @contextmanager
    def _database(self) -> Iterator[Connection]:
        with site_database(self._home / SITE_DATABASE, _TABLES) as connection:
            yield connection

    def _joined(self, connection: Connection) -> list[str]:
        query = "SELECT run FROM joined_runs WHERE client = ? ORDER BY number"
        return [row[0] for row in connection.execute(query, (self._client,))]

    def _ledger(self, folder: Path) -> Path:
        return client_folder(folder, self._client) / LEDGER

    def _require_accepted(self, run: str, known: list[str]) -> None:
        """Refuses a run that the client's people have not accepted, and one that was left for another."""
        if run in known:
            raise OtherRunError(
                f"the server names run {run}, which this site left when it joined run {known[-1]}; a run "
                "that was left is not joined again",
                code="run_left",
            )
        if len(known) >= self._runs:
            raise OtherRunError(
                f"the server names run {run}, and this site has joined run {known[-1]}; if the people of the "
                "federation agreed on a new run, join it once with: fedstrata join --new-run"
            )

    def _begin(self, connection: Connection, run: str, number: int, settings: Mapping[str, str]) -> None:
        """Records that a run is joined, and with which settings."""
        ledger = self._ledger(self._home)
        lines = len(ledger.read_bytes().splitlines()) if ledger.is_file() else 0
        row = (self._client, number, run, time.time(), lines)
        connection.execute("INSERT INTO joined_runs VALUES (?, ?, ?, ?, ?)", row)
        named = {**settings, _VERSION: version("fedstrata")}
        rows = [(self._client, run, *each) for each in named.items()]
        connection.executemany("INSERT INTO joined_settings VALUES (?, ?, ?, ?)", rows)

    def _require_same(self, connection: Connection, run: str, settings: Mapping[str, str]) -> None:
        """Refuses settings that are not those with which a run was joined."""
        query = "SELECT setting, sha256 FROM joined_settings WHERE client = ? AND run = ?"
        before: dict[str, str] = dict(connection.execute(query, (self._client, run)).fetchall())
        same = before.pop(_VERSION, None) == version("fedstrata")
        paths = before.keys() | settings.keys() if same else before.keys() & settings.keys()
        if changed := sorted(path for path in paths if before.get(path) != settings.get(path)):
            raise ChangedSettingsError(
                f"the server has changed {', '.join(changed)} since this site joined run {run}; within a run "
                f"only these may change: {', '.join(sorted(MAY_CHANGE_ON_RESUME))}"
            )
