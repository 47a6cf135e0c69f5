"""The table of a comparison: what each row's runs scored and cost, with mean and spread over seeds.

`tabulate` gives a plain mapping, which is `table.json`: every value of every seed, in the units the runs
recorded (scores as fractions). `record.table_text` renders it for people, who read scores in points.
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedstrata.record.costs import (
    COSTS,
    EMULATED_COSTS,
    PRIVATE_COSTS,
    SHOWN_COSTS,
    Column,
    Summary,
)
from fedstrata.record.over_seeds import holm, mean_interval, paired_p
from fedstrata.record.score_columns import (
    BEST,
    CLIENT,
    CLIENTS,
    EXTERNAL,
    FLOOR,
    HIGH,
    LOW,
    TRAINED,
    is_of_one,
    score_groups,
    score_of,
    scores_of,
)
from fedstrata.record.scores import headings
from fedstrata.record.target import TARGETS, Curve, Target, common_target
from fedstrata.record.words import COUNTED


@dataclass(frozen=True, slots=True)
class CellResult:
    """One run of a row, or what became of it.

    Attributes:
        seed: Its seed.
        folder: Its run directory, relative to the comparison's.
        summary: Its summary; none if it failed.
        run: The `run` event of its record; none if it failed before there was one.
        message: Why it failed.
        curve: What it had come to, round by round.
    """

    seed: int
    folder: str
    summary: Summary | None = None
    run: Mapping[str, Any] | None = None
    message: str = ""
    curve: Curve = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """One value that was tried for a tuned setting.

    Attributes:
        value: The value.
        validation: Its score on the validation split after the last round; none if the run failed.
        message: Why it failed; none if it did not.
    """

    value: Any
    validation: float | None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a row's tuned setting was chosen.

    Attributes:
        setting: Dotted path of the setting.
        chosen: The value with the best score, the first of equals; none if every trial failed.
        metric: The score of the validation split that decided.
        seed: The seed of the runs that decided.
        tried: Every value that was tried.
    """

    setting: str
    chosen: Any
    metric: str
    seed: int
    tried: list[Trial]


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row's runs.

    Attributes:
        name: Its name.
        cells: Its runs, one a seed, the same seeds for every row.
        tuning: How its tuned setting was chosen, if there is one.
    """

    name: str
    cells: tuple[CellResult, ...]
    tuning: Tuning | None = None


def score_column(name: str, title: str, falling: Collection[str] = ()) -> Column:
    """Returns how a score is shown: in points if it is a fraction, else as it is.

    Args:
        name: The score's name.
        title: What people read above it.
        falling: The scores of which less is better, which are no fractions.
    """
    if name.endswith(COUNTED):
        return Column(title, None)
    return Column(title, "lower", digits=3) if name in falling else Column(title, "higher", factor=100.0)


def tabulate(
    rows: Sequence[RowResult],
    *,
    name: str,
    columns: Sequence[str] | None = None,
    floors: Collection[str] = (),
    baseline: str | None = None,
    p_values: bool = False,
    different_data: bool = False,
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Builds the table of a comparison.

    Args:
        rows: At least one row.
        name: The comparison's name.
        columns: Columns people see; a default choice if none.
        floors: Rows that show what others must beat: never the best, and without a part in the target.
        baseline: The row that every other row is compared with, seed by seed; none if none.
        p_values: Whether differences in the score that runs are judged by have a p-value.
        different_data: Whether rows were allowed to be on different documents. If not, a row on others than
            the first row's is marked and never the best.
        machine: What the runs ran on.

    Returns:
        What `table.json` holds; see docs/comparing.md.
    """
    runs = [cell.run for row in rows for cell in row.cells if cell.run is not None]
    metric = runs[0]["metric"] if runs else None
    falling = {name for run in runs for name in run.get("lower_is_better", ())}
    described = _columns(rows, metric, falling)
    others = _on_other_documents(rows)
    outside = {*floors, *(() if different_data else others)}
    target = _target(rows, outside, falling=metric in falling)
    table: dict[str, Any] = {
        "name": name,
        "seeds": [cell.seed for cell in rows[0].cells],
        "metric": metric,
        "lower_is_better": sorted(falling),
        "baseline": baseline,
        "p_values": p_values,
        "target": target and asdict(target),
        "columns": {key: asdict(column) for key, column in described.items()},
        "shown": list(columns)
        if columns is not None
        else _default_columns(
            described,
            metric,
            emulated=_any_has(rows, EMULATED_COSTS),
            private=_any_has(rows, PRIVATE_COSTS),
        ),
        "rows": [
            {
                "name": row.name,
                "cells": [_cell(cell) for cell in row.cells],
                "same_data": row.name not in others,
                "competes": all(cell.summary for cell in row.cells)
                and row.name not in floors
                and (different_data or row.name not in others),
                "tuning": row.tuning and asdict(row.tuning),
                "values": {key: _statistics(row, key, target) for key in described},
            }
            for row in rows
        ],
        "versions": runs[0]["versions"] if runs else {},
        "machine": dict(machine),
    }
    for key, column in described.items():
        _mark_best(table["rows"], key, column)
        if baseline is not None:
            _compare_with(baseline, table["rows"], key, p_values=p_values and key == metric)
    return table


