"""What runs have at clients, as a budget holds it, and who was in which of them."""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.privacy.budgets.events import MechanismEvent, Profile, profile_of
from fedstrata.privacy.budgets.rows import AccountRow, MemberRow, checked


@dataclass(frozen=True, slots=True)
class Request:
    """What a run asks for at one client.

    Attributes:
        account: The id of its account, by which it finds it again.
        run: The run's name, for people.
        client: The client's name.
        turn: What one turn releases of each unit.
        turns: How many turns it may take.
        units: Pseudonyms of all units that it trains on.
        begun: Turns that it is known to have begun.
    """

    account: str
    run: str
    client: str
    turn: MechanismEvent
    turns: int
    units: Collection[bytes]
    begun: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """What a run has at one client.

    Attributes:
        id: Its id.
        run: The run's name.
        client: The client's name.
        opened: When it was, in UTC.
        turn: What one turn releases of each unit.
        reserved: Turns that it may take.
        begun: Turns that it has begun.
        committed: Turns whose update may have been sent.
        ended: Whether the run has come to its end.
        cohort: Names the units that it trains on.
    """

    id: str
    run: str
    client: str
    opened: str
    turn: MechanismEvent
    reserved: int
    begun: int
    committed: int
    ended: bool
    cohort: bytes

    @property
    def charged(self) -> int:
        """The turns that count: all that are reserved as long as the run may go on, then those it began."""
        return self.begun if self.ended else max(self.reserved, self.begun)

    @property
    def charges(self) -> MechanismEvent:
        """All steps that count."""
        return replace(self.turn, steps=self.turn.steps * self.charged)


@dataclass(frozen=True, slots=True)
class Book:
    """All of a budget, as it is read.

    Attributes:
        accounts: By id, the oldest first.
        cohorts: The cohorts that each unit is in.
    """

    accounts: Mapping[str, Account]
    cohorts: Mapping[bytes, Sequence[bytes]]

    @classmethod
    def read(cls, connection: sqlite3.Connection | None) -> Book:
        """Reads the accounts of a budget; none holds none.

        Raises:
            sqlite3.DataError: Something is in it that no run has written; the message says what.
        """
        if connection is None:
            return cls({}, {})
        cursor = connection.cursor()
        cursor.row_factory = sqlite3.Row
        accounts, members, cohorts = (
            {},
            defaultdict[bytes, set[bytes]](set),
            defaultdict[bytes, list[bytes]](list),
        )
        for place, row in enumerate(cursor.execute("SELECT * FROM members"), start=1):
            own = checked(MemberRow, dict(row), f"row {place} of members")
            members[own.cohort].add(own.unit)
            cohorts[own.unit].append(own.cohort)
        rows = cursor.execute("SELECT * FROM accounts ORDER BY opened, run, client, id")
        for place, row in enumerate(rows, start=1):
            account = _account(checked(AccountRow, dict(row), f"account {place}"))
            accounts[account.id] = account
            members[account.cohort] |= set()
        if any(cohort != cohort_of(units) for cohort, units in members.items()):
            raise sqlite3.DataError("members do not belong to the accounts")
        return cls(accounts, cohorts)

    def units(self, account: str) -> set[bytes]:
        """Returns the units of an account."""
        own = self.accounts.get(account)
        return {unit for unit, its in self.cohorts.items() if own is not None and own.cohort in its}

    def without(self, accounts: Collection[str]) -> Book:
        """Returns the book as it would be without some accounts."""
        left = {name: own for name, own in self.accounts.items() if name not in accounts}
        return Book(left, self.cohorts)

    def with_requests(self, requests: Sequence[Request]) -> Book:
        """Returns the book as it would be with what a run asks for; nothing of an account gets less."""
        accounts, cohorts = dict(self.accounts), {unit: list(its) for unit, its in self.cohorts.items()}
        for each in requests:
            before = accounts.get(each.account)
            units = set(each.units) | self.units(each.account)
            cohort = cohort_of(units)
            for unit in units:
                if cohort not in cohorts.setdefault(unit, []):
                    cohorts[unit].append(cohort)
            accounts[each.account] = Account(
                each.account,
                each.run,
                each.client,
                before.opened if before else "",
                before.turn if before else each.turn,
                max(each.turns, before.reserved if before else 0),
                max(each.begun, before.begun if before else 0),
                before.committed if before else 0,
                ended=False,
                cohort=cohort,
            )
        return Book(accounts, cohorts)

    def profiles(self, units: Collection[bytes] | None = None) -> dict[Profile, int]:
        """Returns how many units have had what released of them.

        Args:
            units: Those that are asked for; all if none.
        """
        by_cohort: dict[bytes, list[MechanismEvent]] = defaultdict(list)
        for own in self.accounts.values():
            by_cohort[own.cohort].append(own.charges)
        alike = Counter(
            tuple(sorted(its)) for unit, its in self.cohorts.items() if units is None or unit in units
        )
        profiles: Counter[Profile] = Counter()
        for cohorts, count in alike.items():
            profiles[profile_of(event for cohort in cohorts for event in by_cohort[cohort])] += count
        return {profile: count for profile, count in profiles.items() if profile}


def _account(row: AccountRow) -> Account:
    turn = MechanismEvent(row.kind, row.sigma, row.rate, row.steps, row.l2, row.l1, row.numbers)
    return Account(
        row.id,
        row.run,
        row.client,
        row.opened,
        turn,
        row.reserved,
        row.begun,
        row.committed,
        ended=bool(row.ended),
        cohort=row.cohort,
    )


def cohort_of(units: Collection[bytes]) -> bytes:
    """Returns the name of so many units together: those of two runs on the same units are one cohort."""
    return hashlib.sha256(b"".join(sorted(units))).digest()
