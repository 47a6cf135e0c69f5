"""What a client has spent of its units' privacy in a run, and what it sent for it: durable before it counts.

A turn is recorded before anything is drawn for it, so that one that is killed has spent what a whole one
spends. A finished update is kept until a later one takes its place, and a repeated order is answered with it:
it is one release, however often it is sent. Of joint noise none is kept: a share is drawn for one roster.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.client.accounts import TurnAccount
from fedstrata.client.store import ClientStore
from fedstrata.core.errors import BudgetSpentError, FrameError
from fedstrata.core.files import hash_of, private_folder
from fedstrata.core.site_database import site_database
from fedstrata.core.types import JSON, Message, Update
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

_TABLES = (
    "CREATE TABLE IF NOT EXISTS releases (number INTEGER PRIMARY KEY AUTOINCREMENT, client TEXT NOT NULL, "
    "run TEXT, round INTEGER NOT NULL, handler TEXT NOT NULL, call INTEGER NOT NULL, plan TEXT NOT NULL, "
    "noise TEXT NOT NULL, sent TEXT, unsent TEXT)",
)
"""The turns of clients; `sent` is the hash of a finished update, `unsent` those of what it left out."""
_TURNS = (
    "SELECT noise, unsent, round, handler, call, plan, sent FROM releases WHERE client = :client "
    "AND (run = :run OR run IS NULL OR :run IS NULL) ORDER BY number"
)
"""A turn counts for every run if its run is unknown, and every turn counts for an unknown run."""
_INSERT = (
    "INSERT INTO releases (client, run, round, handler, call, plan, noise) "
    "VALUES (:client, :run, :round, :handler, :call, :plan, :noise)"
)


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """The record of the private turns of one client.

    Attributes:
        path: The database.
        client: Its name.
        run: The id of the run; none in a simulation.
    """

    path: Path
    client: str
    run: str | None = None

    @property
    def turns_begun(self) -> int:
        """How many turns it has begun to train in, those that were killed included."""
        return len(self.turns())

    def unsent(self, number: int) -> set[str]:
        """Returns the hashes of what was released in a round, and was not in the update."""
        rows = [unsent for _, unsent, found, *_ in self.turns() if found == number and unsent]
        return {hashed for unsent in rows for hashed in json.loads(unsent)}

    def turns(self) -> list[tuple[Any, ...]]:
        """Returns the rows of the turns of the run, in the order in which they were begun."""
        if not self.path.exists():
            return []
        with site_database(self.path, _TABLES) as connection:
            return self.turns_in(connection)

    def turns_in(self, connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
        """Does as `turns`, on an open connection."""
        return connection.execute(_TURNS, {"client": self.client, "run": self.run}).fetchall()


class Release:
    """One turn of a client that trains under differential privacy.

    Args:
        record: Where the client records its turns.
        folder: Where it keeps the update that it sent last.
        turn: Its round, its handler, and how often that was called in the round.
        plan: What the client is sent.
        allowed: How many turns its noise allows.
        account: What its site's budget has of the run; none without a budget.
        noise: The noise of the turn's steps; all turns of a run have the same.
        keeps: Whether a finished update may be sent again.

    Attributes:
        unsent: The hashes of what was released and is not in the update, which a later turn may send.
    """

    def __init__(
        self,
        record: ReleaseRecord,
        folder: Path,
        turn: tuple[int, str, int],
        plan: Frame,
        allowed: int,
        account: TurnAccount | None = None,
        *,
        noise: Mapping[str, JSON] | None = None,
        keeps: bool = True,
    ) -> None:
        self._record, self._folder, self._noise = record, folder, json.dumps(noise or {}, sort_keys=True)
        self._allowed, self._account, self._keeps = allowed, account, keeps
        self._turn = (*turn, plan.sha256())
        self._number = 0
        self.unsent: Sequence[str] = ()

    def begin(self) -> None:
        """Records the turn as spent.

        Raises:
            BudgetSpentError: The noise allows for no more, or the site's budget does not; or what was begun
                before had other noise.
        """
        with site_database(self._record.path, _TABLES) as connection:
            self._require_room([noise for noise, *_ in self._record.turns_in(connection)])
            if self._account is not None:
                self._account.begin()
            self._number = self._insert(connection)

    def _require_room(self, begun: list[str]) -> None:
        """Raises BudgetSpentError if the noise of the turns that were begun allows for no other one."""
        client = self._record.client
        if others := [noise for noise in begun if noise != self._noise]:
            raise BudgetSpentError(
                f"client {client} has begun {len(others)} turns of this run with other noise than is asked "
                "for now, of which no epsilon of the run would be true; what was committed stays",
                code="changed",
            )
        if (spent := len(begun)) >= self._allowed:
            raise BudgetSpentError(
                f"client {client} has begun {spent} turns under differential privacy, and its noise allows "
                f"for {self._allowed}: one in each of its rounds, and privacy.spare_turns. What was "
                "committed stays; begin another run, with more spare turns, for more"
            )

    def charge(self) -> None:
        """Records the turn as spent, whatever its noise allows.

        For a turn whose process is lost elsewhere: whether it had begun is unknown.
        """
        with site_database(self._record.path, _TABLES) as connection:
            self._insert(connection)

    def finish(self, update: Update, store: ClientStore) -> None:
        """Keeps an update, and what the client has stored of the turn, if anything was spent for it."""
        if not self._number:
            return
        if not self._keeps:
            if self._account is not None:
                self._account.commit()
            return
        private_folder(self._folder)
        if store.version is not None:
            frame.encode(store.read()).write(self._path("kept"))
        else:
            self._path("kept").unlink(missing_ok=True)
        frame.encode(update).write(self._path("sent"))
        if self._account is not None:
            self._account.commit()  # before it is finished, from when on it may be sent without a new turn
        with site_database(self._record.path, _TABLES) as connection:
            values = hash_of(self._path("sent")), json.dumps(self.unsent), self._number
            connection.execute("UPDATE releases SET sent = ?, unsent = ? WHERE number = ?", values)

    def finished(self, store: ClientStore) -> Update | None:
        """Returns the update that this turn came to before, and has the store as it then was; or none."""
        last = self._record.turns()[-1:] if self._keeps else []
        try:
            if not last or last[0][2:] != (*self._turn, hash_of(self._path("sent"))):
                return None
            kept = self._path("kept")
            if kept.exists():
                store.write(frame.decode(frame.read(kept), Message))
            return frame.decode(frame.read(self._path("sent")), Update)
        except (FrameError, OSError):  # what cannot be read again is computed anew, and spent
            return None

    def _insert(self, connection: sqlite3.Connection) -> int:
        """Inserts the turn, and returns its number."""
        columns = dict(zip(("round", "handler", "call", "plan"), self._turn, strict=True))
        whose = {"client": self._record.client, "run": self._record.run, "noise": self._noise}
        return connection.execute(_INSERT, columns | whose).lastrowid or 0

    def _path(self, what: str) -> Path:
        return self._folder / f"release-{what}.safetensors"
