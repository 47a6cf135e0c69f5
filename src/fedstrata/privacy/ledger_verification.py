"""What has left a client, read from its ledger: every line is checked before anything of it is believed.

A ledger is a file of lines of canonical JSON. Each holds the hash of all else in it (`hash`) and the hash of
the line before (`before`), so that a line that was changed, moved or taken out is found. A tail that was cut
off is not: what is left is a whole ledger. It is seen against the hash of a later line, the head that
somebody else was told.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedstrata.core.errors import FedstrataError, printable, refused
from fedstrata.core.files import bytes_in

LEDGER = "egress.jsonl"
"""The ledger of one client, where it keeps what is its own."""
VERSION = 1
NOTHING = 64 * "0"
"""In place of the hash of the line before the first."""
LONGEST_LINE = 2**24
"""Bytes that a line may have."""
_ENCODER = json.JSONEncoder(allow_nan=False, sort_keys=True, separators=(",", ":"))
_HASH = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 2**16
_MOST = 2**63
_WORDS = ("client", "handler", "protection", "what")
_NUMBERS = ("bytes", "call", "number", "round")
_FIELDS = frozenset(
    {*_WORDS, *_NUMBERS, "again", "before", "epsilon", "frame", "hash", "run", "tensors", "values", "version"}
)

Line = Mapping[str, Any]
"""One line of a ledger; docs/ledger.md says what is in it."""


class LedgerError(FedstrataError):
    """A ledger is not what its client wrote.

    Args:
        path: The ledger.
        line: The first line that is wrong, counted from 1.
        why: What is wrong with it.
        code: What is wrong, as programs tell it.
    """

    code = "damaged"

    def __init__(self, path: Path, line: int, why: str, code: str | None = None) -> None:
        super().__init__(f"{path}, line {line}: {why}", code=code)
        self.line = line


def canonical(line: Line) -> bytes:
    """Returns the one way in which a line is written.

    Raises:
        ValueError: It holds what is no JSON; NaN is not.
    """
    return _ENCODER.encode(line).encode()


def is_hash(text: str) -> bool:
    """Whether a text is written as the hash of a line is."""
    return _HASH.fullmatch(text) is not None


def hash_of_line(line: Line) -> str:
    """Returns the hash of all of a line but for the hash that it holds itself."""
    text = canonical({name: value for name, value in line.items() if name != "hash"})
    return hashlib.sha256(text).hexdigest()


def parse(text: bytes) -> Line | None:
    """Returns a line without its line break; none if it is not written as lines are."""
    try:
        line = json.loads(text)
        return line if isinstance(line, dict) and canonical(line) == text else None
    except (ValueError, RecursionError):
        return None


def ledgers_in(path: Path) -> list[Path]:
    """Returns the ledgers that a path stands for.

    Args:
        path: A ledger, a client's folder, a run directory, or the folder of what clients keep of all runs.

    Raises:
        ConfigurationError: There is none.
    """
    if path.is_file():
        return [path]
    patterns = (LEDGER, f"clients/*/{LEDGER}", f"run-*/clients/*/{LEDGER}")
    if found := [each for pattern in patterns for each in sorted(path.glob(pattern))]:
        return found
    message = f"{path} holds no ledger: neither {LEDGER} nor clients/ID/{LEDGER} is in it"
    raise refused("PATH", message, "not_found")


def read_ledger(path: Path) -> Iterator[Line]:
    """Yields the lines of a ledger, each once it is known to be what was written.

    Raises:
        ConfigurationError: It cannot be read.
        LedgerError: A line is wrong; it and all that come after it are not yielded.
    """
    before, first, frames = NOTHING, None, [""]
    for number, text in enumerate(_texts(path), start=1):
        line = parse(text[:-1]) if text.endswith(b"\n") else None
        if line is None:
            raise LedgerError(path, number, *_unreadable(text))
        if wrong := _wrong_in(line):
            raise LedgerError(path, number, wrong)
        if line["hash"] != hash_of_line(line):
            why = "it was changed after it was written: its hash is another"
            raise LedgerError(path, number, why, "wrong_hash")
        first = first or line
        if wrong := _wrong_after(line, number, before, first):
            raise LedgerError(path, number, wrong, "wrong_chain")
        if line["again"] is not None and frames[line["again"]] != line["frame"]:
            why = f"it says that line {line['again']} was sent again, of other bytes"
            raise LedgerError(path, number, why, "wrong_chain")
        frames.append(line["frame"])
        before = line["hash"]
        yield line


def verify(path: Path, heads: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Checks a whole ledger.

    Args:
        path: The ledger.
        heads: The hashes of lines that it must hold, and where each is known from.

    Returns:
        How many lines it has, and the hash of the last.

    Raises:
        ConfigurationError: It cannot be read.
        LedgerError: A line is wrong, or that of a head is missing.
    """
    count, last, missing = 0, NOTHING, dict(heads or {})
    for line in read_ledger(path):
        count, last = line["number"], line["hash"]
        missing.pop(last, None)
    for head, known in missing.items():
        why = f"no line has the hash {head} ({known}): the ledger was cut off, or replaced"
        raise LedgerError(path, count + 1, why, "line_missing")
    return count, last


