"""Which masked sums a site has begun and released, in `site.sqlite`: what no server may ask for again.

The difference of two sums over the same model and plan is the update of the sites that are in one of them
alone. So a site that has released a sum releases another one over the same tensors only with the same
survivors, whatever run, round, call or attempt the server names. This stops exact repetition: a plan in which
the server has changed one bit is another plan. Only differential privacy bounds what that gives away.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection

from fedstrata.core.site_database import site_database
from fedstrata.privacy.secure_sum.messages import SumName
from fedstrata.privacy.secure_sum.refusals import AlreadyReleased, AttemptNotHigher, RoundNotNew, WrongSum

_TABLES = (
    # The highest attempt of each sum that was begun.
    "CREATE TABLE IF NOT EXISTS sums (client TEXT, run TEXT, round INTEGER, handler TEXT, call INTEGER, "
    "attempt INTEGER NOT NULL, PRIMARY KEY (client, run, round, handler, call)) WITHOUT ROWID",
    # What was released under each name, and with whom; rows are only added.
    "CREATE TABLE IF NOT EXISTS released (client TEXT, run TEXT, round INTEGER, handler TEXT, call INTEGER, "
    "summed TEXT, survivors TEXT, "
    "PRIMARY KEY (client, run, round, handler, call, summed, survivors)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS released_content ON released (client, summed)",
    # The tensors that a client has last trained on: a plan without tensors continues from them.
    "CREATE TABLE IF NOT EXISTS trained (client TEXT PRIMARY KEY, tensors TEXT NOT NULL) WITHOUT ROWID",
    # Whether the plans of a handler have tensors.
    "CREATE TABLE IF NOT EXISTS plans (client TEXT, handler TEXT, tensors INTEGER NOT NULL, "
    "PRIMARY KEY (client, handler)) WITHOUT ROWID",
)
_CONTENT = (
    "SELECT summed FROM released WHERE client = ? AND run = ? AND round = ? AND handler = ? AND call = ?"
)
_ATTEMPT = "SELECT attempt FROM sums WHERE client = ? AND run = ? AND round = ? AND handler = ? AND call = ?"


class ReleaseGuard:
    """What one client has begun and released of masked sums, over all runs of its home.

    Args:
        path: The site's database; it must outlive every run.
        client: The client.
        allowed: Sites whose update this site's operator has agreed to reveal (`--allow-without`), each with
            the hash of the model whose sum has revealed it; empty as long as none has. A consent is of one
            model: the guard writes the hash.
    """

    def __init__(self, path: Path, client: str, allowed: dict[str, str] | None = None) -> None:
        self._path, self._client = path, client
        self._allowed = {} if allowed is None else allowed

    def begin(self, name: SumName) -> bool:
        """Records durably that an attempt begins; returns whether one of the same sum was begun before.

        Raises:
            RoundNotNew: A later round of this run was released here, and this sum was not.
            AttemptNotHigher: An attempt with the same or a higher number was begun before.
            SiteDatabaseError: The file cannot be read or written.
        """
        with self._transaction() as connection:
            attempt = self._attempt(connection, name)
            last = self._last_round(connection, name.run)
            if name.round < last and not self._content(connection, name):
                raise RoundNotNew(
                    f"{name} is refused: this site has released sums up to round {last} of this run. If the "
                    "server was restored from a backup, begin another run; each site accepts it with "
                    "fedstrata join --new-run"
                )
            if name.attempt <= attempt:
                raise AttemptNotHigher(
                    f"{name} is refused: this site has seen attempt {attempt}; a new one must have a higher "
                    "number"
                )
            connection.execute(
                "INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?, ?, ?)", (*self._key(name), name.attempt)
            )
        return attempt >= 0

    def require_same(self, name: SumName, summed: str, sites: Collection[str]) -> None:
        """Checks before anything is trained that a sum with these sites can still be released.

        Args:
            name: The sum.
            summed: Hash of what is summed.
            sites: The sites that mask with each other, of which the survivors are a part.

        Raises:
            AlreadyReleased: A site is missing with which the same was released, or something else was
                released under this name.
            SiteDatabaseError: The file cannot be read or written.
        """
        with self._transaction() as connection:
            self._require(connection, name, summed, lambda before: before - set(sites))

    def release(self, name: SumName, summed: str, survivors: Iterable[str]) -> None:
        """Records durably that shares of a sum leave; they may leave when this returns.

        Raises:
            AttemptNotHigher: A higher attempt was begun meanwhile, or this one was not begun.
            AlreadyReleased: The same was released with other survivors, or something else under this name.
            SiteDatabaseError: The file cannot be read or written.
        """
        own = set(survivors)
        with self._transaction() as connection:
            if (attempt := self._attempt(connection, name)) != name.attempt:
                raise AttemptNotHigher(
                    f"no share leaves for {name}: this site has begun attempt {attempt} of it; finish that "
                    "one",
                    code="attempt_over",
                )
            revealed = self._require(connection, name, summed, lambda before: before ^ own)
            connection.execute(
                "INSERT OR IGNORE INTO released VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*self._key(name), summed, json.dumps(sorted(own))),
            )
        self._allowed.update(dict.fromkeys(revealed, summed))

    def trained_on(self, handler: str, tensors: str | None) -> str:
        """Returns the hash of the tensors that the client's update is trained from, and stores a new one.

        Args:
            handler: What is summed.
            tensors: Hash of the tensors of the plan that came; None for a plan without tensors, which
                continues from those of the last plan that had some.

        Raises:
            WrongSum: Plans of this handler have had tensors and this one has none, or the other way round:
                without them it might train from the model as all have it, which is a content of its own.
            SiteDatabaseError: The file cannot be read or written.
        """
        with self._transaction() as connection:
            row = (self._client, handler, tensors is not None)
            connection.execute("INSERT OR IGNORE INTO plans VALUES (?, ?, ?)", row)
            found = connection.execute(
                "SELECT tensors FROM plans WHERE client = ? AND handler = ?", row[:2]
            ).fetchone()
            if bool(found[0]) != row[2]:
                kinds = ("without tensors", "with tensors")
                raise WrongSum(
                    f"plans of {handler} came {kinds[found[0]]} before, and now one came {kinds[row[2]]}",
                    code="not_agreed",
                )
            if tensors is not None:
                connection.execute("INSERT OR REPLACE INTO trained VALUES (?, ?)", (self._client, tensors))
                return tensors
            last = connection.execute("SELECT tensors FROM trained WHERE client = ?", (self._client,))
            return str((last.fetchone() or ("",))[0])

    def _require(
        self,
        connection: Connection,
        name: SumName,
        summed: str,
        differing: Callable[[set[str]], set[str]],
    ) -> set[str]:
        """Returns the sites by which a sum differs from those released over the same model: all allowed."""
        if self._content(connection, name) - {summed}:
            raise AlreadyReleased(
                f"this site has released {name} over another model or plan; a sum is made once"
            )
        rows = connection.execute(
            "SELECT DISTINCT survivors FROM released WHERE client = ? AND summed = ?", (self._client, summed)
        )
        revealed = {
            site for (survivors,) in rows.fetchall() for site in differing(set(json.loads(survivors)))
        }
        allowed = {site for site, used in self._allowed.items() if used in ("", summed)}
        if others := sorted(revealed - allowed):
            raise AlreadyReleased(
                "this site has released a sum over the same model with other sites; another one would reveal "
                f"the update of {', '.join(others)}. Ask the same sites; or each of them accepts that the "
                "server learns it, with fedstrata join "
                + " ".join(f"--allow-without {site}" for site in others),
                code="would_reveal",
            )
        return revealed

    def _content(self, connection: Connection, name: SumName) -> set[str]:
        """Returns the hashes of what was released under a name."""
        rows = connection.execute(_CONTENT, self._key(name))
        return {summed for (summed,) in rows.fetchall()}

    def _last_round(self, connection: Connection, run: str) -> int:
        """Returns the last round of a run of which something was released; -1 if there is none."""
        found = connection.execute(
            "SELECT MAX(round) FROM released WHERE client = ? AND run = ?", (self._client, run)
        )
        last = found.fetchone()[0]
        return -1 if last is None else int(last)

    def _attempt(self, connection: Connection, name: SumName) -> int:
        """Returns the highest attempt of a sum that was begun; -1 if none was."""
        row = connection.execute(_ATTEMPT, self._key(name)).fetchone()
        return -1 if row is None else int(row[0])

    def _key(self, name: SumName) -> tuple[str, str, int, str, int]:
        return self._client, name.run, name.round, name.handler, name.call

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with site_database(self._path, _TABLES) as connection:
            yield connection
