"""The table of a comparison: what each row's runs scored and cost, with mean and spread over seeds.

`tabulate` gives a plain mapping, which is `table.json`: every value of every seed, in the units the runs
recorded (scores as fractions). `record.table_text` renders it for people, who read scores in points.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedstrata.record.words import COUNTED

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a run.

    Attributes:
        title: What people read above it.
        better: Which direction is better; none is marked best where neither is.
        digits: Decimals people read.
        factor: What the figure is multiplied by for people: 100 turns a score into points.
    """

    title: str
    better: Literal["higher", "lower"] | None
    digits: int = 1
    factor: float = 1.0

    def text(self, value: float) -> str:
        """Returns a figure as people read it."""
        return f"{value * self.factor:.{self.digits}f}"


def _megabytes_sent(summary: Summary) -> float | None:
    sent = summary["communication"]
    return None if sent["bytes_up"] is None else (sent["bytes_up"] + sent["bytes_down"]) / 1e6


def _megabytes(direction: str) -> Callable[[Summary], float | None]:
    return lambda summary: _scaled(summary["communication"][direction], 1e-6)


COSTS: dict[str, tuple[Column, Callable[[Summary], float | None]]] = {
    "percent_of_full_model": (
        Column("update, % of model", "lower"),
        lambda summary: summary["communication"]["percent_of_full_model"],
    ),
    "megabytes_sent": (Column("sent, MB", "lower"), _megabytes_sent),
    "megabytes_up": (Column("up, MB", "lower"), _megabytes("bytes_up")),
    "megabytes_down": (Column("down, MB", "lower"), _megabytes("bytes_down")),
    "train_seconds_per_round": (
        Column("training, s a round", "lower"),
        lambda summary: summary["time"]["train_seconds"] / summary["rounds"],
    ),
    "rounds_to_90_percent": (
        Column("rounds to 90 %", "lower"),
        lambda summary: summary["convergence"]["rounds_to_90_percent"],
    ),
    "peak_memory_megabytes": (
        Column("peak memory, MB", "lower", digits=0),
        lambda summary: summary["memory"]["peak_rss_bytes"] / 1e6,
    ),
    "peak_gpu_megabytes": (
        Column("peak GPU memory, MB", "lower", digits=0),
        lambda summary: _scaled(summary["memory"]["peak_gpu_bytes"], 1e-6),
    ),
    "total_seconds": (
        Column("in all, s", "lower", digits=0),
        lambda summary: summary["time"]["total_seconds"],
    ),
    "trainable_parameters": (
        Column("parameters trained", None, digits=0),
        lambda summary: summary["trainable_parameters"],
    ),
}
"""Figures that every run has beside its scores: how to show them, and where a summary holds them."""

SHOWN_COSTS = (
    "percent_of_full_model",
    "megabytes_sent",
    "train_seconds_per_round",
    "rounds_to_90_percent",
    "peak_memory_megabytes",
)
CLIENTS = "mean_client."
"""What stands before a score's name for the mean of the clients' own."""
TRAINED = "trained."
"""What stands before a score's name for the mean of clients' models after their last local training."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One run of a row, or what became of it.

    Attributes:
        seed: Its seed.
        folder: Its run directory, relative to the comparison's.
        summary: Its summary; none if it failed.
        run: The `run` event of its record; none if it failed before there was one.
        message: Why it failed.
    """

    seed: int
    folder: str
    summary: Summary | None = None
    run: Mapping[str, Any] | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """One value that was tried for a tuned setting.

    Attributes:
        value: The value.
        score: Its score on the validation split after the last round; none if the run failed.
        message: Why it failed.
    """

    value: Any
    score: float | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a row's tuned setting was chosen.

    Attributes:
        setting: Dotted path of the setting.
        metric: The score of the validation split that decided.
        seed: The seed of the runs that decided.
        trials: Every value that was tried.
        chosen: The value with the best score, the first of equals; none if every trial failed.
    """

    setting: str
    metric: str
    seed: int
    trials: tuple[Trial, ...]
    chosen: Any


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


def column_names(metrics: Sequence[str]) -> list[str]:
    """Returns the columns a comparison can be asked for, given the scores its task may give."""
    return [*metrics, *(prefix + name for prefix in (CLIENTS, TRAINED) for name in metrics), *COSTS]


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
    different_data: bool = False,
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Builds the table of a comparison.

    Args:
        rows: At least one row.
        name: The comparison's name.
        columns: Columns people see; a default choice if none.
        different_data: Whether rows were allowed to be on different documents. If not, a row on others than
            the first row's is marked and never the best.
        machine: What the runs ran on.

    Returns:
        What `table.json` holds; see docs/comparing.md.
    """
    runs = [cell.run for row in rows for cell in row.cells if cell.run is not None]
    metric = runs[0]["metric"] if runs else None
    described = _columns(rows)
    others = _on_other_documents(rows)
    table: dict[str, Any] = {
        "name": name,
        "seeds": [cell.seed for cell in rows[0].cells],
        "metric": metric,
        "lower_is_better": sorted(_falling(rows)),
        "columns": {key: asdict(column) for key, column in described.items()},
        "shown": list(columns) if columns is not None else _default_columns(described, metric),
        "rows": [
            {
                "name": row.name,
                "cells": [_cell(cell) for cell in row.cells],
                "same_data": row.name not in others,
                "competes": all(cell.summary for cell in row.cells)
                and (different_data or row.name not in others),
                "tuning": row.tuning and _tuning(row.tuning),
                "values": {key: _statistics(row, key) for key in described},
            }
            for row in rows
        ],
        "versions": runs[0]["versions"] if runs else {},
        "machine": dict(machine),
    }
    for key, column in described.items():
        _mark_best(table["rows"], key, column)
    return table


