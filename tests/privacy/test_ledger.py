"""The ledger of what leaves a client: what is in it, tampering with it, and kills while it is written."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from private_client import PRIVATE
from support import TINY, RunTiny, refused

from fedstrata.client.turn import Order
from fedstrata.core import site_database
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Message, Plan, Update
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.privacy.ledger import LOCAL, SEEDED, UNPROTECTED, Ledger, RecordedLine, Turn
from fedstrata.privacy.ledger_summary import summary_of
from fedstrata.privacy.ledger_verification import (
    LEDGER,
    LedgerError,
    canonical,
    hash_of_line,
    ledgers_in,
    read_ledger,
    verify,
)
from fedstrata.record.log import LineLog
from fedstrata.wire import frame

LINES = 6
METHOD = "method={name: layer_skipping, top: 1}"


EDITS: dict[str, Any] = {
    "bytes": 10**6, "call": 2, "client": "south", "epsilon": 0.01, "frame": 64 * "a", "handler": "upload",
    "hash": 64 * "a", "protection": "secure aggregation", "round": 99, "run": None, "tensors": {},
    "values": {}, "what": "scores",
}  # fmt: skip


def sent(value: float) -> Update:
    return Update({"w": torch.tensor([value, 2.0])}, {"loss": value}, weight=3.0)


def take_down(folder: Path, number: int, value: float | None = None, *, durable: bool = True) -> None:
    update = sent(float(number) if value is None else value)
    with Ledger(folder, Turn("north", "0" * 16, number, "train", 1), durable=durable) as ledger:
        ledger.append("update", update, frame.encode(update), LOCAL, 0.5 * number)


def whole(folder: Path) -> list[bytes]:
    for number in range(1, LINES + 1):
        take_down(folder, number)
    return (folder / LEDGER).read_bytes().splitlines(keepends=True)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int | None]:
    """Returns the line that is named as the first wrong one of a ledger of these bytes."""
    path = tmp_path_factory.mktemp("checked") / LEDGER

    def named(lines: list[bytes], head: str | None = None) -> int | None:
        path.write_bytes(b"".join(lines))
        try:
            verify(path, {head: "told"} if head else None)
        except LedgerError as error:
            return error.line
        return None

    return named


def test_a_line_says_what_left(tmp_path: Path) -> None:
    take_down(tmp_path, 1)
    (line,) = read_ledger(tmp_path / LEDGER)
    bytes_sent = frame.encode(sent(1.0)).tobytes()
    assert line["frame"] == frame.split(bytes_sent).sha256()
    turn = [line[name] for name in ("client", "run", "round", "handler", "call")]
    assert turn == ["north", "0" * 16, 1, "train", 1]
    assert (line["what"], line["bytes"]) == ("update", len(bytes_sent))
    assert line["tensors"] == {"w": ["F32", [2], 8]}
    assert line["values"] == {"loss": 1.0, "weight": 3.0}
    assert (line["protection"], line["epsilon"]) == (LOCAL, 0.5)


def test_a_long_value_is_told_by_its_length(tmp_path: Path) -> None:
    message = Message({}, {"text": 1000 * "x", "counts": [1, 2]})
    with Ledger(tmp_path, Turn("north"), durable=True) as ledger:
        ledger.append("greeting", message, frame.encode(message))
    (line,) = read_ledger(tmp_path / LEDGER)
    assert line["values"] == {"text": "1002 characters of JSON", "counts": [1, 2]}


def test_the_same_bytes_again_count_once(tmp_path: Path) -> None:
    for number, value in ((1, 1.0), (2, 2.0), (2, 2.5), (2, 2.0), (2, 2.0), (1, 1.0)):
        take_down(tmp_path, number, value)
    lines = list(read_ledger(tmp_path / LEDGER))
    assert [line["again"] for line in lines] == [None, None, None, 2, 2, 1]
    summary = summary_of(lines)
    assert summary.times == 3
    assert summary.bytes == sum(line["bytes"] for line in lines[:3])
    assert [row.repeats for row in summary.sent] == [1, 2]


@given(data=st.data())
def test_an_edit_is_found_in_its_line(
    written: list[bytes], check: Callable[..., int | None], data: st.DataObject
) -> None:
    edited = data.draw(st.integers(0, LINES - 1))
    line = bytearray(written[edited])
    place = data.draw(st.integers(0, len(line) - 2))
    line[place] = data.draw(st.integers(0, 255).filter(lambda value: value != line[place]))
    assert check([*written[:edited], bytes(line), *written[edited + 1 :]]) == edited + 1


@given(edited=st.integers(0, LINES - 1), field=st.sampled_from(sorted(EDITS)))
def test_a_fact_that_was_changed_is_found_in_its_line(
    written: list[bytes], check: Callable[..., int | None], edited: int, field: str
) -> None:
    """The last line's too, though nothing comes after it."""
    line = canonical({**json.loads(written[edited]), field: EDITS[field]}) + b"\n"
    assert check([*written[:edited], line, *written[edited + 1 :]]) == edited + 1


