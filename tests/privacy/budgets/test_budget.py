"""A site's budget: whom it knows, whom it refuses, and what it counts whatever is killed and when."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import problems_of, refused

from fedstrata.client.accounts import TOKEN, TurnAccount, account_id
from fedstrata.client.releases import Release, ReleaseRecord
from fedstrata.client.store import ClientStore
from fedstrata.core import site_database
from fedstrata.core.errors import BudgetRefusedError, ConfigurationError
from fedstrata.core.site_database import SITE_DATABASE
from fedstrata.core.types import Plan, Update
from fedstrata.privacy.budgets import budget
from fedstrata.privacy.budgets.accounts import Account, Request
from fedstrata.privacy.budgets.budget import Terms, read_budget, reserve, room_for
from fedstrata.privacy.budgets.database import require_budget
from fedstrata.privacy.budgets.events import GAUSSIAN, MechanismEvent, composed
from fedstrata.privacy.budgets.pseudonyms import PseudonymKey
from fedstrata.wire import frame

DELTA = 1e-3
TURN = MechanismEvent(GAUSSIAN, 1.0, 0.1, 10)
KEY = PseudonymKey(bytes(32))
TERMS = Terms("patient", DELTA, KEY.check, "name")


def cost(turns: int) -> float:
    """What so many turns cost, and a little more: a cap with room for them and no more."""
    return composed([replace(TURN, steps=10 * turns)], DELTA) * 1.0001


def asked(account: str, turns: int = 4, patients: Sequence[str] = ("ada", "bea"), **more: object) -> Request:
    units = {KEY.of("patient", name) for name in patients}
    return replace(Request(account, "run", "north", TURN, turns, units), **more)  # type: ignore[arg-type]


def accounts(path: Path) -> dict[str, Account]:
    return dict(read_budget(path)[1].accounts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.db"


def test_a_run_that_would_pass_the_cap_is_refused_and_leaves_nothing(path: Path) -> None:
    reserve(path, TERMS, [asked("one")], cost(7))
    with refused(
        ConfigurationError,
        "budget_refused",
        at="privacy.budget.epsilon",
        values=["'north'", f"{cost(8):.4g} ", f"{cost(7):g}:", "4 turns"],
    ):
        reserve(path, TERMS, [asked("two", client="south", patients=["cid"]), asked("three")], cost(7))
    assert list(accounts(path)) == ["one"]
    reserve(path, TERMS, [asked("two", 3)], cost(7))
    with refused(ConfigurationError, "budget_refused", at="privacy.budget.epsilon"):
        room_for(path, TERMS, [asked("three", 1)], cost(7))


def test_each_patient_has_what_was_spent_for_it(path: Path) -> None:
    """Whoever was in one run alone has room that others have not."""
    reserve(path, TERMS, [asked("one", 4, ["ada", "bea"])], cost(6))
    reserve(path, TERMS, [asked("two", 6, ["cid"])], cost(6))
    reserve(path, TERMS, [asked("three", 2, ["bea"])], cost(6))
    with pytest.raises(ConfigurationError):
        reserve(path, TERMS, [asked("four", 3, ["ada"])], cost(6))
    reserve(path, TERMS, [asked("four", 2, ["ada"])], cost(6))
    other = replace(TURN, sigma=0.9)
    reserve(path, TERMS, [asked("five", 1, ["bea"], turn=other)], cost(9))
    (found,) = budget.spent_by(path, {"all": [KEY.of("patient", "bea")]}, DELTA).values()
    assert found == pytest.approx(composed([replace(TURN, steps=60), other], DELTA))


def test_a_patient_at_two_clients_of_a_run_spends_at_both(path: Path) -> None:
    two = [asked("one", client="north"), asked("two", client="south", patients=["bea", "cid"])]
    with pytest.raises(ConfigurationError) as caught:
        reserve(path, TERMS, two, cost(7))
    assert len(caught.value.problems) == 2  # both clients have her
    reserve(path, TERMS, two, cost(8))


def test_what_was_reserved_and_never_begun_is_free_once_the_run_has_ended_and_not_before(path: Path) -> None:
    reserve(path, TERMS, [asked("one", 4)], cost(5))
    budget.begin(path, "one")
    with pytest.raises(ConfigurationError):  # as if it had crashed: it may go on
        reserve(path, TERMS, [asked("two", 2)], cost(5))
    budget.end(path, ["one"])
    reserve(path, TERMS, [asked("two", 4)], cost(5))
    with pytest.raises(BudgetRefusedError):
        budget.begin(path, "one")
    with pytest.raises(ConfigurationError):  # it goes on after all, and there is no room left
        reserve(path, TERMS, [asked("one", 4)], cost(5))


def test_no_turn_begins_beyond_what_is_reserved_and_none_is_sent_that_did_not_begin(path: Path) -> None:
    reserve(path, TERMS, [asked("one", 1)], cost(5))
    with pytest.raises(BudgetRefusedError):
        budget.commit(path, "one")
    budget.begin(path, "one")
    budget.commit(path, "one")
    for count in (budget.begin, budget.commit):
        with pytest.raises(BudgetRefusedError) as caught:
            count(path, "one")
        assert str(path) not in str(caught.value)  # the server hears this
    own = accounts(path)["one"]
    assert (own.begun, own.committed, own.charged) == (1, 1, 1)


def test_a_budget_that_is_gone_lets_nothing_begin_or_leave(path: Path) -> None:
    reserve(path, TERMS, [asked("one", 2)], cost(5))
    budget.begin(path, "one")
    path.unlink()
    for count in (budget.begin, budget.commit):
        with pytest.raises(BudgetRefusedError):
            count(path, "one")
    assert not path.exists()


def test_a_run_that_goes_on_keeps_its_account_and_nothing_of_it_gets_less(path: Path) -> None:
    reserve(path, TERMS, [asked("one", 4, ["ada", "bea"])], cost(5))
    budget.begin(path, "one")
    reserve(path, TERMS, [asked("one", 3, ["bea", "cid"])], cost(5))
    own, units = accounts(path)["one"], read_budget(path)[1].units("one")
    assert (own.reserved, own.begun) == (4, 1)
    assert units == {KEY.of("patient", name) for name in ("ada", "bea", "cid")}
    with pytest.raises(ConfigurationError):
        reserve(path, TERMS, [asked("two", 2, ["ada"])], cost(5))


def in_a_process(action: Callable[[], None]) -> int:
    """Starts a process of its own; returns its number."""
    if (process := os.fork()) != 0:
        return process
    status = 1
    try:
        action()
        status = 0
    finally:
        os._exit(status)


def test_of_two_runs_that_reserve_at_once_one_alone_finds_the_room(path: Path) -> None:
    """Several times, that one may come before the other."""
    for trial in range(2):
        own = path.with_name(f"budget-{trial}.db")
        waits, starts = os.pipe()

        def one(name: str, own: Path = own, waits: int = waits) -> None:
            os.read(waits, 1)
            reserve(own, TERMS, [asked(name)], cost(7))

        processes = [in_a_process(lambda name=name: one(name)) for name in ("a", "b", "c")]  # type: ignore[misc]
        os.write(starts, b"now")
        ended = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        assert sorted(ended) == [0, 1, 1]
        assert len(accounts(own)) == 1


class Site:
    """A site whose process takes two turns of a run, and can be killed after any step of it."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path, self.sent = folder / "site", path, folder / "sent"
        self.record = ReleaseRecord(self.folder / SITE_DATABASE, "site")
        self.left = -1

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def turn(self, number: int) -> None:
        plan, store = frame.encode(Plan({"w": torch.tensor([float(number)])})), ClientStore(self.folder, 1)
        account = TurnAccount(self.path, account_id(self.folder, TURN))
        release = Release(self.record, self.folder, (number, "train", 1), plan, 9, account)
        if release.finished(store) is None:
            release.begin()
            self.step()
            with self.sent.open("a") as drawn:  # from here on something may be known to somebody
                drawn.write(f"drawn {number}\n")
            self.step()
            release.finish(Update({"w": torch.tensor([1.0])}), store)
        self.step()
        if f"sent {number}" not in (self.sent.read_text() if self.sent.exists() else ""):  # the same again
            with self.sent.open("a") as sent:
                sent.write(f"sent {number}\n")
        self.step()

    def run(self) -> None:
        account = account_id(self.folder, TURN, make=True)
        self.step()
        begun = self.record.turns_begun
        reserve(self.path, TERMS, [asked(account, 9, begun=begun)], cost(12))
        self.step()
        for number in (1, 2):
            self.turn(number)
        budget.end(self.path, [account])
        self.step()

    def killed_after(self, steps: int) -> int:
        """Runs in a process of its own until a step; returns how that ended."""

        def run() -> None:
            transaction, account = site_database.transaction, (TurnAccount.begin, TurnAccount.commit)

            @contextmanager
            def stepping(connection: sqlite3.Connection) -> Iterator[None]:
                before = connection.total_changes
                with transaction(connection):
                    yield
                    if connection.total_changes > before:
                        self.step()  # between the writing of one file and of the next as well

            site_database.transaction = stepping
            TurnAccount.begin = lambda own: (account[0](own), self.step())[0]  # type: ignore[method-assign]
            TurnAccount.commit = lambda own: (self.step(), account[1](own))[1]  # type: ignore[method-assign]
            self.left = steps
            self.run()

        return os.waitstatus_to_exitcode(os.waitpid(in_a_process(run), 0)[1])

    def told(self, what: str) -> int:
        return self.sent.read_text().count(what) if self.sent.exists() else 0


