"""What files and outputs come to, for scripts/digests.py: all of them but what no two runs have in common.

Tensors are hashed, JSON and text are kept as they are. What depends on the clock, the memory, the machine or
a draw of the system stands in `SCRUBBED` and `TEXTS`, each with its reason, and is replaced and not left out:
that it is there, and where, still counts.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

CLOCK, MEMORY, MACHINE, DRAWN = "<clock>", "<memory>", "<machine>", "<drawn>"

SCRUBBED: Mapping[str, str] = {
    "time": CLOCK,  # of an event; a summary's section of this name is gone through
    "ended": CLOCK,
    "seconds": CLOCK,
    "total_seconds": CLOCK,
    "train_seconds": CLOCK,
    "serve_seconds": CLOCK,
    "evaluate_seconds": CLOCK,
    "finish_seconds": CLOCK,
    "preparation_seconds": CLOCK,
    "engine_overhead_seconds": CLOCK,
    "seconds_per_round": CLOCK,
    "seconds_per_client_round": CLOCK,
    "train_seconds_per_round": CLOCK,
    "serve_seconds_per_round": CLOCK,
    "record_bytes": CLOCK,  # a plan's: the record of its rehearsal holds seconds, whose digits vary
    "peak_rss_bytes": MEMORY,
    "peak_memory_megabytes": MEMORY,
    "available_rss_bytes": MACHINE,
    "available_gpu_bytes": MACHINE,
    "free_bytes": MACHINE,
    "machine": MACHINE,
}
"""Values of these keys are not those of another run."""

_TIME = r"\d[\d,.]* (?:s|min|h)\b(?: \d+ (?:s|min)\b)?"
TEXTS: tuple[tuple[str, str], ...] = (
    (r"run-[0-9a-f]{16}\b", f"run-{DRAWN}"),  # the id of a served run, in the names of clients' folders
    (r"(?m)^(the server at .* cannot be reached yet.*|.* has joined)\n", ""),  # which process is there first
    (r"\blocalhost:\d+|\b127\.0\.0\.1:\d+", f"localhost:{DRAWN}"),  # a free port
    (_TIME, CLOCK),
    (r"[\d,.]+ documents a second", f"{CLOCK} documents a second"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", CLOCK),
    (r"(?<=of the temporary folder, which has )[\d.e+]+ GB", MACHINE),  # what is free there
    (r"\d+ cores? of .*?, (?=\d+ side by side)", f"{MACHINE}, "),  # below the table of a comparison
    (r"(?m)^\S+\.py:\d+: (\w+: .*)\n  .*$", r"\1"),  # the line of code that warns
    (r"[^\s\"']*/fedstrata/models/", f"{MACHINE}/fedstrata/models/"),  # where the package lies
    (r": \n +(?=<root>)", ": "),  # a line of YAML that is folded, or not, by the length of the root
)
"""What is replaced in texts, in this order."""

_FIGURE = re.compile(r"<svg.*?</svg>", flags=re.DOTALL)
_LABEL = re.compile(r'aria-label="([^"]*)"')
_SPENT = "seconds by what they were spent on"
"""The figure that shows nothing but seconds."""
_REPORT: tuple[tuple[str, str], ...] = (
    (rf"({CLOCK}), [\d.]+ %", r"\1"),  # the share of the time
    (r"(<dt>Peak memory</dt><dd>)[^<]*", rf"\1{MEMORY}"),
    (r"<td>\d+\.\d</td></tr>", f"<td>{CLOCK}</td></tr>"),  # the seconds of a round, the last of its row
)
_TEXT = {".yaml", ".md", ".txt", ".log", ".ann", ".con", ".rel", ".conll", ".pem", ""}
_LARGEST = 40_000
"""Bytes of a file of JSON or text that is kept; of a larger one there is the hash of what would be."""


def folder_digest(folder: Path, root: Path, given: Collection[Path]) -> dict[str, Any]:
    """Returns the digest of every file in a folder, by its place there.

    Args:
        folder: The folder.
        root: The folder of everything, of which no digest may speak.
        given: Files that were there before, which are left out.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path not in given)
    return {scrubbed_text(str(path.relative_to(folder)), root): file_digest(path, root) for path in paths}


