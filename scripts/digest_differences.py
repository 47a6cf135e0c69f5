"""What differs between the files of two runs, for scripts/digests.py: tensors, numbers and predictions.

Compared are:

- every tensor of every safetensors file, by its name: dtype, shape and bytes;
- every number of `NUMBERS`, by its path of keys;
- what was predicted, which lies in folders called `FOUND`.

Not compared are texts, logs, reports, hashes, the order of keys, and what `Names` leaves out.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

NUMBERS = ("summary.json", "record.jsonl", "egress.jsonl")
"""Names of the files whose numbers are compared."""
FOUND = "found"
"""A folder of predictions, whose files are compared line by line, and JSON by its values."""

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Names:
    """What was renamed, and what is left out.

    Attributes:
        keys: Old to new keys of numbers, each one key or several with dots between; None leaves them out.
        files: Old to new names of files and folders: regular expressions of one or more parts of a path.
        events: Keys that say which event a line of a JSONL file is, by their new names.
    """

    keys: Mapping[str, str | None] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[str] = ()

    @cached_property
    def _rules(self) -> Mapping[str, Sequence[tuple[Keys, Keys | None]]]:
        """The renamed keys by the first old one, the longest paths first."""
        rules: dict[str, list[tuple[Keys, Keys | None]]] = {}
        for old, new in sorted(self.keys.items(), key=lambda rule: -rule[0].count(".")):
            keys = tuple(old.split("."))
            rules.setdefault(keys[0], []).append((keys, None if new is None else tuple(new.split("."))))
        return rules

    def of_keys(self, path: Keys) -> Keys | None:
        """Returns the new path of a number, or None if it is left out."""
        renamed: list[str] = []
        while path:
            for old, new in self._rules.get(path[0], ()):
                if path[: len(old)] == old:
                    if new is None:
                        return None
                    renamed += new
                    path = path[len(old) :]
                    break
            else:
                renamed.append(path[0])
                path = path[1:]
        return tuple(renamed)

    def of_event(self, value: Any) -> str:
        """Returns what says which event a line is; the kinds of events are renamed as keys are."""
        return ".".join(self.of_keys((str(value),)) or (str(value),))

    def of_file(self, path: str) -> str:
        """Returns the new place of a file."""
        for old, new in self.files.items():
            path = re.sub(rf"(?<![^/]){old}(?![^/])", new, path)
        return path


def differences(old: Path, new: Path, names: Names) -> Iterator[str]:
    """Yields what differs between the files that two sides of a case have left.

    Args:
        old: The folder of the older side.
        new: The folder of the newer side.
        names: What was renamed between the two.
    """
    files = [{names.of_file(str(path.relative_to(side))): path for path in kept(side)} for side in (old, new)]
    for place in sorted(files[0].keys() | files[1].keys()):
        if not (named := compared(place)):
            continue
        if len(found := [each[place] for each in files if place in each]) < len(files):
            yield f"{place}: only the {'old' if place in files[0] else 'new'} side has this file"
            continue
        one, other = (contents(path, named, names) for path in found)
        for name in sorted(one.keys() | other.keys()):
            if said := difference(one.get(name), other.get(name)):
                yield f"{place} {name}: {said}"


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def compared(place: str) -> str:
    """Returns how a file is compared: by tensors, numbers or values, or "" if not at all."""
    path = Path(place)
    if path.suffix == ".safetensors":
        return "tensors"
    if FOUND in path.parts[:-1]:
        return "values"
    return "numbers" if path.name in NUMBERS else ""


def contents(path: Path, kind: str, names: Names) -> dict[str, Any]:
    """Returns what is compared of a file, by name."""
    if kind == "tensors":
        from safetensors.torch import load_file  # noqa: PLC0415 - imports torch

        return dict(load_file(path))
    text = path.read_text(encoding="utf-8")
    if path.suffix not in {".json", ".jsonl"}:
        return {f"line {number}": line for number, line in enumerate(text.splitlines(), 1)}
    if kind == "values":
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        return {".".join(keys): value for keys, value in leaves([json.loads(line) for line in lines])}
    if path.suffix == ".json":
        return numbers(json.loads(text), names)
    seen: Counter[str] = Counter()
    told: dict[str, Any] = {}
    for line in text.splitlines():
        event = renamed(json.loads(line), names)
        which = " ".join(
            names.of_event(event[(key,)]) for key in names.events if event.get((key,)) is not None
        )
        seen[which] += 1
        place = f"{which} #{seen[which]}" if seen[which] > 1 else which
        told |= {f"{place} {'.'.join(keys)}": value for keys, value in event.items() if is_number(value)}
    return told


def numbers(value: Any, names: Names) -> dict[str, Any]:
    """Returns the numbers of a JSON value by their new paths."""
    return {".".join(keys): each for keys, each in renamed(value, names).items() if is_number(each)}


def renamed(value: Any, names: Names) -> dict[Keys, Any]:
    found = ((names.of_keys(keys), each) for keys, each in leaves(value))
    return {keys: each for keys, each in found if keys is not None}


def leaves(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yields every value that is no list and no mapping, with its path."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, str(key)))
    else:
        yield path, value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def difference(old: Any, new: Any) -> str:
    """Returns how two values or tensors differ, or "" if they do not."""
    if old is None or new is None or is_number(old) or isinstance(old, str):
        same = old == new or (is_number(old) and is_number(new) and math.isnan(old) and math.isnan(new))
        return "" if same else f"{short(old)} -> {short(new)}"
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"{short(old)} -> {short(new)}"
    if same_bytes(old, new):
        return ""
    apart = (old.double() - new.double()).abs().max().item()
    return f"{short(old)} differs by up to {apart:.3g}, of values up to {old.double().abs().max().item():.3g}"


def same_bytes(old: Any, new: Any) -> bool:
    import torch  # noqa: PLC0415 - slow

    one, other = (each.contiguous().reshape(-1).view(torch.uint8) for each in (old, new))
    return torch.equal(one, other)


def short(value: Any) -> str:
    if value is None:
        return "absent"
    if hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:120]}..."
