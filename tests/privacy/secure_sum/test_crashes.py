"""Server and sites are killed between any two durable writes: one sum comes out, or none, never a second."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from secure_federation import NAME, SITES, Federation, equal

from fedstrata.core.errors import FrameError
from fedstrata.privacy.secure_sum.attempts import SumAttempts
from fedstrata.privacy.secure_sum.messages import ReleasedShares
from fedstrata.privacy.secure_sum.refusals import (
    AlreadyReleased,
    AttemptNotHigher,
    AttemptsDamaged,
    OutOfOrder,
)
from fedstrata.privacy.secure_sum.unmasking import SumUnmasking
from fedstrata.wire.frame import Frame

FIVE = SITES[:5]
NEXT = NAME.model_copy(update={"attempt": 1})
WRITES = 1 + 1 + 4
"""Of a server: the masked sum, the signatures, the shares of each survivor."""


class Killed(BaseException):
    """Where a process ends."""


def killing(
    write: Callable[[Frame, Path], None], last: int, *, before: bool
) -> Callable[[Frame, Path], None]:
    """A way to write frames of which one is the last, done or not done."""
    count = 0

    def killed(frame: Frame, path: Path) -> None:
        nonlocal count
        count += 1
        if before and count == last:
            raise Killed
        write(frame, path)
        if count == last:
            raise Killed

    return killed


def finished(federation: Federation, unmasking: SumUnmasking) -> Any:
    """What a server does that has begun again: it asks for what it has not stored."""
    survivors = unmasking.survivors
    if unmasking.proof is None:
        unmasking.prove([federation.clients[site].sign(survivors) for site in survivors.sites])
    assert unmasking.proof is not None
    for site in unmasking.waiting:
        unmasking.take(federation.clients[site].unmask(unmasking.proof))
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
    with pytest.raises(OutOfOrder, match="resume it"):
        Federation(FIVE, tmp_path / "sum", NEXT).run()


def test_a_site_that_is_lost_meanwhile_is_done_without(tmp_path: Path) -> None:
    federation = Federation(FIVE, tmp_path / "sum")
    unmasking = federation.masked_sum()
    federation.consistency(unmasking)
    assert unmasking.proof is not None
    unmasking.take(federation.clients[FIVE[0]].unmask(unmasking.proof))
    resumed = SumUnmasking.resume(tmp_path / "sum")
    assert resumed.waiting == FIVE[1:]
    for site in FIVE[1:4]:
        assert not resumed.ready
        resumed.take(federation.clients[site].unmask(unmasking.proof))
    assert equal(resumed.finish(), FIVE)


@pytest.mark.parametrize("file", ["masked-sum.safetensors", "proof.safetensors", "shares-02.safetensors"])
def test_a_damaged_file_is_named(file: str, tmp_path: Path) -> None:
    Federation(FIVE, tmp_path / "sum").run()
    path = tmp_path / "sum" / file
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(FrameError, match=file):
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


@pytest.mark.parametrize("statements", range(8))
def test_a_site_killed_at_any_statement_never_forgets_a_share_that_left(
    statements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = SumAttempts(tmp_path / "sums.sqlite")
    attempts.begin(NAME)
    if in_a_child(lambda: attempts.release(NAME), statements, monkeypatch):
        with pytest.raises(AlreadyReleased):
            attempts.begin(NEXT)
    else:
        attempts.begin(NEXT)  # no share left


@pytest.mark.parametrize("statements", range(8))
def test_a_site_killed_at_any_statement_never_begins_an_attempt_twice(
    statements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = SumAttempts(tmp_path / "sums.sqlite")
    if in_a_child(lambda: attempts.begin(NAME), statements, monkeypatch):
        with pytest.raises(AttemptNotHigher):
            attempts.begin(NAME)
    else:
        attempts.begin(NAME)


@pytest.mark.parametrize("statements", range(10))
def test_sums_that_begin_together_are_taken_down_all_or_none(
    statements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = SumAttempts(tmp_path / "sums.sqlite")
    names = NAME, NAME.model_copy(update={"handler": "train/saturated"})

    def begin() -> None:
        with attempts.together():
            for name in names:
                attempts.begin(name)

    if in_a_child(begin, statements, monkeypatch):
        for name in names:
            with pytest.raises(AttemptNotHigher):
                attempts.begin(name)
    else:
        begin()


def test_a_sum_that_may_not_begin_keeps_the_others_from_beginning(tmp_path: Path) -> None:
    attempts = SumAttempts(tmp_path / "sums.sqlite")
    other = NAME.model_copy(update={"handler": "train/saturated"})
    attempts.begin(NAME)
    with pytest.raises(AttemptNotHigher), attempts.together():
        attempts.begin(other)
        attempts.begin(NAME)
    attempts.begin(other)


def test_a_site_killed_before_its_shares_arrive_has_released_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = {SITES[0]: SumAttempts(tmp_path / "sums.sqlite")}
    federation = Federation(FIVE, tmp_path / "sum", attempts=attempts)
    unmasking = federation.masked_sum()
    federation.consistency(unmasking)

    def killed(**fields: object) -> ReleasedShares:
        raise Killed

    monkeypatch.setattr("fedstrata.privacy.secure_sum.client.ReleasedShares", killed)
    with pytest.raises(Killed):
        federation.unmask(unmasking)
    with pytest.raises(AlreadyReleased):
        SumAttempts(tmp_path / "sums.sqlite").begin(NEXT)


def test_a_record_that_cannot_be_read_lets_no_sum_begin(tmp_path: Path) -> None:
    attempts = SumAttempts(tmp_path / "sums.sqlite")
    attempts.begin(NAME)
    (tmp_path / "sums.sqlite").write_bytes(b"no database" * 1000)
    for work in (attempts.begin, attempts.release):
        with pytest.raises(AttemptsDamaged, match=r"sums\.sqlite .* without it no sum is safe"):
            work(NEXT)


def test_shares_of_a_sum_that_never_began_do_not_leave(tmp_path: Path) -> None:
    with pytest.raises(AttemptNotHigher, match="no share leaves"):
        SumAttempts(tmp_path / "sums.sqlite").release(NAME)


def test_what_is_taken_down_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    attempts = SumAttempts(tmp_path / "sums.sqlite")
    for work in (attempts.begin, attempts.release):
        said.clear()
        work(NAME)
        assert said[-1] == "COMMIT"
