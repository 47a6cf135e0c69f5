"""What a person sees of a run: progress bars on a terminal, a line a round elsewhere, a table at the end."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.filesize import decimal
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from fedstrata.core.errors import DROPPED_OUT
from fedstrata.core.settings.federation import FEW_CLIENTS
from fedstrata.display import log
from fedstrata.display.listener import EventDisplay
from fedstrata.display.tables import new_table
from fedstrata.record.corpus import data_lines
from fedstrata.record.floors import cautions
from fedstrata.record.privacy import NOT_COVERED, SEEDED, budget_line, largest
from fedstrata.record.scores import headings, overall
from fedstrata.record.summary import headline
from fedstrata.record.words import duration, energy, epsilon, limited_to, plural, score

ENDS = 5
"""Clients at either end that a table shows of many."""

Scores: TypeAlias = "Mapping[str, float] | None"


class Display(EventDisplay):
    """Listens to a run; use it as a context manager around the run."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console, TextColumn("{task.description:<8}"), width=24)
        self._rounds = self._progress.add_task("rounds", total=None, status="")
        self._clients = self._progress.add_task("clients", total=None, status="")
        self._up = self._down = 0
        self._metric = ""
        self._pooled = False
        self._uncached = False
        self._score: float | None = None
        self._epsilon = ""
        self._seeded = False

    def _on_joined(self, facts: Mapping[str, Any]) -> None:
        self.say(f"{facts['client']} has joined")

    def _on_run(self, facts: Mapping[str, Any]) -> None:
        self._metric, self._pooled = facts["metric"], facts["pooled"]
        self._on_privacy_of(facts)
        for line in data_lines(facts.get("corpus")):
            self.say(f"warning: {line}")
        self._progress.update(self._rounds, total=facts["rounds"])

    def _on_resumed(self, facts: Mapping[str, Any]) -> None:
        self.say(f"going on after round {facts['round']}")
        self._metric, self._pooled = facts["metric"], facts["pooled"]
        self._up, self._down = facts["bytes_up"], facts["bytes_down"]
        self._on_privacy_of(facts)
        self._progress.update(self._rounds, completed=facts["round"], total=facts["rounds"])

    def _on_privacy_of(self, facts: Mapping[str, Any]) -> None:
        """Says before anything is trained what protects nobody."""
        privacy = facts.get("privacy") or {}
        self._seeded = privacy.get("noise") == "seeded"
        if self._seeded:
            self.say(f"warning: {SEEDED} (privacy.noise)")

    def _on_privacy(self, facts: Mapping[str, Any]) -> None:
        """Says, when the run has ended, what is left of a budget where least is."""
        if budget := facts["budget"]:
            clients = budget["clients"].items()
            name, own = max(
                clients, key=lambda each: math.inf if each[1]["spent"] is None else each[1]["spent"]
            )
            self.say(f"{name}: {budget_line(own, budget)}")

    def _on_round_started(self, facts: Mapping[str, Any]) -> None:
        self._progress.reset(self._clients, total=facts["clients"], status="")

    def _on_client_progress(self, facts: Mapping[str, Any]) -> None:
        status = f"{facts['client']}: step {facts['step']}/{facts['steps']}, loss {facts['loss']:.3f}"
        self._progress.update(self._clients, status=status)

    def _on_client(self, facts: Mapping[str, Any]) -> None:
        self._up += facts["bytes_up"]
        self._down += facts["bytes_down"]
        self._progress.advance(self._clients)
        self._show_round(facts["loss"])

    def _on_client_failed(self, facts: Mapping[str, Any]) -> None:
        scored = facts.get("part")  # it may have trained, and be counted
        if not scored:
            self._down += facts["bytes_down"]
            self._progress.advance(self._clients)
            self._show_round(None)
        if facts["error"] != DROPPED_OUT:  # those are asked for, and many; the round's line counts them
            told = f": {facts['message']}" if facts["message"] else ""
            what = f"failed to score {scored}" if scored else "failed"
            self.say(f"round {facts['round']}: {facts['client']} {what}: {facts['error']}{told}")

    def _on_cache(self, facts: Mapping[str, Any]) -> None:
        if not facts["used"] and not self._uncached:  # once: the record has every client's
            self._uncached = True
            what = "the output of the frozen blocks is not kept on disk, they run every time"
            self.say(f"{facts['client']}: {what}. {facts['reason']}")

    def _on_round(self, facts: Mapping[str, Any]) -> None:
        self._score = headline(facts, self._metric)
        if clients := (facts.get("privacy") or {}).get("clients"):
            seeded = " (seeded: no protection)" if self._seeded else ""
            self._epsilon = f"epsilon {epsilon(largest(clients))}{seeded}"
        self._progress.advance(self._rounds)
        self._show_round(facts["loss"])
        if not self._console.is_terminal:
            self.say(f"round {facts['round']}: {', '.join([self._status(facts['loss']), *_lost(facts)])}")

    def _on_finishing(self, facts: Mapping[str, Any]) -> None:
        self._progress.update(self._clients, status="scoring the test split")

    def _on_final(self, facts: Mapping[str, Any]) -> None:
        self._progress.update(self._clients, status="")

    def _on_warning(self, facts: Mapping[str, Any]) -> None:
        self.say(f"warning: {facts['message']}")

    def _show_round(self, loss: float | None) -> None:
        self._progress.update(self._rounds, status=self._status(loss))

    def _status(self, loss: float | None) -> str:
        parts = [f"loss {loss:.3f}"] if loss is not None else []
        if self._score is not None:
            parts.append(f"validation {self._metric} {score(self._score)}")
        if not self._pooled:  # pooled training sends notes, not models
            parts.append(f"sent {decimal(self._up)} up, {decimal(self._down)} down")
        if self._epsilon:
            parts.append(self._epsilon)
        return ", ".join(parts)

    def show(self, summary: Mapping[str, Any], folder: Path, *, personal: bool) -> None:
        """Prints the final table and the path of the run directory.

        Args:
            summary: The summary of the run.
            folder: The run directory.
            personal: Whether every client has a model of its own; the first row is then their mean.
        """
        self._event = {"event": "summary"}
        scores = summary["metrics"]
        every, metric = list(overall(_first(scores))), summary["convergence"]["metric"]
        names = headings(_first(scores), metric)
        title = f"{summary['method']} on {summary['task']}, {summary['model']['name']}: test split"
        everybody = "all documents, own models" if personal else "all documents"
        rows = {everybody: scores["global"], "mean of clients": scores["mean_client"]}
        clients = _ends(scores["clients"], metric)
        rows |= clients
        if trained := scores.get("trained"):
            rows["mean of clients' own models"] = trained["mean"]
        rows |= {f"{name} (held out)": row for name, row in (scores["external"] or {}).items()}
        shown = len(names)
        while shown > 1 and self._width(_table(title, names[:shown], rows)) > self._console.width:
            shown -= 1
        if log.is_json():
            self.say(f"finished: {title} in summary.json")
        elif any(rows.values()):
            self._console.print(_table(title, names[:shown], rows))
        else:
            self.say(without_scores(summary))
        for line in _floors(summary):
            self.say(line)
        if rest := [name for name in every if name not in names[:shown]]:
            self.say(f"in summary.json as well: {', '.join(rest)}")
        if len(clients) < len(scores["clients"]):
            what = f"the {ENDS} lowest and {ENDS} highest of {len(scores['clients'])} clients"
            self.say(f"{what}; all are in summary.json")
        summed = _summed(summary.get("secure_aggregation") or {})
        if summary.get("limit"):
            self.say(limited_to(**summary["limit"]))
        for line in [*_cost(summary), *_privacy(summary.get("privacy") or {}), *summed]:
            self.say(line)
        if (folder / "privacy.md").exists():
            self.say(f"what is protected, and what is not: {folder / 'privacy.md'}")
        if (folder / "report.html").exists():
            self.say(f"report: {folder / 'report.html'}")
        self.say(f"run directory: {folder}")

    def _width(self, table: Table) -> int:
        """Returns how wide a table is on a terminal without an end."""
        unlimited = self._console.options.update(width=10_000)
        return self._console.measure(table, options=unlimited).maximum


