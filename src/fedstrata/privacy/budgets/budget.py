"""A site's budget: which mechanisms its units went through in all runs, and whether there is room for more.

**Reserved before training.** A run has an account at each client. Before anything is computed it reserves all
turns that its noise allows for, spare ones included, for every unit that it trains on; if any unit would pass
the cap, nothing is reserved and the run does not start. Two runs that reserve at once do so one after the
other. **Begun** before anything is drawn, turn by turn; **committed** before the update of a turn is sent.
The three are on the disk before what they stand for happens, so that no more is ever sent than is counted.

**Never given back after a crash.** As long as a run has not come to its end, all that it has reserved counts,
whatever it has begun; one that goes on has the same account. When it has come to its end no turn of it can
begin any more, and what counts from then on are the turns that were begun, finished or not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedstrata.core.errors import BudgetRefusedError, ConfigurationError, Problem, refused
from fedstrata.privacy.budgets.accounts import Account, Book, Request
from fedstrata.privacy.budgets.database import reading, writing
from fedstrata.privacy.budgets.events import exceeds, largest
from fedstrata.privacy.budgets.rows import TermRows, checked

_REFUSED = (
    "this site's budget of privacy does not allow it, or cannot be read; its people are told more by: "
    "fedstrata budget show"
)


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds of a budget from its first run on.

    Attributes:
        unit: What is protected as a whole: `patient` or `document`.
        delta: Of all its epsilons.
        key: The check value of the key of its pseudonyms.
        named_by: `site` where a name is that of a unit at one site, `name` where it is one everywhere.
    """

    unit: str
    delta: float
    key: str
    named_by: str


def room_for(path: Path, terms: Terms, requests: Sequence[Request], most: float) -> dict[str, float]:
    """Checks that a run would find room, and changes nothing.

    Args:
        path: The budget; it need not be there.
        terms: What must hold of it.
        requests: What the run asks for.
        most: The epsilon that is allowed.

    Returns:
        What the unit that has spent most would have spent then, by client; what the run reserves included.

    Raises:
        ConfigurationError: There is none, or the file is no such budget.
    """
    with reading(path) as connection:
        if connection is not None:
            _require_terms(connection, terms, path)
        after = _require_room(Book.read(connection), requests, terms, most)
        return {each.client: _most(after, each.units, terms.delta) for each in requests}


def reserve(path: Path, terms: Terms, requests: Sequence[Request], most: float) -> None:
    """Reserves what a run asks for at all its clients, or at none; again, after a run goes on.

    Args:
        path: The budget, which is made if it is not there.
        terms: What must hold of it.
        requests: What the run asks for.
        most: The epsilon that is allowed.

    Raises:
        ConfigurationError: There is no room for it, or the file is no such budget.
    """
    with writing(path, make=True) as connection:
        _require_terms(connection, terms, path)
        after = _require_room(Book.read(connection), requests, terms, most)
        connection.execute("INSERT OR REPLACE INTO terms VALUES ('epsilon', ?)", (repr(most),))
        for each in requests:
            _open(connection, after.accounts[each.account], after.units(each.account))


def begin(path: Path, account: str) -> None:
    """Takes down that a turn begins; it must be, before anything is drawn for it.

    Raises:
        BudgetRefusedError: Nothing is reserved for it.
    """
    _count(path, account, "begun", "NOT ended AND begun < reserved")


def commit(path: Path, account: str) -> None:
    """Takes down that the update of a turn may be sent; it must be, before that is.

    Raises:
        BudgetRefusedError: No turn of it was begun, by this file.
    """
    _count(path, account, "committed", "committed < begun")


def end(path: Path, accounts: Iterable[str]) -> None:
    """Takes down that a run has come to its end, after which it can begin no turn.

    Raises:
        ConfigurationError: The budget cannot be written.
    """
    with writing(path) as connection:
        connection.executemany("UPDATE accounts SET ended = 1 WHERE id = ?", [(each,) for each in accounts])


def spent_by(path: Path, units: Mapping[str, Collection[bytes]], delta: float) -> dict[str, float]:
    """Returns what the unit of each client that has spent most has spent in all runs.

    Args:
        path: The budget; it need not be there.
        units: The pseudonyms of each client's units.
        delta: The delta.

    Raises:
        ConfigurationError: The budget cannot be read.
    """
    with reading(path) as connection:
        book = Book.read(connection)
        return {client: _most(book, own, delta) for client, own in units.items()}


def read_budget(path: Path) -> tuple[Mapping[str, str], Book]:
    """Returns all that a budget holds: its terms by name, and its book.

    Raises:
        ConfigurationError: There is none, or it cannot be read.
    """
    with reading(path) as connection:
        if connection is None:
            raise refused("", f"{path} holds no budget: no run has reserved anything", "not_found")
        return _terms_in(connection, path), Book.read(connection)


