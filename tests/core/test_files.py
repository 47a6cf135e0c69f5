"""Files and folders that appear complete or not at all: what their errors name, and what stays."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstrata.core.files import (
    half_written,
    new_folder,
    private_folder,
    reserve,
    taking_turns,
    write_atomically,
)


def test_errors_name_what_was_to_be_written_and_leave_nothing(tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "scores.json"
    with pytest.raises(FileNotFoundError) as missing:
        write_atomically(absent, [b"{}"])
    assert missing.value.filename == str(absent)
    within = tmp_path / "file" / "folder"
    within.parent.write_text("")
    with pytest.raises(NotADirectoryError) as refused, new_folder(within):
        pass
    assert refused.value.filename == str(within)
    with pytest.raises(FileNotFoundError) as inside, new_folder(tmp_path / "folder") as unfinished:
        (unfinished / "a" / "b").write_text("")
    assert inside.value.filename == str(tmp_path / "folder" / "a" / "b")
    with pytest.raises(OSError, match="File too large") as full, new_folder(tmp_path / "folder"):
        raise Exception("File too large (os error 27)")  # as tokenizers says it
    assert full.value.filename == str(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_was_there_stays_until_all_is_written(tmp_path: Path) -> None:
    def pieces():
        yield b"half"
        raise RuntimeError("and no more")

    path = tmp_path / "scores.json"
    write_atomically(path, [b"before"])
    with pytest.raises(RuntimeError, match="and no more"):
        write_atomically(path, pieces())
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_what_is_written_is_its_owners_alone_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private_folder(tmp_path / "run" / "clients" / "north")
        write_atomically(tmp_path / "run" / "scores.json", [b"{}"])
        reserve(tmp_path / "run" / "cache", 10)
        (tmp_path / "open").mkdir()
        private_folder(tmp_path / "open")
        left = mode(tmp_path / "open")
        private_folder(tmp_path / "open", existing=True)
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o1777)
        private_folder(tmp_path / "shared", existing=True)
        with new_folder(tmp_path / "model", private=True) as unfinished:
            (unfinished / "weights").write_text("")
    finally:
        os.umask(before)
    made = (tmp_path / "run", tmp_path / "run" / "clients", tmp_path / "run" / "clients" / "north")
    assert {mode(path) for path in (*made, tmp_path / "model")} == {0o700}
    files = (tmp_path / "run" / "scores.json", *half_written(tmp_path / "run" / "cache"))
    assert [mode(path) for path in (*files, tmp_path / "model" / "weights")] == [0o600] * 3
    assert (left, mode(tmp_path / "open"), mode(tmp_path / "shared")) == (0o777, 0o700, 0o1777)


def test_one_process_at_a_time_is_let_in(tmp_path: Path) -> None:
    with taking_turns(tmp_path / "lock"), (tmp_path / "lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with taking_turns(tmp_path / "lock"):
        pass


def test_what_is_reserved_has_its_size_until_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    reserve(path, 1000)
    sizes = []

    def pieces() -> Iterator[bytes]:
        for piece in (b"half", b"whole"):
            sizes.extend(found.stat().st_size for found in half_written(path))
            yield piece

    write_atomically(path, pieces())
    assert sizes == [1000, 1000]
    assert path.read_bytes() == b"halfwhole"
    assert not half_written(path)
