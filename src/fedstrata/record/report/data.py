"""What a report says of the data: who has what, how clients differ, and what is the matter with it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedstrata.record.corpus import PARTS, cut_shares, data_lines
from fedstrata.record.report import plots

CLASSES_SHOWN = 25
"""Columns of a table of classes at most; the most frequent ones are shown."""
KINDS = {
    "mentions": "Types of mentions",
    "relations": "Types of relations",
    "labels": "Labels",
    "pairs": "Pairs that relations are looked for between",
}
"""The heading of a table of classes, by their kind."""

Counts = Mapping[str, int | None]


def data_section(start: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the section of a report shows of the data.

    Args:
        start: The `run` event. A server knows of its clients' documents how many there are, and no more.
    """
    corpus = start.get("corpus")
    rows = _rows(start["clients"], corpus)
    return {
        "rows": rows[: plots.SHOWN],
        "more": max(0, len(rows) - plots.SHOWN),
        "patients": bool(corpus and corpus["patients"]),
        "words": corpus is not None,
        "hidden": any(count is None for own in start["clients"].values() for count in own.values())
        or bool(corpus and corpus["small_counts"] == "hide"),
        "warnings": data_lines(corpus),
        "classes": [_classes(kind, own) for kind, own in (corpus or {}).get("classes", {}).items()],
        "looked": _looked(corpus),
        "repeated": _repeated(corpus),
        "compared": corpus is None or corpus["duplicates"]["compared"],
        "cut": _cut(corpus),
        "partition": (corpus or {}).get("partition"),
        "apart": corpus is None and start.get("id") is not None,
    }


def _rows(clients: Mapping[str, Counts], corpus: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns for each client its documents, their patients and their lengths in words, by part."""
    return [
        {
            "client": name,
            "documents": [counts.get(part) for part in PARTS],
            "patients": [own.get(part) for part in PARTS] if (own := _of(corpus, "patients", name)) else None,
            "words": (_of(corpus, "words", name) or {}).get(PARTS[0]),
        }
        for name, counts in clients.items()
    ]


def _of(corpus: Mapping[str, Any] | None, what: str, client: str) -> Mapping[str, Any] | None:
    return ((corpus or {}).get(what) or {}).get(client)


def _classes(kind: str, clients: Mapping[str, Mapping[str, Counts]]) -> dict[str, Any]:
    """Returns a table of how often each client has each class, and what share of its own that is.

    Training documents are counted, and of a client without any those that are scored. Hidden counts have no
    share, and none in those of others.
    """
    own = {
        name: parts[PARTS[0]] or _added(parts[part] for part in PARTS[1:]) for name, parts in clients.items()
    }
    totals: dict[str, int] = {}
    for counts in own.values():
        for each, count in counts.items():
            totals[each] = totals.get(each, 0) + (count or 0)
    columns = sorted(totals, key=lambda each: (-totals[each], each))
    shown = columns[:CLASSES_SHOWN]
    return {
        "heading": KINDS[kind],
        "columns": shown,
        "more": len(columns) - len(shown),
        "rows": [(name, _cells(counts, shown)) for name, counts in own.items()][: plots.SHOWN],
    }


def _cells(counts: Counts, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the count of each class, and its share of all that the client has."""
    every, hidden = sum(filter(None, counts.values())), None in counts.values()
    cells = []
    for column in columns:
        count = counts.get(column, 0)
        share = 100 * count / every if count else 0.0
        cells.append({"count": count, "share": share, "exact": bool(count) and not hidden})
    return cells


def _added(several: Iterable[Counts]) -> dict[str, int | None]:
    """Returns the sum of counts; of a hidden one there is none."""
    total: dict[str, int | None] = {}
    for counts in several:
        for name, count in counts.items():
            before = total.get(name, 0)
            total[name] = None if None in (before, count) else (before or 0) + (count or 0)
    return total


def _looked(corpus: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns a table of what somebody looked for at each client; none where that is everything."""
    looked: Mapping[str, Any] = (corpus or {}).get("looked", {})
    if corpus is None or not looked:
        return None
    shown = list(looked)[:CLASSES_SHOWN]
    rows = [
        (name, [_share_of(looked[each][name], corpus["documents"][name]) for each in shown])
        for name in list(corpus["documents"])[: plots.SHOWN]
    ]
    return {"columns": shown, "more": len(looked) - len(shown), "rows": rows}


def _share_of(looked: Counts, documents: Counts) -> str:
    """Returns in words in how many documents of all parts somebody looked for something."""
    found, every = ([counts[part] for part in PARTS] for counts in (looked, documents))
    if found == every:
        return "yes"
    if not any(count != 0 for count in found):
        return "no"
    if None in found or None in every:
        return "in some"
    return f"in {sum(filter(None, found)):,} of {sum(filter(None, every)):,}"


def _repeated(corpus: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns what is there twice, of each client that has anything of it: equal, and nearly so."""
    if corpus is None:
        return []
    found = corpus["duplicates"]
    rows = []
    for name, learnt in found["learnt"].items():
        cells = [*(learnt[part] for part in PARTS[1:]), found["elsewhere"][name]]
        if any(cell[what] != 0 for cell in cells for what in ("equal", "near")):
            rows.append({"client": name, "cells": cells})
    return rows[: plots.SHOWN]


def _cut(corpus: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns what share of documents and tokens is not read, over all clients and of each."""
    whole = cut_shares(corpus)
    if corpus is None or whole is None or not any(own and own["documents"] for own in whole.values()):
        return None
    clients = {name: cut_shares({"cut": {name: own}}) or {} for name, own in corpus["cut"].items()}
    return {"whole": whole, "clients": dict(list(clients.items())[: plots.SHOWN]), "room": corpus["room"]}
