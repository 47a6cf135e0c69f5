"""Server and sites are killed between any two durable writes: one sum comes out, or none, never a second."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from secure_federation import FIVE, NAME, NEXT, SUBJECT, Federation, equal
from support import refused

from fedstrata.core.errors import FrameError
from fedstrata.core.site_database import SiteDatabaseError
from fedstrata.privacy.secure_sum.messages import ReleasedShares
from fedstrata.privacy.secure_sum.refusals import AlreadyReleased, AttemptNotHigher, OutOfOrder
from fedstrata.privacy.secure_sum.release_guard import ReleaseGuard
from fedstrata.privacy.secure_sum.unmasking import SumUnmasking
from fedstrata.wire.frame import Frame

WRITES = 1 + 1 + 4
"""Of a server: the masked sum, the signatures, the shares of each survivor."""


class Killed(BaseException):
    """Where a process ends."""


def killing(
    write: Callable[[Frame, Path], None], last: int, *, before: bool
) -> Callable[[Frame, Path], None]:
    """A way to write frames of which one is the last, done or not done."""
    numbers = count(1)

    def killed(frame: Frame, path: Path) -> None:
        number = next(numbers)
        if before and number == last:
            raise Killed
        write(frame, path)
        if number == last:
            raise Killed

    return killed


def finished(federation: Federation, unmasking: SumUnmasking) -> Any:
    """What a server does that has begun again: it asks for what it has not stored."""
    survivors = unmasking.survivors
    if unmasking.proof is None:
        unmasking.prove([federation.clients[site].sign(survivors) for site in survivors.sites])
    for site in unmasking.waiting:
        unmasking.take(federation.released_by(site, unmasking))
    return unmasking.finish()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("last", range(1, WRITES + 1))
def test_a_server_that_is_killed_finishes_the_same_unmasking(
    last: int, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(FIVE, tmp_path / "sum")
    with monkeypatch.context() as patched:
        patched.setattr(Frame, "write", killing(Frame.write, last, before=before))
        with pytest.raises(Killed):
            federation.run({"input": FIVE[:1]})
    if last == 1 and before:
        assert not (tmp_path / "sum" / "masked-sum.safetensors").exists(), "no share has left: begin again"
        assert equal(Federation(FIVE, tmp_path / "sum", NEXT).run(), FIVE)
        return
    (tmp_path / "sum" / ".shares-04.safetensors.1.tmp").write_bytes(b"half")
    resumed = SumUnmasking.resume(tmp_path / "sum")
    assert equal(finished(federation, resumed), FIVE[1:])
    again = SumUnmasking.resume(tmp_path / "sum")
    assert again.ready
    assert equal(again.finish(), FIVE[1:]), "however often"
    with refused(OutOfOrder, "exists", values=[tmp_path / "sum"]):
        Federation(FIVE, tmp_path / "sum", NEXT).run()


def test_a_site_that_is_lost_meanwhile_is_done_without(tmp_path: Path) -> None:
    federation = Federation(FIVE, tmp_path / "sum")
    unmasking = federation.proven()
    unmasking.take(federation.released_by(FIVE[0], unmasking))
    resumed = SumUnmasking.resume(tmp_path / "sum")
    assert resumed.waiting == FIVE[1:]
    for site in FIVE[1:4]:
        assert not resumed.ready
        resumed.take(federation.released_by(site, unmasking))
    assert equal(resumed.finish(), FIVE)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("masked-sum.safetensors", "damaged"),
        ("proof.safetensors", "malformed_frame"),
        ("shares-02.safetensors", "malformed_frame"),
    ],
)
def test_a_damaged_file_is_named(file: str, code: str, tmp_path: Path) -> None:
    Federation(FIVE, tmp_path / "sum").run()
    path = tmp_path / "sum" / file
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with refused(FrameError, code, values=[file]):
        SumUnmasking.resume(tmp_path / "sum")


class DyingConnection(sqlite3.Connection):
    """A connection whose process is killed before one of its statements."""

    left = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        if type(self).left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        type(self).left -= 1
        return super().execute(*arguments)


def in_a_child(work: Callable[[], object], statements: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a process gets to the end of its work that is killed after so many statements."""
    child = os.fork()
    if not child:
        connect = sqlite3.connect
        DyingConnection.left = statements
        monkeypatch.setattr(
            sqlite3, "connect", lambda *a, **named: connect(*a, **named, factory=DyingConnection)
        )
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), "killed, or done"
    return code == 0