def _columns(rows: Sequence[RowResult]) -> dict[str, Column]:
    """Returns every figure the runs have: scores, the clients' mean scores, costs."""
    summaries = [cell.summary for row in rows for cell in row.cells if cell.summary is not None]
    scores: dict[str, None] = {}
    for summary in summaries:
        for prefix in ("", CLIENTS):
            scores |= dict.fromkeys(_scores(summary, prefix))
    titles = {"": "{}", CLIENTS: "{}, mean of clients"}
    if any(_scores(summary, TRAINED) for summary in summaries):
        titles[TRAINED] = "{}, clients' own models"
    described, falling = {}, _falling(rows)
    for prefix, title in titles.items():
        for name in scores:
            described[prefix + name] = score_column(name, title.format(name), falling)
    return {**described, **{key: column for key, (column, _) in COSTS.items()}}


def _falling(rows: Sequence[RowResult]) -> set[str]:
    """Returns the scores of which less is better, as the runs' records say."""
    runs = [cell.run for row in rows for cell in row.cells if cell.run is not None]
    return {name for run in runs for name in run.get("lower_is_better", ())}


def _default_columns(described: Mapping[str, Column], metric: str | None) -> list[str]:
    groups = (CLIENTS, TRAINED)
    scores = [key for key in described if "/" not in key and not key.startswith(groups) and key not in COSTS]
    scores.sort(key=lambda key: key != metric)  # what the runs are judged by comes first
    clients = [group + metric for group in groups if metric and group + metric in described]
    return [*scores, *clients, *SHOWN_COSTS]


def _value(summary: Summary, key: str) -> float | None:
    if key in COSTS:
        return COSTS[key][1](summary)
    prefix = next((prefix for prefix in (CLIENTS, TRAINED) if key.startswith(prefix)), "")
    return _scores(summary, prefix).get(key.removeprefix(prefix))


def _scores(summary: Summary, prefix: str) -> Mapping[str, float]:
    """Returns the scores of which a column's name begins with this; empty where the run has none."""
    metrics = summary["metrics"]
    if prefix == TRAINED:
        return (metrics.get("trained") or {}).get("mean") or {}
    return metrics.get("mean_client" if prefix == CLIENTS else "global") or {}


def _statistics(row: RowResult, key: str) -> dict[str, Any] | None:
    """Returns a row's values of one column with their mean and spread; none if no run has any."""
    values = {
        str(cell.seed): value
        for cell in row.cells
        if cell.summary is not None and (value := _value(cell.summary, key)) is not None
    }
    if not values:
        return None
    numbers = list(values.values())
    return {
        "by_seed": values,
        "n": len(numbers),
        "mean": statistics.fmean(numbers),
        "standard_deviation": statistics.stdev(numbers) if len(numbers) > 1 else None,
        "minimum": min(numbers),
        "maximum": max(numbers),
        "best": False,
        "behind_best": None,
    }


def _mark_best(rows: Sequence[Mapping[str, Any]], key: str, column: Column) -> None:
    """Marks the best means of a column, as printed, and gives every row its difference to the best.

    Rows that lack a seed's value, or are on other documents, are never the best; nor is any where all are
    equal.
    """
    if column.better is None:
        return
    having = [
        cell
        for row in rows
        if row["competes"] and (cell := row["values"][key]) and cell["n"] == len(row["cells"])
    ]
    printed = {column.text(cell["mean"]) for cell in having}
    if len(printed) < 2:
        return
    sign = 1.0 if column.better == "higher" else -1.0
    best = max(having, key=lambda cell: sign * cell["mean"])
    for cell in having:
        cell["best"] = column.text(cell["mean"]) == column.text(best["mean"])
    name = next(row["name"] for row in rows if row["values"][key] is best)
    for row in rows:
        cell = row["values"][key]
        if cell is not None and cell is not best:
            cell["behind_best"] = _paired(cell["by_seed"], best["by_seed"], name)


def _paired(own: Mapping[str, float], best: Mapping[str, float], name: str) -> dict[str, Any] | None:
    """Returns the differences to the best row on the seeds both have, as own minus best."""
    differences = [value - best[seed] for seed, value in own.items() if seed in best]
    if not differences:
        return None
    return {
        "row": name,
        "n": len(differences),
        "mean": statistics.fmean(differences),
        "minimum": min(differences),
        "maximum": max(differences),
    }


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
        **{key: run.get(key) for key in ("data", "device", "threads", "versions")},
    }


def _tuning(tuning: Tuning) -> dict[str, Any]:
    return {
        "setting": tuning.setting,
        "chosen": tuning.chosen,
        "metric": tuning.metric,
        "seed": tuning.seed,
        "tried": [
            {"value": trial.value, "validation": trial.score, "message": trial.message or None}
            for trial in tuning.trials
        ],
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