def _terms_in(connection: sqlite3.Connection, path: Path) -> dict[str, str]:
    """Returns what holds of a budget, by name; nothing of one in which nothing was ever reserved.

    Raises:
        ConfigurationError: It has accounts, and does not say what they are of.
        sqlite3.DataError: It says what no run has written.
    """
    there = dict(connection.execute("SELECT name, value FROM terms"))
    (accounts,) = connection.execute("SELECT COUNT(*) FROM accounts").fetchone()
    if (accounts or there) and not there.keys() >= TermRows.model_fields.keys():
        message = f"{path} does not say what its figures are of: it was changed; restore it"
        raise refused("privacy.budget.path", message, "damaged")
    if there:
        checked(TermRows, there, "what holds of it")
    return there


def _count(path: Path, account: str, what: str, where: str) -> None:
    """Adds one to what is counted of an account, on the disk.

    The server hears of errors, so the reason is in the cause alone, which stays here.
    """
    statement = f"UPDATE accounts SET {what} = {what} + 1 WHERE id = ? AND {where}"  # noqa: S608 - our own
    try:
        with writing(path) as connection:
            changed = connection.execute(statement, (account,)).rowcount
    except (ConfigurationError, OSError) as error:
        raise BudgetRefusedError(_REFUSED) from error
    if changed != 1:
        raise BudgetRefusedError(_REFUSED)


def _require_terms(connection: sqlite3.Connection, terms: Terms, path: Path) -> None:
    """Checks what must hold of a budget, all of it at once; a new one gets it.

    Raises:
        ConfigurationError: Something else holds of it.
    """
    wanted = {"unit": terms.unit, "delta": repr(terms.delta), "key": terms.key, "named_by": terms.named_by}
    there = _terms_in(connection, path)
    if not there:
        connection.executemany("INSERT INTO terms VALUES (?, ?)", wanted.items())
        return
    other = f"; {path} was begun otherwise. Use that, or another file, in which nothing is spent"
    why = {
        "unit": ("privacy.unit", f"must be {there['unit']!r} for this budget, not {terms.unit!r}"),
        "delta": ("privacy.budget.delta", f"must be {there['delta']}, not {terms.delta!r}"),
        "key": ("privacy.budget.path", "the key beside it is not the one that its pseudonyms were made with"),
        "named_by": (
            "privacy.budget.disjoint_sites",
            f"units go by their {_NAMED[there['named_by']]}, and here they would by their "
            f"{_NAMED[terms.named_by]}",
        ),
    }
    problems = [
        Problem(why[name][0], why[name][1] + other, code="wrong_key" if name == "key" else "conflict")
        for name in wanted
        if there.get(name) != wanted[name]
    ]
    if problems:
        raise ConfigurationError(problems)


_NAMED = {"site": "names at one site each", "name": "names, whatever the site"}


def _require_room(book: Book, requests: Sequence[Request], terms: Terms, most: float) -> Book:
    """Checks that no unit of a run would pass the cap with what it asks for; returns the book with it.

    Raises:
        ConfigurationError: One would.
    """
    after, others = book.with_requests(requests), book.without([each.account for each in requests])
    problems = []
    for each in requests:
        if exceeds(after.profiles(each.units), terms.delta, most):
            would, has = (_most(own, each.units, terms.delta) for own in (after, others))
            message = (
                f"a {terms.unit} of {each.client!r} would have spent epsilon {would:.4g} at delta "
                f"{terms.delta:g}, and may spend {most:g}: {has:.4g} is spent or reserved by other runs, and "
                f"this one reserves {each.turns} turns of {each.turn.steps} steps. Nothing was started. What "
                "helps: a smaller privacy.epsilon, fewer rounds or spare turns, or a larger budget"
            )
            problems.append(Problem("privacy.budget.epsilon", message, code="budget_refused"))
    if problems:
        raise ConfigurationError(problems)
    return after


def _most(book: Book, units: Collection[bytes], delta: float) -> float:
    """Returns what the one of some units has spent that has spent most."""
    found = largest(book.profiles(units), delta)
    return found[0].epsilon if found else 0.0


def _open(connection: sqlite3.Connection, account: Account, units: Collection[bytes]) -> None:
    """Writes an account that is opened, or opened again."""
    turn, opened = account.turn, datetime.now(UTC).isoformat(timespec="seconds")
    connection.executemany(
        "INSERT OR IGNORE INTO members VALUES (?, ?)", [(account.cohort, unit) for unit in sorted(units)]
    )
    facts = (account.id, account.run, account.client, account.opened or opened)
    counts = (account.cohort, account.reserved, account.begun, account.committed)
    connection.execute(
        "INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
        (*facts, *astuple(turn), *counts),
    )