def guard_in(path: Path) -> ReleaseGuard:
    return ReleaseGuard(path, FIVE[0])


def test_a_site_killed_at_any_statement_never_forgets_a_share_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statements in count():
        guard = guard_in(tmp_path / f"{statements}.sqlite")
        guard.begin(NAME)
        done = in_a_child(lambda: guard.release(NAME, SUBJECT.plan, FIVE), statements, monkeypatch)  # noqa: B023
        guard.begin(NEXT)
        if done:
            with pytest.raises(AlreadyReleased):
                guard.release(NEXT, SUBJECT.plan, FIVE[:4])
            break
        guard.release(NEXT, SUBJECT.plan, FIVE[:4])  # no share left
    assert statements > len(("PRAGMA", "BEGIN", "INSERT", "COMMIT"))


def test_a_site_killed_at_any_statement_never_begins_an_attempt_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statements in count():
        guard = guard_in(tmp_path / f"{statements}.sqlite")
        done = in_a_child(lambda: guard.begin(NAME), statements, monkeypatch)  # noqa: B023
        if done:
            with pytest.raises(AttemptNotHigher):
                guard.begin(NAME)
            break
        guard.begin(NAME)
    assert statements > len(("PRAGMA", "BEGIN", "INSERT", "COMMIT"))


def test_a_site_killed_before_its_shares_arrive_has_released_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(FIVE, tmp_path / "sum", guards={FIVE[0]: guard_in(tmp_path / "site.sqlite")})
    unmasking = federation.proven()

    def killed(**fields: object) -> ReleasedShares:
        raise Killed

    monkeypatch.setattr("fedstrata.privacy.secure_sum.client.ReleasedShares", killed)
    with pytest.raises(Killed):
        federation.unmask(unmasking)
    guard = guard_in(tmp_path / "site.sqlite")
    guard.begin(NEXT)
    with pytest.raises(AlreadyReleased):
        guard.release(NEXT, SUBJECT.plan, FIVE[:4])
    guard.release(NEXT, SUBJECT.plan, FIVE)


def test_a_record_that_cannot_be_read_lets_no_sum_begin(tmp_path: Path) -> None:
    guard = guard_in(tmp_path / "site.sqlite")
    guard.begin(NAME)
    (tmp_path / "site.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(SiteDatabaseError):
        guard.begin(NEXT)
    with pytest.raises(SiteDatabaseError):
        guard.require_same(NAME, SUBJECT.plan, FIVE)
    with pytest.raises(SiteDatabaseError):
        guard.release(NAME, SUBJECT.plan, FIVE)


def test_what_is_recorded_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite syncs file and folder before a transaction ends, and it has ended when the method returns."""
    said: list[str] = []

    class Listening(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            said.append(arguments[0])
            if arguments[0] == "COMMIT":
                assert super().execute("PRAGMA synchronous").fetchone() == (3,)
            return super().execute(*arguments)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **named: connect(*a, **named, factory=Listening))
    guard = guard_in(tmp_path / "site.sqlite")
    for work in (
        lambda: guard.begin(NAME),
        lambda: guard.release(NAME, SUBJECT.plan, FIVE),
        lambda: guard.trained_on("train", "aa" * 32),
    ):
        said.clear()
        work()
        assert said[-1] == "COMMIT"