@pytest.mark.slow
def test_whatever_step_a_site_is_killed_after_no_less_is_counted_than_was_drawn_or_sent(
    tmp_path: Path,
) -> None:
    steps, _ = 0, cost(9)  # a figure that its processes then know
    while True:
        steps += 1
        folder = tmp_path / str(steps)
        folder.mkdir()
        site = Site(folder, folder / "budget.db")
        status = site.killed_after(steps)
        own = list(accounts(site.path).values()) if site.path.exists() else []
        if status == 0:
            assert own[0].ended
            break
        assert status == -signal.SIGKILL
        if own and not own[0].ended:
            assert own[0].charged == 9, "all that was reserved, as long as it may go on"
            with pytest.raises(ConfigurationError):
                reserve(site.path, TERMS, [asked("other", 4)], cost(12))
        assert sum(each.begun for each in own) >= site.told("drawn")
        assert sum(each.committed for each in own) >= site.told("sent")
        assert site.killed_after(0) == 0, "it goes on"
        (after,) = accounts(site.path).values()
        assert after.ended
        assert after.charged == after.begun >= max(site.told("drawn"), 2)
        assert after.committed >= 2
        assert site.record.turns_begun <= after.begun
    assert steps > 14, "every step was tried"


def test_terms_of_a_budget_do_not_change_and_all_that_differs_is_told(path: Path) -> None:
    reserve(path, TERMS, [asked("one")], cost(5))
    other = Terms("document", 1e-4, PseudonymKey(bytes(31) + b"1").check, "site")
    with pytest.raises(ConfigurationError) as caught:
        room_for(path, other, [], cost(5))
    assert problems_of(caught.value) == [
        ("privacy.unit", "conflict"),
        ("privacy.budget.delta", "conflict"),
        ("privacy.budget.path", "wrong_key"),
        ("privacy.budget.disjoint_sites", "conflict"),
    ]
    unit, delta, *_ = (problem.message for problem in caught.value.problems)
    assert re.search("'patient' .*, not 'document'", unit)
    assert re.search(r"0\.001, not 0\.0001", delta)


