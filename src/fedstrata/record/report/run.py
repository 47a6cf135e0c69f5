"""The report of one run."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from fedstrata.record.corpus import PARTS
from fedstrata.record.floors import cautions, floor_text
from fedstrata.record.history import (
    History,
    client_scores,
    extremes,
    group_bytes,
    lost_clients,
    round_rows,
    time_parts,
    trained_clients,
)
from fedstrata.record.privacy import (
    NOT_COVERED,
    OF_A_SIMULATION,
    epsilon_rows,
    summed_rounds,
    withheld_scores,
)
from fedstrata.record.report import plots
from fedstrata.record.report.attacks import attack_sections
from fedstrata.record.report.data import data_section
from fedstrata.record.report.page import MEGABYTE, render, time_unit
from fedstrata.record.scores import headings, score_tables
from fedstrata.record.summary import delivered, falls, mean_scores
from fedstrata.record.words import COUNTED, count

CURVES = {"global": "all documents", "mean": "mean of clients; the band goes from the lowest to the highest"}

FEW_CLIENTS = 6
"""Clients of whom each has a line of epsilon, at most; of more the highest is drawn, with a band."""
ROUNDS_SHOWN = 75
"""Rounds in the figure of the blocks at most."""


def run_page(history: History) -> str:
    """Returns the report of one run as HTML."""
    name = history.folder.resolve().name
    if history.start is None:
        return render("not_begun.html", name=name, history=history)
    metric = history.start["metric"]
    scores, split = _latest_scores(history)
    clients = client_scores(scores, metric)
    parts = time_parts(history)
    total = sum(parts.values())
    ends = extremes(clients, falling=falls(history.start, metric))
    everything = scores.get("global") or scores.get("mean_client") or {}
    return render(
        "run.html",
        name=name,
        history=history,
        start=history.start,
        summary=history.summary,
        metric=metric,
        scores=scores,
        split=split,
        floors=history.summary.get("floors") if history.final is not None and history.summary else {},
        kept_floors=(history.final or {}).get("floors_withheld", []),
        floor=floor_text(history.summary or {}),
        cautions=cautions(history.summary or {}),
        columns=[name for name in headings(everything, metric) if not name.endswith(COUNTED)],
        by_label=score_tables(everything) if any("/" in name for name in everything) else [],
        training=trained_clients(history.start),
        lost=lost_clients(history.losses),
        extremes=ends,
        named=_named(scores, ends),
        falling=falls(history.start, metric),
        rounds=round_rows(history.rounds, metric),
        groups=_group_rows(history),
        tensors=_tensor_rows(history),
        told_apart=_told_apart(history),
        influences=_influence_rows(history),
        rounding=_rounding(history),
        times=[(part, seconds, 100.0 * seconds / total) for part, seconds in parts.items()] if total else [],
        everybody=CURVES["global"] + (", own models" if history.start["personal"] else ""),
        totals=_documents(history.start["clients"]),
        data=data_section(history.start),
        figures=_figures(history, metric, clients),
        shown=plots.SHOWN,
        privacy=history.start.get("privacy"),
        sums=summed_rounds(history.rounds),
        not_covered=NOT_COVERED,
        withheld=withheld_scores(history.start),
        of_a_simulation=OF_A_SIMULATION,
        alike=all(len(set(row["epsilon"].values())) < 2 for row in epsilon_rows(history.rounds)),
        statement=(history.folder / "privacy.md").is_file(),
        attacks=attack_sections(history.folder),
    )


def _latest_scores(history: History) -> tuple[Mapping[str, Any], str]:
    """Returns the scores of the test split, or else the last ones of the validation split, and which."""
    if history.final is not None and any(
        (history.final["global"], history.final.get("external"), *history.final["clients"].values())
    ):
        return history.final, "test split"
    scored = [event for event in history.rounds if "clients" in event]
    if not scored:
        return {}, ""
    return scored[-1], f"validation split after round {scored[-1]['round']}"


def _named(scores: Mapping[str, Any], ends: Sequence[str] | None) -> list[str]:
    """Returns the clients that the first table has: all, or where they are too many the two ends."""
    clients = list(scores.get("clients") or {})
    return clients if len(clients) <= plots.SHOWN else list(ends or ())


def _documents(clients: Mapping[str, Mapping[str, int | None]]) -> dict[str, int | None]:
    """Returns the number of documents in each split, over all clients; none where some count is hidden."""
    every = {part: [counts.get(part, 0) for counts in clients.values()] for part in PARTS}
    return {part: None if None in own else sum(filter(None, own)) for part, own in every.items()}


def _group_rows(history: History) -> list[dict[str, Any]]:
    """Returns for each tensor group what clients sent in all, an update's mean, and the whole model's."""
    if history.start is None or history.start["pooled"]:
        return []
    whole, sent = history.start.get("groups", {}), group_bytes(history.rounds)
    updates = delivered(history.rounds)
    return [
        {
            "group": group,
            "sent": sent.get(group, 0),
            "average": sent.get(group, 0) / updates if updates else 0.0,
            "whole": whole.get(group),
        }
        for group in dict.fromkeys([*whole, *sent])
    ]


def _figures(history: History, metric: str, clients: Mapping[str, float]) -> dict[str, Any]:
    """Draws the figures of one run; those without anything to show are left out."""
    rows, groups = round_rows(history.rounds, metric), _group_rows(history)
    figures: dict[str, Any] = _score_figures(history, rows, metric)
    if series := plots.series_of(0, rows, "round", "loss"):
        figures["loss"] = plots.curves("loss", "training loss by round", series, "round", whole=True)
    if any(row["sent"] for row in groups):
        bars = [(row["group"], row["average"] / MEGABYTE, (row["whole"] or 0) / MEGABYTE) for row in groups]
        figures["groups"] = plots.bars("groups", "megabytes by tensor group", bars, "megabytes")
    if selected := _selecting_rounds(history):
        # More columns than the page is wide would not be seen: rounds at equal distances are shown then.
        shown = selected[:: -(-len(selected) // ROUNDS_SHOWN)]
        figures["blocks"] = plots.heat_map(
            "blocks",
            "score of every block by round, and which were merged",
            [event["round"] for event in shown],
            [event["state"].get("block_scores", []) for event in shown],
            [event["state"]["merged_blocks"] for event in shown],
        )
    if clients:
        figures["clients"] = _client_figure(history, clients, metric)
    figures |= _privacy_figures(history)
    if rows:
        figures["time"] = plots.stacks([("", list(time_parts(history).values()))])
    return figures


def _privacy_figures(history: History) -> dict[str, Any]:
    """Draws what was spent by each round and, of a simulation, what share of the units was clipped in it."""
    rows = epsilon_rows(history.rounds)
    names = list(dict.fromkeys(name for row in rows for name in (*row["epsilon"], *row["clipped"])))
    figures: dict[str, Any] = {}
    for key, title, ends in (
        ("epsilon", "epsilon by round", (0.0, None)),
        ("clipped", f"share of clipped units by round, {OF_A_SIMULATION}", (0.0, 1.04)),
    ):
        if len(names) <= FEW_CLIENTS:
            own = [{"round": row["round"], "of": [row[key].get(name) for name in names]} for row in rows]
            series = [
                line
                for style in range(len(names))
                for line in plots.series_of(
                    style, [row | {"own": row["of"][style]} for row in own], "round", "own"
                )
            ]
        else:
            band = [
                {
                    "round": row["round"],
                    "value": row[f"{key}_all"],
                    "low": row[f"{key}_low"],
                    "high": row.get(f"{key}_high", row[f"{key}_all"]),
                }
                for row in rows
            ]
            series = plots.series_of(0, band, "round", "value", band=True)
        if series:
            figures[key] = plots.curves(key, title, series, "round", whole=True, ends=ends)
    if figures and len(names) <= FEW_CLIENTS:
        figures["privacy_legend"] = [
            (name, plots.swatch(f"privacy-key-{style}", style)) for style, name in enumerate(names)
        ]
    return figures


def _selecting_rounds(history: History) -> list[Mapping[str, Any]]:
    """Returns the rounds in which blocks were merged; an abandoned one has the state of the one before it."""
    return [
        event
        for event in history.rounds
        if event.get("state", {}).get("merged_blocks") and not event.get("abandoned")
    ]


def _tensor_rows(history: History) -> list[tuple[str, list[float]]]:
    """Returns of each scored tensor its score in the last round, and its mean, lowest and highest."""
    rounds = [event["state"].get("tensor_scores", {}) for event in _selecting_rounds(history)]
    rows = []
    for name in rounds[-1] if rounds else ():
        values = [scores[name] for scores in rounds if name in scores]
        rows.append((name, [values[-1], fmean(values), min(values), max(values)]))
    return rows


def _told_apart(history: History) -> str:
    """Returns whether blocks can be told apart by their scores, in words; empty where they have none."""
    above = [own for event in _selecting_rounds(history) if (own := event["state"].get("above_noise"))]
    if not above:
        return ""
    low, middle, high = min(above), median(above), max(above)
    return (
        f"The scores of equal blocks lay {low:.1f} to {high:.1f} times (median {middle:.1f}) as far from "
        "each other as those of pure noise would. At 2 or less it is chance which of them are merged."
    )


def _influence_rows(history: History) -> list[dict[str, Any]]:
    """Returns of each client that was weighed by its loss what it had in its last round, and its weights."""
    turns: dict[str, list[Mapping[str, Any]]] = {}
    for event in history.rounds:
        if not event.get("abandoned"):  # its state is that of the round before
            for client, own in event.get("state", {}).get("influence", {}).items():
                turns.setdefault(client, []).append({"round": event["round"], **own})
    return [
        {
            "client": client,
            "last": own[-1],
            "weights": [turn["weight"] for turn in own],
            "capped": sum(turn["capped"] for turn in own),
        }
        for client, own in sorted(turns.items())
    ]


def _rounding(history: History) -> dict[str, float]:
    """Returns what hidden states and gradients lost to 8 bits, a share of their norm: the mean of rounds."""
    rounds = [event for event in history.rounds if not event.get("abandoned")]
    known = [own for event in rounds if (own := event.get("state", {}).get("rounding"))]
    return {name.replace("_", " "): mean for name, mean in (mean_scores(known) or {}).items()}


def score_figure(history: History) -> Figure:
    """Returns the learning curves by round: all documents, and the clients' mean with a band around it."""
    metric = str((history.start or {}).get("metric", ""))
    rows = round_rows(history.rounds, metric)
    styles = _styles(rows)
    series = [
        line
        for key, style in styles.items()
        for line in plots.series_of(style, rows, "round", key, band=key == "mean")
    ]
    figure = plots.curves_figure(series, "round", whole=True)
    (axes,) = figure.axes
    axes.set_ylabel(f"validation {metric}")
    if len(styles) > 1:
        axes.legend(axes.lines, [CURVES[key] for key in styles])
    return plots.on_white(figure)


