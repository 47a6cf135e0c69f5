"""Scores as tables for people: what is scored over everything, and type by type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedstrata.record.words import score


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """A table of scores.

    Attributes:
        columns: The heading of each column of numbers.
        rows: The name and the cells of each row.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def overall(scores: Mapping[str, float]) -> dict[str, float]:
    """Returns the scores over everything: those whose name is not `SCORE/TYPE`."""
    return {name: value for name, value in scores.items() if "/" not in name}


def score_tables(scores: Mapping[str, float]) -> list[ScoreTable]:
    """Returns scores as one table where every type has the scores there are over everything, else as two.

    Args:
        scores: By name, `SCORE` or `SCORE/TYPE`.

    >>> for table in score_tables({"f1": 0.5, "f1/drug": 0.25}):
    ...     print(table.columns, table.rows)
    ('f1',) (('all', ('0.500',)), ('drug', ('0.250',)))
    """
    total = overall(scores)
    parts = [name.partition("/") for name in scores if "/" in name]
    single = tuple(dict.fromkeys(name for name, _, _ in parts))
    types = tuple(
        (kind, _cells([(name, scores.get(f"{name}/{kind}")) for name in single]))
        for kind in dict.fromkeys(kind for _, _, kind in parts)
    )
    if set(single) == set(total):
        everything = ("all", _cells([(name, total[name]) for name in single]))
        return [ScoreTable(single, (everything, *types))] if total else []
    tables = [ScoreTable(("score",), tuple((name, _cells([(name, value)])) for name, value in total.items()))]
    return [*tables, ScoreTable(single, types)] if types else tables


def compared(scores: Mapping[str, Mapping[str, float]]) -> ScoreTable:
    """Returns the scores over everything of several, a column each.

    Args:
        scores: The scores of each, by its name.
    """
    names = dict.fromkeys(name for own in scores.values() for name in overall(own))
    rows = tuple((name, _cells([(name, own.get(name)) for own in scores.values()])) for name in names)
    return ScoreTable(tuple(scores), rows)


def _cells(values: Sequence[tuple[str, float | None]]) -> tuple[str, ...]:
    return tuple(score(value, name) for name, value in values)