def _ends(clients: Mapping[str, Scores], metric: str) -> Mapping[str, Scores]:
    """Returns the clients to be shown: all, or of many those with the lowest and the highest scores."""
    scored = [name for name, row in clients.items() if row and metric in row]
    if len(clients) <= FEW_CLIENTS or len(scored) < 2 * ENDS:
        return clients
    ranked = sorted(scored, key=lambda name: (clients[name] or {})[metric])
    return {name: clients[name] for name in (*ranked[:ENDS], *ranked[-ENDS:])}


def _table(title: str, names: Sequence[str], rows: Mapping[str, Scores]) -> Table:
    """Returns a table of scores, a row for everybody and each client; headings have a line a word."""
    table = new_table(title, ["", *(name.replace("_", "\n") for name in names)])
    table.columns[0].no_wrap = True
    for row_name, row in rows.items():
        cells = (score((row or {}).get(name), name) for name in names)
        table.add_row(Text(row_name), *cells)
    return table


def _lost(facts: Mapping[str, Any]) -> list[str]:
    """Says of a round how many clients it lost, if any, and whether it was abandoned for it."""
    lost = [f"{len(facts['failed'])} of {len(facts['exchanges'])} clients lost"] if facts["failed"] else []
    return [*lost, "abandoned"] if facts["abandoned"] else lost