def test_what_is_no_budget_or_a_damaged_one_is_named(path: Path) -> None:
    path.write_bytes(b"no database at all, of any kind" * 40)
    path.chmod(0o600)
    with refused(ConfigurationError, "damaged", at="privacy.budget.path", values=[path]):
        require_budget(path)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE something (x)")
    path.chmod(0o600)
    with refused(ConfigurationError, "wrong_format", at="privacy.budget.path", values=[path]):
        reserve(path, TERMS, [asked("one")], cost(5))
    path.unlink()
    reserve(path, TERMS, [asked("one")], cost(5))
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 9")
    with refused(
        ConfigurationError, "unknown_version", at="privacy.budget.path", values=["version 9", "version 2"]
    ):
        require_budget(path)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ("UPDATE accounts SET kind = 'laplace'", ["account 1", "kind 'laplace'"]),
        ("UPDATE accounts SET sigma = -1.0", ["account 1", "sigma -1.0"]),
        ("UPDATE accounts SET sigma = 9e999", ["account 1", "sigma inf"]),
        ("UPDATE accounts SET sigma = 'much'", ["account 1", "sigma 'much'"]),
        ("UPDATE accounts SET rate = 1.5", ["account 1", "rate 1.5"]),
        ("UPDATE accounts SET steps = -10", ["account 1", "steps -10"]),
        ("UPDATE accounts SET reserved = -4", ["account 1", "reserved -4"]),
        ("UPDATE accounts SET begun = x'00'", ["account 1", "begun b"]),
        ("UPDATE accounts SET committed = 3", ["account 1", "committed"]),
        ("UPDATE accounts SET ended = 7", ["account 1", "ended 7"]),
        ("UPDATE accounts SET kind = 'skellam'", ["account 1", "skellam"]),
        ("UPDATE accounts SET cohort = x'00'", ["members"]),
        ("DELETE FROM members", ["members"]),
        ("DELETE FROM terms", []),
        ("INSERT INTO members VALUES (x'00', 'ada')", ["row 1", "members", "unit 'ada'"]),
        ("UPDATE terms SET value = 'nan' WHERE name = 'delta'", ["delta 'nan'"]),
        ("UPDATE terms SET value = 'all' WHERE name = 'epsilon'", ["epsilon 'all'"]),
        ("UPDATE terms SET value = 'window' WHERE name = 'unit'", ["unit 'window'"]),
        ("UPDATE terms SET value = '' WHERE name = 'named_by'", ["named_by ''"]),
    ],
)
def test_what_no_run_has_written_is_a_damaged_budget(path: Path, change: str, values: list[str]) -> None:
    reserve(path, TERMS, [asked("one")], cost(5))
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    uses = (lambda: read_budget(path), lambda: room_for(path, TERMS, [asked("two")], cost(9)))
    for use in (*uses, lambda: reserve(path, TERMS, [asked("two")], cost(9))):
        with refused(ConfigurationError, "damaged", at="privacy.budget.path", values=["budget.db", *values]):
            use()


