"""Scores as tables for people: what is scored over everything, and type by type."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedstrata.record.words import ASIDE, score


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


def headings(names: Iterable[str], metric: str | None) -> list[str]:
    """Returns the scores over everything that a table of runs or clients has room for.

    Args:
        names: Of all scores.
        metric: The score a run is judged by, which is always among them.
    """
    return [name for name in names if "/" not in name and (name == metric or not name.endswith(ASIDE))]


def score_tables(scores: Mapping[str, float]) -> list[ScoreTable]:
    """Returns scores as tables: types that have a score in common share one, with the scores over everything.

    Scores over everything that no type has come in a table of their own. So do all of them where types have
    one that there is not over everything, and this table is then the first.

    Args:
        scores: By name, `SCORE` or `SCORE/TYPE`.

    >>> for table in score_tables({"f1": 0.5, "lenient_f1": 0.75, "f1/drug": 0.25}):
    ...     print(table.columns, table.rows)
    ('f1',) (('all', ('0.500',)), ('drug', ('0.250',)))
    ('score',) (('lenient_f1', ('0.750',)),)
    """
    total = overall(scores)
    tables: list[ScoreTable] = []
    for names, types in _groups(scores):
        rows = [(kind, _cells([(name, scores.get(f"{name}/{kind}")) for name in names])) for kind in types]
        if set(names) <= set(total):
            rows.insert(0, ("all", _cells([(name, total.pop(name)) for name in names])))
        tables.append(ScoreTable(tuple(names), tuple(rows)))
    if total:
        rest = tuple((name, _cells([(name, value)])) for name, value in total.items())
        tables.insert(0 if len(total) == len(overall(scores)) else len(tables), ScoreTable(("score",), rest))
    return tables


def _groups(scores: Mapping[str, float]) -> list[tuple[list[str], list[str]]]:
    """Returns the scores of single types and the types that have them, apart where no type links them."""
    by_type: dict[str, list[str]] = {}
    for full_name in scores:
        name, slash, kind = full_name.partition("/")
        if slash:
            by_type.setdefault(kind, []).append(name)
    groups: list[tuple[list[str], list[str]]] = []
    for kind, own in by_type.items():
        linked = [group for group in groups if not set(own).isdisjoint(group[0])]
        names = dict.fromkeys(name for column, _ in [*linked, (own, [])] for name in column)
        groups = [group for group in groups if group not in linked]
        groups.append((list(names), [*(one for _, types in linked for one in types), kind]))
    return groups


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