def _styles(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the style of each learning curve that there is."""
    return {key: style for style, key in enumerate(CURVES) if any(row[key] is not None for row in rows)}


def _score_figures(history: History, rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Draws the learning curves: all documents, and the clients' mean with a band around it."""
    styles = _styles(rows)
    if not styles:
        return {}
    figures: dict[str, Any] = {
        "score_legend": [(CURVES[key], plots.swatch(f"key-{key}", style)) for key, style in styles.items()]
    }
    axes = {"round": ("round", 1.0), "bytes": ("megabytes sent, both ways, all clients", MEGABYTE)}
    if history.start and history.start["pooled"]:  # notes travelled, not models
        del axes["bytes"]
    if rows[-1]["simulated"] is not None:
        name, seconds = time_unit(rows[-1]["simulated"])
        axes["simulated"] = (f"{name} on the simulated clock", seconds)
    for axis, (label, unit) in axes.items():
        series = [
            line
            for key, style in styles.items()
            for line in plots.series_of(style, rows, axis, key, unit, band=key == "mean")
        ]
        title = f"validation {metric} by {label}"
        figures[f"score_{axis}"] = plots.curves(f"score-{axis}", title, series, label, whole=axis == "round")
    return figures


def _client_figure(history: History, clients: Mapping[str, float], metric: str) -> Markup:
    """Draws the clients' scores, the highest on top; the middle is left out where there are too many."""
    start = history.start or {"clients": {}}
    worst, best = extremes(clients, falling=falls(start, metric)) or ("", "")
    styles = {worst: 1, best: 0}
    trained = {name: count(parts["train"]) for name, parts in start["clients"].items()}
    rows = [
        (f"{plots.shorten(name)} ({trained.get(name, 0)})", score, styles.get(name, 2))
        for name, score in sorted(clients.items(), key=lambda item: item[1], reverse=True)
    ]
    if len(rows) > plots.SHOWN:
        rows = [*rows[: plots.SHOWN // 2], *rows[-(plots.SHOWN // 2) :]]
    return plots.dots("clients", f"{metric} of each client", rows, metric)