def without_scores(summary: Mapping[str, Any]) -> str:
    """Returns why there are no scores; sites that tell none look as if they had no documents."""
    privacy = summary.get("privacy") or {}
    if summary.get("secure_aggregation") or privacy.get("mechanism") in {"local", "joint"}:
        return (
            "no scores: clients that are processes of their own tell none (privacy.scores: none), or there "
            "are no test documents (data.split.test)"
        )
    return "no test documents, so there are no scores; data.split.test sets some aside"


def _floors(summary: Mapping[str, Any]) -> list[str]:
    """Says what the score is to beat, and what makes it one that means little; nothing of older runs."""
    floors, metric = summary.get("floors") or {}, summary["convergence"]["metric"]
    named = ", ".join(f"{name} {score(value)}" for name, value in floors.items())
    lines = [f"floors of {metric}: {named}"] if floors else []
    return [*lines, *(f"warning: the scores mean little: {caution}" for caution in cautions(summary))]


def _first(scores: Mapping[str, Any]) -> Mapping[str, float]:
    """Returns the first scores there are, for their names."""
    return next((group for group in (scores["global"], scores["mean_client"]) if group), {})


def _privacy(privacy: Mapping[str, Any]) -> list[str]:
    """Says what was spent, of what; nothing without a mechanism."""
    if privacy.get("mechanism") in {None, "none"}:
        return []
    named = (
        f"{privacy['mechanism']} differential privacy by {privacy['unit']}, {privacy['adjacency']} adjacency"
    )
    if not privacy["sigma"]:
        return [f"{named}: no noise, so that there is no epsilon and nothing is protected"]
    spent = f"epsilon {epsilon(privacy['epsilon'])} at delta {privacy['delta']:g}, the largest over clients"
    lines = [f"{named}: {spent} (sigma {privacy['sigma']:g}, clip {privacy['clip']:g})"]
    lines.append(f"scores are {NOT_COVERED}")
    if privacy["noise"] == "seeded":
        lines.append(f"warning: {SEEDED}")
    return lines


def _cost(summary: Mapping[str, Any]) -> list[str]:
    """Says what was trained, what travelled and how long it took."""
    if not summary["rounds"]:
        return [f"no rounds: nothing was trained or sent; took {duration(summary['time']['total_seconds'])}"]
    parameters = summary["model"]["parameters"]
    share = 100 * summary["trainable_parameters"] / parameters
    sent = summary["communication"]
    lines = [f"trained {summary['trainable_parameters']:,} of {parameters:,} parameters ({share:.1f} %)"]
    if sent["bytes_up"] is not None:
        rounds = plural(summary["rounds"], "round")
        lines.append(
            f"sent {decimal(sent['bytes_up'])} up and {decimal(sent['bytes_down'])} down in {rounds}; "
            f"a client sends {sent['percent_of_full_model']:.1f} % of the model's bytes a round"
        )
    failures = summary["failures"]
    if failures["clients"]:
        client, most = max(failures["clients"].items(), key=lambda item: item[1])
        total = sum(failures["clients"].values())
        lines.append(
            f"{plural(total, 'update')} lost, {most} of them by {client}; "
            f"{failures['abandoned_rounds']} of {plural(summary['rounds'], 'round')} abandoned"
        )
    total, training = (duration(summary["time"][key]) for key in ("total_seconds", "train_seconds"))
    serving = summary["time"].get("serve_seconds")
    there = f", the server's part of the model to {duration(serving)}" if serving else ""
    lines.append(f"took {total}; training adds up to {training}{there}")  # of clients at work at once
    if (simulated := summary["time"].get("simulated_seconds")) is not None:
        joules = energy(summary["energy_joules"])
        lines.append(f"on the emulated devices {duration(simulated)}; their computing takes {joules}")
        if (memory := summary["memory"].get("device_mean_bytes")) is not None:
            peak = decimal(round(summary["memory"]["device_peak_bytes"]))
            lines.append(f"training takes {decimal(round(memory))} of a device's memory, {peak} at the peak")
    return lines


def _summed(facts: Mapping[str, Any]) -> list[str]:
    """Says of a finished run's masked sums how few clients were in one, how exact it is, and their cost."""
    if not facts:
        return []
    took = f"{decimal(facts['bytes_up'])} up and {decimal(facts['bytes_down'])} down beside the updates"
    if not facts["rounds"]:
        return [f"secure aggregation: no sum could be unmasked; {took}"]
    rounds = plural(facts["rounds"], "round")
    few = f"{facts['fewest_survivors']} clients or more in the sums of {rounds}"
    return [f"secure aggregation: {few}, each mean within {facts['error']:.1g} of the exact one; {took}"]