def _columns(rows: Sequence[RowResult], metric: str | None, falling: Collection[str]) -> dict[str, Column]:
    """Returns every figure the runs have: scores, the clients' mean scores, the highest floor, costs."""
    summaries = [cell.summary for row in rows for cell in row.cells if cell.summary is not None]
    groups = [scores_of(summary, prefix) for summary in summaries for prefix in ("", CLIENTS)]
    scores = dict.fromkeys(name for group in groups for name in group)
    described = {
        prefix + name: score_column(name, title.format(name), falling)
        for prefix, title in score_groups(summaries).items()
        for name in scores
        if prefix != BEST or name == metric
    }
    if metric is not None and any(summary.get(FLOOR) for summary in summaries):
        described[FLOOR] = replace(score_column(metric, f"{metric}, floor", falling), better=None)
    return {**described, **{key: column for key, (column, _) in COSTS.items()}, **TARGETS}


def _target(rows: Sequence[RowResult], others: Collection[str], *, falling: bool) -> Target | None:
    """Returns the score that all finished runs of a seed reach, but for those on other documents."""
    curves: dict[int, list[Curve]] = {}
    for row in rows:
        for cell in row.cells if row.name not in others else ():
            if cell.summary is not None:
                curves.setdefault(cell.seed, []).append(cell.curve)
    return common_target(curves, falling=falling)


def _default_columns(
    described: Mapping[str, Column], metric: str | None, *, emulated: bool, private: bool
) -> list[str]:
    groups = (CLIENTS, TRAINED, BEST, LOW, HIGH, EXTERNAL, CLIENT)
    costs = COSTS.keys() | TARGETS.keys() | {FLOOR}
    own = [key for key in described if not key.startswith(groups) and key not in costs]
    scores = sorted(headings(own, metric), key=lambda key: key != metric)  # what the runs are judged by first
    scores[1:1] = [FLOOR] if FLOOR in described else []
    clients = [group + metric for group in (CLIENTS, TRAINED) if metric and group + metric in described]
    outside = [key for key in described if metric and is_of_one(key, [metric], EXTERNAL)]
    shown = [*(PRIVATE_COSTS if private else ()), *SHOWN_COSTS]
    return [*scores, *clients, *outside, *shown, *([*EMULATED_COSTS, *TARGETS] if emulated else [])]


def _any_has(rows: Sequence[RowResult], keys: Sequence[str]) -> bool:
    """Whether any run has any of these figures, as those on emulated devices have some."""
    cells = [cell for row in rows for cell in row.cells]
    return any(_value(cell, key, None) is not None for cell in cells for key in keys)