@given(place=st.integers(0, LINES - 2), value=st.floats(allow_nan=False, allow_infinity=False))
def test_a_forged_line_with_a_hash_that_fits_is_found_by_the_next(
    written: list[bytes], check: Callable[..., int | None], place: int, value: float
) -> None:
    line = {**json.loads(written[place]), "values": {"loss": value}}
    forged = canonical({**line, "hash": hash_of_line(line)}) + b"\n"
    assert check([*written[:place], forged, *written[place + 1 :]]) == place + 2


@given(order=st.permutations(range(LINES)).filter(lambda order: order != list(range(LINES))))
def test_lines_in_another_order_are_found(
    written: list[bytes], check: Callable[..., int | None], order: list[int]
) -> None:
    first = next(place for place, number in enumerate(order) if place != number)
    assert check([written[number] for number in order]) == first + 1


@given(start=st.integers(0, LINES - 2), count=st.integers(1, LINES))
def test_lines_cut_out_at_the_front_or_in_the_middle_are_found(
    written: list[bytes], check: Callable[..., int | None], start: int, count: int
) -> None:
    end = min(start + count, LINES - 1)
    assert check([*written[:start], *written[end:]]) == start + 1


@given(data=st.data())
def test_a_line_that_is_cut_short_is_found(
    written: list[bytes], check: Callable[..., int | None], data: st.DataObject
) -> None:
    last = data.draw(st.integers(0, LINES - 1))
    length = data.draw(st.integers(1, len(written[last]) - 1))
    assert check([*written[:last], written[last][:length]]) == last + 1


def test_a_tail_that_was_cut_is_seen_against_the_head_that_others_know(
    written: list[bytes], check: Callable[..., int | None]
) -> None:
    heads = [json.loads(line)["hash"] for line in written]
    for left in range(LINES + 1):
        assert check(written[:left]) is None, "what is left is a whole ledger"
        for known, head in enumerate(heads, start=1):
            assert check(written[:left], head) == (None if known <= left else left + 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes": -1},
        {"bytes": True},
        {"bytes": 7},  # fewer than the tensor's
        {"round": 1.0},
        {"epsilon": -0.5},
        {"epsilon": "0"},
        {"tensors": {"w": ["F32", [2]]}},
        {"tensors": {"w": ["F32", [-2], 8]}},
        {"tensors": []},
        {"values": None},
        {"client": "x" * 70_000},
        {"frame": "0" * 63},
        {"again": 1},
        {"again": 0},
        {"version": 2},
        {"more": 1},
    ],
)
def test_what_no_client_writes_is_refused(
    written: list[bytes], check: Callable[..., int | None], changes: dict[str, Any]
) -> None:
    line = {**json.loads(written[0]), **changes}
    assert check([canonical({**line, "hash": hash_of_line(line)}) + b"\n"]) == 1


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":1,"a":1}', b"\xff", b"", b"1" * 5000, b"null"])
def test_what_is_no_line_is_refused(check: Callable[..., int | None], text: bytes) -> None:
    assert check([text + b"\n"]) == 1


