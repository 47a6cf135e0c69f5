"""The comparison of several runs."""

from collections.abc import Mapping, Sequence
from itertools import chain, takewhile
from typing import Any

from ruamel.yaml import YAML

from fedstrata.core.settings.source import flatten
from fedstrata.record.floors import cautions
from fedstrata.record.history import History, client_scores, round_rows, time_parts
from fedstrata.record.privacy import NOT_COVERED
from fedstrata.record.report import plots
from fedstrata.record.report.page import MEGABYTE, render, time_unit
from fedstrata.record.summary import falls, headline
from fedstrata.record.words import ABSENT

SCORES = {
    "global": "all documents",
    "mean": "mean of clients",
    "low": "lowest client",
    "high": "highest client",
}
_UNCOMPARED = frozenset({"name", "report_to"})  # settings that do not change what a run does


def comparison_page(histories: Sequence[History]) -> str:
    """Returns a comparison of several runs as HTML; a run that did not begin is in the table only."""
    rows = [
        _row(index, name, history)
        for index, (name, history) in enumerate(zip(_names(histories), histories, strict=True))
    ]
    begun = [row for row in rows if row["begun"]]
    metrics = sorted({row["metric"] for row in begun})
    data = {row["data"] for row in begun}
    return render(
        "comparison.html",
        rows=rows,
        scores=SCORES,
        floors=any(row["floor"] is not None or row["cautions"] for row in begun),
        best=_best(rows) if len(metrics) == 1 and len(data) == 1 else {},
        metrics=metrics,
        falling=any(row["falling"] for row in begun),
        same_data=len(data) < 2,
        unfinished=[row["name"] for row in rows if row["state"] != "finished"],
        emulated=any(row["simulated"] is not None for row in begun),
        private=[row for row in begun if row["privacy"]["mechanism"] is not None],
        seeded=[row["name"] for row in begun if row["privacy"]["noise"] == "seeded"],
        not_covered=NOT_COVERED,
        parts_of_time=max((list(time_parts(history)) for history in histories), key=len),
        differences=_differences(histories),
        figures=_figures(begun, metrics[0]) if len(metrics) == 1 else {},
    )


def _names(histories: Sequence[History]) -> list[str]:
    """Returns the folders' names or, where names repeat, the parts of their paths in which they differ."""
    paths = [history.folder.resolve().parts for history in histories]
    names = [path[-1] for path in paths]
    if len(set(names)) == len(names):
        return names
    most = min(map(len, paths)) - 1  # something is left of every path
    start = min(most, _equal(paths))
    end = min(most - start, _equal([path[::-1] for path in paths]))
    return ["/".join(path[start : len(path) - end]) for path in paths]


def _equal(paths: Sequence[Sequence[str]]) -> int:
    """Returns how many parts the paths begin with are the same."""
    return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


def _row(index: int, name: str, history: History) -> dict[str, Any]:
    """Returns what is compared of one run."""
    row: dict[str, Any] = {"index": index, "name": name, "state": history.state, "begun": False}
    if history.start is None or history.summary is None:
        return row
    metric, summary, scores = history.start["metric"], history.summary, history.final or {}
    clients = client_scores(scores, metric).values()
    rounds = round_rows(history.rounds, metric)
    return row | {
        "begun": True,
        "metric": metric,
        "falling": falls(history.start, metric),
        "data": history.start["data"],
        "pooled": history.start["pooled"],
        "method": summary["method"],
        "model": summary["model"]["name"],
        "rounds": rounds,
        "planned": history.start["rounds"],
        "global": (scores.get("global") or {}).get(metric),
        "mean": (scores.get("mean_client") or {}).get(metric),
        "low": min(clients, default=None),
        "high": max(clients, default=None),
        "headline": headline(scores, metric),
        "floor": (summary.get("floor") or {}).get("value"),
        "under_floor": not (summary.get("floor") or {"beaten": True})["beaten"],
        "cautions": cautions(summary),
        "percent": summary["communication"]["percent_of_full_model"],
        **{
            way: rounds[-1][way] if rounds and not history.start["pooled"] else None for way in ("up", "down")
        },
        "converged": summary["convergence"]["rounds_to_90_percent"],
        "seconds": summary["time"]["total_seconds"],
        "simulated": summary["time"]["simulated_seconds"],
        "joules": summary["energy_joules"],
        "epsilon": summary["privacy"]["epsilon"],
        "privacy": summary["privacy"],
        "parts": time_parts(history),
    }