def _value(cell: CellResult, key: str, target: Target | None) -> float | None:
    """Returns one figure of a run; none where it has it not, or has failed."""
    summary = cell.summary
    if summary is None:
        return None
    if key in TARGETS:
        sends = summary["communication"]["bytes_up"] is not None or key != "megabytes_to_target"
        return target.reached(cell.seed, cell.curve)[key] if target and sends else None
    if key in COSTS:
        return COSTS[key][1](summary)
    if key == FLOOR:
        return (summary.get(FLOOR) or {}).get("value")
    return score_of(summary, key)


def _statistics(row: RowResult, key: str, target: Target | None) -> dict[str, Any] | None:
    """Returns a row's values of one column with their mean and spread; none if no run has any."""
    values = {str(cell.seed): value for cell in row.cells if (value := _value(cell, key, target)) is not None}
    if not values:
        return None
    numbers = list(values.values())
    low, high = mean_interval(numbers)
    return {
        "by_seed": values,
        "n": len(numbers),
        "mean": statistics.fmean(numbers),
        "low": low,
        "high": high,
        "standard_deviation": statistics.stdev(numbers) if len(numbers) > 1 else None,
        "minimum": min(numbers),
        "maximum": max(numbers),
        "best": False,
        "difference": None,
    }


def _mark_best(rows: Sequence[Mapping[str, Any]], key: str, column: Column) -> None:
    """Marks the best means of a column, as printed.

    Rows that lack a seed's value, are on other documents, or send nothing at all where it is counted what
    travels, are never the best; nor is any where all are equal.
    """
    if column.better is None:
        return
    having = [
        cell
        for row in rows
        if row["competes"]
        and (cell := row["values"][key])
        and cell["n"] == len(row["cells"])
        and not (column.travels and cell["maximum"] == 0)
    ]
    printed = {column.text(cell["mean"]) for cell in having}
    if len(printed) < 2:
        return
    sign = 1.0 if column.better == "higher" else -1.0
    best = max(having, key=lambda cell: sign * cell["mean"])
    for cell in having:
        cell["best"] = column.text(cell["mean"]) == column.text(best["mean"])


def _compare_with(name: str, rows: Sequence[Mapping[str, Any]], key: str, *, p_values: bool) -> None:
    """Gives every row that ran on the baseline's documents its difference to the baseline, seed by seed."""
    baseline = next(row for row in rows if row["name"] == name)
    theirs = (baseline["values"][key] or {}).get("by_seed", {})
    tested: dict[str, float] = {}
    for row in rows:
        own = row["values"][key]
        if row is baseline or own is None or row["same_data"] != baseline["same_data"]:
            continue
        differences = [value - theirs[seed] for seed, value in own["by_seed"].items() if seed in theirs]
        if not differences:
            continue
        low, high = mean_interval(differences)
        own["difference"] = {
            "n": len(differences),
            "mean": statistics.fmean(differences),
            "low": low,
            "high": high,
            "p": None,
        }
        if p_values and (p := paired_p(differences)) is not None:
            tested[row["name"]] = p
    for row in rows:
        if row["name"] in tested:
            row["values"][key]["difference"]["p"] = holm(tested)[row["name"]]


def _on_other_documents(rows: Sequence[RowResult]) -> set[str]:
    """Returns the rows that ran on other documents than the first row that ran, on any seed."""
    first: dict[int, str] = {}
    others = set()
    for row in rows:
        for cell in row.cells:
            if cell.run is not None and first.setdefault(cell.seed, cell.run["data"]) != cell.run["data"]:
                others.add(row.name)
    return others


def _cell(cell: CellResult) -> dict[str, Any]:
    run = cell.run or {}
    return {
        "seed": cell.seed,
        "folder": cell.folder,
        "finished": cell.summary is not None,
        "message": cell.message or None,
        **{key: (cell.summary or {}).get(key) for key in (FLOOR, "degenerate")},
        **{key: run.get(key) for key in ("data", "device", "threads", "versions")},
        "privacy": {
            key: (run.get("privacy") or {}).get(key) for key in ("mechanism", "unit", "delta", "noise")
        },
    }