def _texts(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file with their line breaks, none longer than what is too long."""
    if not path.is_file():
        bytes_in(path)  # which says why it cannot be read
    with path.open("rb") as file:
        while text := file.readline(LONGEST_LINE + 1):
            yield text


def _unreadable(text: bytes) -> tuple[str, str]:
    """Returns why a line cannot be read, and the code of that."""
    if len(text) > LONGEST_LINE:
        return f"it has more than {LONGEST_LINE:,} bytes, which no line has", "too_large"
    if not text.endswith(b"\n"):
        told = "it was cut off, or not written to its end: what it was written for has not left the client"
        return told, "cut_short"
    return "it is no canonical JSON, which every line is written as", "damaged"


def _wrong_in(line: Line) -> str:
    """Returns what is wrong with a line by itself, but for its hash; nothing if nothing is."""
    if line.keys() != _FIELDS:
        return (
            f"its fields are not those of a line: {printable(', '.join(sorted(line.keys() ^ _FIELDS)), 200)}"
        )
    simulated = line["frame"] is None and line["run"] is None and line["again"] is None
    sound = {
        "version": line["version"] == VERSION and type(line["version"]) is int,
        "before": isinstance(line["before"], str) and is_hash(line["before"]),
        "frame": simulated or (isinstance(line["frame"], str) and is_hash(line["frame"])),
        **{name: isinstance(line[name], str) and len(line[name]) <= _LONGEST_NAME for name in _WORDS},
        **{name: _counts(line[name]) for name in _NUMBERS},
        "run": line["run"] is None or (isinstance(line["run"], str) and len(line["run"]) <= _LONGEST_NAME),
        "epsilon": line["epsilon"] is None or (type(line["epsilon"]) is float and line["epsilon"] >= 0),
        "values": isinstance(line["values"], dict),
        "tensors": isinstance(line["tensors"], dict) and all(map(_is_tensor, line["tensors"].values())),
        "again": line["again"] is None or (_counts(line["again"]) and line["again"] >= 1),
    }
    if wrong := [name for name, fine in sound.items() if not fine]:
        return f"its {wrong[0]} is not what it can be"
    if sum(size for _, _, size in line["tensors"].values()) > line["bytes"]:
        return "its tensors have more bytes than all that was sent"
    return ""


def _wrong_after(line: Line, number: int, before: str, first: Line) -> str:
    """Returns what is wrong with a line in its place; nothing if nothing is."""
    if line["number"] != number:
        return f"it was written as line {line['number']}: lines were taken out, or moved"
    if line["before"] != before:
        what = "there was a line before the first" if number == 1 else f"line {number - 1} was another"
        return f"{what} when it was written"
    if (line["client"], line["run"]) != (first["client"], first["run"]):
        return (
            f"it is of client {printable(line['client'])!r}, and the first of {printable(first['client'])!r}"
        )
    if (line["frame"] is None) != (first["frame"] is None):
        return "it is of a simulation and the first line is not, or the other way round"
    if line["again"] is not None and line["again"] >= number:
        return f"it says that line {line['again']} was sent again, which comes later"
    return ""


def _counts(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_tensor(value: object) -> bool:
    """Whether something says what a tensor is: dtype, shape, bytes."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    dtype, shape, size = value
    return isinstance(dtype, str) and isinstance(shape, list) and all(map(_counts, [*shape, size]))