def _best(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the best of each score over the runs that finished; none where they do not differ."""
    best, choose = {}, min if any(row.get("falling") for row in rows) else max
    for column in SCORES:
        values = [row[column] for row in rows if row["state"] == "finished" and row[column] is not None]
        if len(set(values)) > 1:
            best[column] = choose(values)
    return best


def _figures(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Draws runs that are judged by one score over each other."""
    sent, by_bytes = "megabytes sent, both ways, all clients", [row for row in rows if not row["pooled"]]
    emulated = [row for row in rows if row["simulated"] is not None]
    unit, seconds = time_unit(max((row["simulated"] for row in emulated), default=0.0))
    clock = f"{unit} on the simulated clock"
    figures: dict[str, Any] = {
        "legend": [(row["name"], plots.swatch(f"key-{row['index']}", row["index"])) for row in rows],
        "swatches": {row["name"]: plots.swatch(f"row-{row['index']}", row["index"]) for row in rows},
    }
    for key, title, label, series in (
        ("score_round", f"validation {metric}", "round", _series(rows, "round", "headline")),
        ("score_bytes", f"validation {metric}", sent, _series(by_bytes, "bytes", "headline", MEGABYTE)),
        ("score_time", f"validation {metric}", clock, _series(emulated, "simulated", "headline", seconds)),
        ("loss", "training loss", "round", _series(rows, "round", "loss")),
    ):
        if series:
            name, whole = key.replace("_", "-"), label == "round"
            figures[key] = plots.curves(name, f"{title} by {label}", series, label, whole=whole)
    spent = [row for row in rows if row["epsilon"] is not None and row["headline"] is not None]
    if len({row["epsilon"] for row in spent}) > 1:
        points = [(row["epsilon"], row["headline"], row["index"]) for row in spent]
        without = [
            (row["headline"], row["index"])
            for row in rows
            if row["privacy"]["mechanism"] is None and row["headline"] is not None
        ]
        named = [row for row in rows if row in spent or row["privacy"]["mechanism"] is None]
        figures["epsilon_legend"] = [
            (row["name"], plots.swatch(f"epsilon-key-{row['index']}", row["index"])) for row in named
        ]
        figures["epsilon"] = plots.points("epsilon", f"test {metric} by epsilon", points, without, "epsilon")
    spread = [
        (plots.shorten(row["name"]), row["low"], row["mean"], row["high"], row["index"])
        for row in rows
        if row["low"] is not None
    ]
    if spread:
        figures["clients"] = plots.ranges("clients", f"{metric} of the clients of each run", spread, metric)
    times = [(plots.shorten(row["name"]), list(row["parts"].values())) for row in rows if row["rounds"]]
    if times:
        figures["time"] = plots.stacks(times)
    return figures


def _series(
    rows: Sequence[Mapping[str, Any]], axis: str, value: str, unit: float = 1.0
) -> list[plots.Series]:
    """Returns a curve for each run that has this value in any round."""
    lines = (plots.series_of(row["index"], row["rounds"], axis, value, unit) for row in rows)
    return list(chain.from_iterable(lines))


def _differences(histories: Sequence[History]) -> dict[str, list[Any]]:
    """Returns the settings that are not the same in all runs, with the value of each run."""
    yaml = YAML(typ="safe", pure=True)
    settings = [dict(flatten(yaml.load(history.configuration) or {})) for history in histories]
    paths = dict.fromkeys(path for one in settings for path in one if path not in _UNCOMPARED)
    values = {path: [one.get(path, ABSENT) for one in settings] for path in paths}
    return {path: row for path, row in values.items() if any(value != row[0] for value in row)}