def file_digest(path: Path, root: Path) -> Any:
    """Returns what a file holds, or the hash of it."""
    if path.suffix == ".safetensors":
        return _tensors(path, root)
    content = path.read_bytes()
    if path.suffix == ".html":
        return _report(content.decode(), root)
    if path.suffix == ".jsonl":
        return _in_order([json_digest(line, root) for line in content.splitlines()])
    if path.suffix not in {".json", ".csv", *_TEXT}:
        return _hash(content)
    if path.suffix == ".json":
        digest = json_digest(content, root)
    elif path.suffix == ".csv":
        digest = _table(content.decode(), root)
    else:
        digest = scrubbed_text(content.decode(), root).splitlines()
    return digest if len(content) <= _LARGEST else _hash(json.dumps(digest, sort_keys=True).encode())


def json_digest(text: str | bytes, root: Path) -> Any:
    """Returns what a JSON text says, without what `SCRUBBED` names."""
    return _scrubbed(json.loads(text), root)


def scrubbed_text(text: str, root: Path) -> str:
    """Returns a text without what another run would not say, and without the place of this one."""
    text = text.replace(str(root), "<root>")
    for pattern, replacement in TEXTS:
        text = re.sub(pattern, replacement, text)
    return text


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Yields where two digests differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key, "<absent>"), other.get(key, "<absent>"), f"{place}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, its, f"{place}[{index}]")
    elif one != other:
        yield f"{place}: {_short(one)} != {_short(other)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else f"{text[:160]}..."


def _scrubbed(node: Any, root: Path, key: str = "") -> Any:
    """Returns JSON without what `SCRUBBED` names; what is null stays null."""
    if key in SCRUBBED and node is not None and not (key == "time" and isinstance(node, dict)):
        return SCRUBBED[key]
    if isinstance(node, dict):
        if node.get("event") == "run" and "id" in node:
            node = {**node, "id": DRAWN}  # of a served run
        if "record_bytes" in node:
            node = {**node, "bytes": CLOCK}  # the sum that it is a part of
        return {scrubbed_text(name, root): _scrubbed(inner, root, name) for name, inner in node.items()}
    if isinstance(node, list):
        return [_scrubbed(inner, root) for inner in node]
    return scrubbed_text(node, root) if isinstance(node, str) else node


def _in_order(events: list[Any]) -> list[Any]:
    """Returns a record; of a served run, whose clients end when they like, with those of a round by name."""
    if not events or "ends" not in events[0]:
        return events
    found: list[Any] = []
    for is_client, group in groupby(events, key=lambda event: event.get("event") == "client"):
        alike = list(group)
        found += sorted(alike, key=itemgetter("client")) if is_client else alike
    return found


def _tensors(path: Path, root: Path) -> dict[str, Any]:
    """Returns the hash of a file's tensors in the order of their names, and the values beside them."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    values, digest = header.pop("__metadata__", {}), hashlib.sha256()
    for name, tensor in sorted(header.items()):
        first, last = tensor["data_offsets"]
        digest.update(repr((name, tensor["dtype"], tensor["shape"])).encode())
        digest.update(content[start + first : start + last])
    if "values" in values:
        values["values"] = json_digest(values["values"], root)
    return {"count": len(header), "tensors": digest.hexdigest(), "beside": values}


def _table(text: str, root: Path) -> list[list[str]]:
    """Returns the cells of a table, without those of columns that `SCRUBBED` names."""
    rows = list(csv.reader(io.StringIO(text)))
    titles = rows[0] if rows else []
    return [
        [
            next((SCRUBBED[name] for name in SCRUBBED if number and title.startswith(name)), cell)
            for title, cell in zip(titles, (scrubbed_text(cell, root) for cell in row), strict=False)
        ]
        for number, row in enumerate(rows)
    ]


def _report(page: str, root: Path) -> dict[str, Any]:
    """Returns the hashes of a page without its figures, and of each figure but that of the seconds."""
    figures = {}
    for number, figure in enumerate(_FIGURE.findall(page)):
        label = _LABEL.search(figure)
        name = label[1] if label else ""
        figures[f"{number} {name}"] = CLOCK if name == _SPENT else _hash(figure.encode())
    text = scrubbed_text(_FIGURE.sub("<svg/>", page), root)
    for pattern, replacement in _REPORT:
        text = re.sub(pattern, replacement, text)
    return {"page": _hash(text.encode()), "figures": figures}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