def test_a_budget_is_a_secret(path: Path) -> None:
    reserve(path, TERMS, [asked("one")], cost(5))
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with refused(ConfigurationError, "not_secret", values=[path, "chmod 600"]):
        reserve(path, TERMS, [asked("two", 1)], cost(9))


def test_a_file_with_nothing_in_it_is_what_a_killed_run_leaves(path: Path) -> None:
    path.touch(mode=0o600)
    require_budget(path)
    with pytest.raises(BudgetRefusedError):
        budget.begin(path, "one")
    reserve(path, TERMS, [asked("one")], cost(5))
    assert len(accounts(path)) == 1


def test_names_are_not_in_the_file_and_units_of_equal_runs_are_stored_once(path: Path) -> None:
    names = [f"patient number {number}" for number in range(500)]
    for run in range(3):
        reserve(path, TERMS, [asked(str(run), 1, names)], cost(9))
    assert b"patient number" not in path.read_bytes()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT COUNT(*) FROM members").fetchone() == (500,)


def test_pseudonyms_are_of_a_key_a_unit_and_a_name_alone(tmp_path: Path) -> None:
    made = PseudonymKey.create(tmp_path / "budget.key")
    again = PseudonymKey.read(tmp_path / "budget.key")
    assert made.of("patient", "ada") == again.of("patient", "ada")
    others = {
        made.of(*names)
        for names in (("patient", "ada"), ("document", "ada"), ("patient", "a", "da"), ("patient", "ad", "a"))
    }
    others.add(PseudonymKey(bytes(32)).of("patient", "ada"))
    assert len(others) == 5
    with refused(ConfigurationError, "exists", values=[tmp_path / "budget.key"]):
        PseudonymKey.create(tmp_path / "budget.key")


def test_a_turn_without_an_account_does_not_begin(tmp_path: Path) -> None:
    with refused(BudgetRefusedError, "not_reserved"):
        account_id(tmp_path, TURN)
    first = account_id(tmp_path / "site", TURN, make=True)
    assert (tmp_path / "site" / TOKEN).exists()
    assert account_id(tmp_path / "site", TURN) == first
    assert account_id(tmp_path / "site", replace(TURN, sigma=0.9)) != first