def test_a_line_is_written_in_one_way(written: list[bytes], check: Callable[..., int | None]) -> None:
    """Else it could be changed, and what hashes cover would not."""
    first = written[0]
    for other in (first.replace(b'","', b'", "', 1), first.replace(b"{", b'{"call":7,', 1), b" " + first):
        assert other != first
        assert check([other, *written[1:]]) == 1


def test_a_ledger_that_is_damaged_is_not_gone_on_with(tmp_path: Path) -> None:
    lines = whole(tmp_path)
    (tmp_path / LEDGER).write_bytes(b"".join([*lines[:-1], b"{}\n"]))
    with refused(ConfigurationError, "damaged", values=[tmp_path / LEDGER]):
        take_down(tmp_path, LINES + 1)


def test_two_processes_do_not_write_to_one_ledger(tmp_path: Path) -> None:
    message = Message({}, {"one": 1})
    with Ledger(tmp_path, Turn("north"), durable=True) as ledger:
        ledger.append("message", message, frame.encode(message))
        with refused(ConfigurationError, "in_use"):
            take_down(tmp_path, 1)


def kill_at(number: int, when: str) -> None:
    """Kills this process at one of its durable writes: of a line, or of rows of its site's database."""
    write, transaction, written = LineLog.write, site_database.transaction, [0]

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def line_instead(log: LineLog, line: bytes, *, durable: bool) -> None:
        written[0] += 1
        if written[0] < number or when == "after it":
            write(log, line, durable=durable)
        elif when == "half way":
            log._file.write(line[: len(line) // 2])
        if written[0] == number:
            die()

    @contextmanager
    def rows_instead(connection: sqlite3.Connection) -> Iterator[None]:
        before = connection.total_changes
        with transaction(connection):
            yield
            changed = connection.total_changes > before
            written[0] += changed
            if changed and written[0] == number and when != "after it":
                die()
        if changed and written[0] == number:
            die()

    LineLog.write = line_instead  # type: ignore[method-assign]
    site_database.transaction = rows_instead


def sent_until_killed(work: Callable[[Callable[[str], None]], object], number: int, when: str) -> list[str]:
    """Does some work in a process that is killed at a durable write; returns what it has sent before."""
    read, written = os.pipe()
    if (process := os.fork()) == 0:
        try:
            kill_at(number, when)
            work(lambda text: os.write(written, f"{text}\n".encode()))  # type: ignore[arg-type, return-value]
        finally:
            os._exit(3)
    os.close(written)
    with os.fdopen(read) as file:
        found = file.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    return found


def test_a_disk_that_is_full_for_a_while_leaves_a_whole_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = Message({}, {"one": 1})
    with Ledger(tmp_path, Turn("north"), durable=True) as ledger:

        def say() -> None:
            ledger.append("message", message, frame.encode(message))

        def full(log: LineLog, line: bytes, *, durable: bool) -> None:
            log._file.write(line[:40])
            raise OSError(28, "No space left on device")

        say()
        with monkeypatch.context() as patched:
            patched.setattr(LineLog, "write", full)
            with pytest.raises(OSError, match="No space"):
                say()
        say()
        say()
    assert [line["again"] for line in read_ledger(tmp_path / LEDGER)] == [None, 1, 1]


class Pipe:
    """A line to a server that hears hashes of frames; implements `core.client.Line`."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send

    def send(self, message: Message) -> None:
        self._send(frame.encode(message).sha256())


@pytest.mark.parametrize("when", ["before it", "half way", "after it"])
@pytest.mark.parametrize("number", [1, 3])
def test_whatever_is_killed_has_taken_down_what_it_sent(tmp_path: Path, number: int, when: str) -> None:
    """And the next process goes on with the chain."""

    def work(send: Callable[[str], None]) -> None:
        with Ledger(tmp_path, Turn("north", None, 1, "train", 1), durable=True) as ledger:
            line = ledger.line(Pipe(send))
            assert isinstance(line, RecordedLine)
            for value in range(5):
                line.send(Message({}, {"value": value}))

    heard = sent_until_killed(work, number, when)
    assert len(heard) == number - 1
    work(heard.append)
    lines = list(read_ledger(tmp_path / LEDGER))
    frames = [line["frame"] for line in lines if line["again"] is None]
    assert frames == heard[number - 1 :], "what was sent before is told as sent again"
    assert len(lines) == 5 + number - (when != "after it")


@cache
def private_experiment() -> Experiment:
    """Turns begin with what the server sends, whoever has used its model before."""
    settings = (METHOD, "privacy.noise=secure", "privacy.steps=1")
    return prepare(read_source(None, [*TINY, *PRIVATE, *settings]))


@pytest.mark.parametrize("when", ["before it", "half way", "after it"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_private_turn_that_is_killed_has_spent_and_told_what_it_sent(
    tmp_path: Path, number: int, when: str
) -> None:
    """It writes that it has begun, that it has finished, and what leaves."""
    experiment = private_experiment()
    engine = LocalEngine(experiment, tmp_path, lambda event, facts: None)
    engine.workplace.apart = True  # as at a site, whose lines hold hashes of what left
    plan = frame.encode(Plan(experiment.method.start(experiment.model).tensors))

    def work(send: Callable[[str], None]) -> None:
        done = engine.compute(Order("site-1", 1, "train", 1, plan))
        send(done.update.sha256())

    heard = sent_until_killed(work, number, when)
    assert heard == []
    work(heard.append)
    lines = list(read_ledger(tmp_path / "clients" / "site-1" / LEDGER))
    assert set(heard) <= {line["frame"] for line in lines}
    turns = engine.turns_begun("site-1")
    assert turns == (2 if (number, when) in {(1, "after it"), (2, "before it"), (2, "half way")} else 1)
    assert {line["protection"] for line in lines} == {LOCAL}
    assert lines[-1]["epsilon"] == experiment.privacy.epsilon("site-1", turns)


def test_what_nobody_signs_is_not_hashed_and_a_site_cannot_leave_its_hashes_out(
    run_once: RunTiny, written: list[bytes], check: Callable[..., int | None]
) -> None:
    run = run_once(METHOD, "threads=1")
    for path in ledgers_in(run.folder):
        assert verify(path)[0] == 2
        assert [(line["frame"], line["again"]) for line in read_ledger(path)] == [(None, None)] * 2
        simulated = path.read_bytes().splitlines(keepends=True)
    line = {**json.loads(written[0]), "frame": None}
    assert check([canonical({**line, "hash": hash_of_line(line)}) + b"\n"]) == 1, "it is of a served run"
    line = {**json.loads(simulated[1]), "frame": 64 * "a"}
    forged = canonical({**line, "hash": hash_of_line(line)}) + b"\n"
    assert check([simulated[0], forged]) == 2, "one ledger has hashes or has none"


@pytest.mark.parametrize(("privacy", "protection"), [((), UNPROTECTED), (PRIVATE, SEEDED)])
def test_a_ledger_has_the_bytes_and_the_epsilon_of_the_record(
    run_once: RunTiny, privacy: tuple[str, ...], protection: str
) -> None:
    run = run_once(*privacy, METHOD, "threads=1")
    rounds = run.of("round")
    for site in (1, 2, 3):
        lines = list(read_ledger(run.folder / "clients" / f"site-{site}" / LEDGER))
        assert [line["bytes"] for line in lines] == [
            event["exchanges"][f"site-{site}"]["bytes_up"] for event in rounds
        ]
        assert {line["protection"] for line in lines} == {protection}
        if privacy:
            told = [event["privacy"]["clients"][f"site-{site}"]["epsilon"] for event in rounds]
            assert [line["epsilon"] for line in lines] == told
