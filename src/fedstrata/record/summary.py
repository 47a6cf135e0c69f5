"""The summary of a run: a fixed set of keys, derived from its record alone."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstrata.core.files import write_atomically
from fedstrata.record.log import committed_rounds

CONVERGED = 0.9
"""Share of the best score whose first round is reported as convergence (Layer-Skipping FL, Table V)."""


def summarise(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Builds `summary.json` from the events of a finished run; what does not apply is null.

    A `final` event without scores stands for the end of a run that has none yet.
    """
    start = [event for event in events if event["event"] == "run"][-1]
    final = [event for event in events if event["event"] == "final"][-1]
    rounds = committed_rounds(events)
    metric = [event for event in events if event["event"] in {"run", "resumed"}][-1]["metric"]
    return {
        "method": start["method"],
        "task": start["task"],
        "model": start["model"],
        "seed": start["seed"],
        "rounds": len(rounds),
        "clients": len(final["clients"]),
        "metrics": {
            "global": final["global"],
            "best": _best(rounds, metric),
            "clients": final["clients"],
            "mean_client": mean_of(list(final["clients"].values())),
            "external": final.get("external") or None,
        },
        "trainable_parameters": max(
            (event["trainable_parameters"] for event in rounds), default=start["trainable_parameters"]
        ),
        "state": rounds[-1]["state"] if rounds else {},
        "communication": _communication(start, rounds),
        "failures": _failures(start, rounds),
        "convergence": {"metric": metric, "rounds_to_90_percent": _rounds_to(rounds, metric)},
        "time": _time(rounds, final),
        "memory": {
            "peak_rss_bytes": final["peak_rss_bytes"],
            "peak_gpu_bytes": final["peak_gpu_bytes"],
        },
        "energy_joules": None,
        "privacy": {"epsilon": None, "delta": None, "sigma": None, "mechanism": None, "clients": None},
    }


def write_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Writes the summary; it appears complete or not at all."""
    write_atomically(path, [(json.dumps(summary, indent=2, allow_nan=False) + "\n").encode()])


def mean_of(scores: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
    """Returns the mean of each score over the clients that have it."""
    present = [score for score in scores if score]
    names = dict.fromkeys(name for score in present for name in score)
    means = {name: statistics.fmean(score[name] for score in present if name in score) for name in names}
    return means or None


def headline(scores: Mapping[str, Any], metric: str) -> float | None:
    """Returns the score a round is judged by: the global one, or the clients' mean if nothing is global."""
    for group in ("global", "mean_client"):
        if scores.get(group) and metric in scores[group]:  # a label that did not occur has no score
            return float(scores[group][metric])
    return None


def _evaluated(rounds: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    scored = [(event["round"], headline(event, metric)) for event in rounds]
    return [(number, score) for number, score in scored if score is not None]


def _best(rounds: Sequence[Mapping[str, Any]], metric: str) -> dict[str, float] | None:
    evaluated = _evaluated(rounds, metric)
    if not evaluated:
        return None
    number, score = max(evaluated, key=lambda item: item[1])
    return {metric: score, "round": number}


def _rounds_to(rounds: Sequence[Mapping[str, Any]], metric: str) -> int | None:
    evaluated = _evaluated(rounds, metric)
    if not evaluated:
        return None
    target = CONVERGED * max(score for _, score in evaluated)
    if target <= 0:  # nothing was learnt, so nothing converged
        return None
    return next(number for number, score in evaluated if score >= target)


def _communication(start: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if start["pooled"]:  # the notes travel, not a model
        return dict.fromkeys(("bytes_up", "bytes_down", "bytes_up_per_client_round", "percent_of_full_model"))
    up = sum(client["bytes_up"] for event in rounds for client in event["exchanges"].values())
    down = sum(client["bytes_down"] for event in rounds for client in event["exchanges"].values())
    delivered = _delivered(rounds)
    per_client = up / delivered if delivered else 0.0
    return {
        "bytes_up": up,
        "bytes_down": down,
        "bytes_up_per_client_round": per_client,
        "percent_of_full_model": 100.0 * per_client / start["model"]["bytes"],
    }


def _failures(start: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts the rounds each client was lost to; clients that always delivered are not listed."""
    if start["pooled"]:
        return {"clients": None, "abandoned_rounds": None}
    lost = Counter(client for event in rounds for client in event.get("failed", ()))
    abandoned = sum(event.get("abandoned", False) for event in rounds)
    return {"clients": dict(sorted(lost.items())), "abandoned_rounds": abandoned}


def _delivered(rounds: Sequence[Mapping[str, Any]]) -> int:
    """Returns how often, over all rounds, a client sent something."""
    return sum(client["bytes_up"] > 0 for event in rounds for client in event["exchanges"].values())


def _time(rounds: Sequence[Mapping[str, Any]], final: Mapping[str, Any]) -> dict[str, Any]:
    train = sum(event["train_seconds"] for event in rounds)
    total = sum(event["seconds"] for event in rounds)
    evaluation = sum(event["evaluate_seconds"] for event in rounds)
    delivered = _delivered(rounds)
    return {
        "total_seconds": total + final["seconds"],
        "train_seconds": train,
        "engine_overhead_seconds": total - train - evaluation,
        "seconds_per_client_round": train / delivered if delivered else None,
        "simulated_seconds": None,
    }
