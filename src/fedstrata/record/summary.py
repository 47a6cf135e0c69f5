"""The summary of a run: a fixed set of keys, derived from its record alone."""

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstrata.core.files import write_atomically
from fedstrata.record.corpus import cut_shares
from fedstrata.record.floors import floors_of, highest
from fedstrata.record.log import committed_rounds

CONVERGED = 0.9
"""Share of the best score whose first round is reported as convergence (Layer-Skipping FL, Table V).

A score of which less is better has come as far when it is at most the best one divided by this.
"""


def summarise(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Builds `summary.json` from the events of a finished run; what does not apply is null.

    A `final` event without scores stands for the end of a run that has none yet.
    """
    start = [event for event in events if event["event"] == "run"][-1]
    final = [event for event in events if event["event"] == "final"][-1]
    rounds = committed_rounds(events)
    metric = [event for event in events if event["event"] in {"run", "resumed"}][-1]["metric"]
    falling, floors = falls(start, metric), floors_of(final, metric)
    return {
        "method": start["method"],
        "task": start["task"],
        "model": start["model"],
        "seed": start["seed"],
        "rounds": len(rounds),
        "clients": len(final["clients"]),
        "metrics": {
            "global": final["global"],
            "best": best_round(rounds, metric, falling=falling),
            "clients": final["clients"],
            "mean_client": mean_scores(list(final["clients"].values())),
            "weighted": final.get("weighted") or None,  # of clients' own: what is no score of all documents
            "external": final.get("external") or None,
            "intervals": final.get("intervals") or None,
            "mean_client_intervals": final.get("mean_client_intervals") or None,
            "external_intervals": final.get("external_intervals") or None,
            "trained": _trained(rounds, metric, falling=falling),
        },
        "floors": floors,
        "floor": highest(floors, headline(final, metric), falling=falling),
        "degenerate": final.get("degenerate") or None,
        "trainable_parameters": max(
            (event["trainable_parameters"] for event in rounds), default=start["trainable_parameters"]
        ),
        "state": rounds[-1]["state"] if rounds else {},
        "communication": _communication(start, rounds),
        "failures": _failures(start, rounds),
        "corrupt": start.get("corrupt"),
        "limit": start.get("limit"),
        "cut": cut_shares(start.get("corpus")),
        "convergence": {
            "metric": metric,
            "rounds_to_90_percent": _rounds_to(rounds, metric, falling=falling),
        },
        "time": _time(rounds, final),
        "memory": {
            **{name: _largest([*rounds, final], name) for name in ("peak_rss_bytes", "peak_gpu_bytes")},
            **_device_memory(rounds),
        },
        "energy_joules": total_of(rounds, "joules"),
        "saved": final.get("saved") or {},  # the hash of every file of weights
        "privacy": _privacy(start, rounds),
        "secure_aggregation": _secure_aggregation(start, rounds),
    }


def _privacy(start: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the mechanism, and the epsilon of every client and the largest, after the last round."""
    names = ("mechanism", "unit", "adjacency", "delta", "sigma", "clip", "noise")
    facts = start.get("privacy") or dict.fromkeys(names)
    clients = (rounds[-1].get("privacy") or {}).get("clients") if rounds else None
    spent = {name: own["epsilon"] for name, own in (clients or {}).items()}
    bounded = bool(spent) and None not in spent.values()
    return {
        **{name: facts[name] for name in names},
        "epsilon": max(spent.values()) if bounded else None,
        "clients": spent or None,
    }


def _secure_aggregation(
    start: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Returns who was in the masked sums and what they took; none of a run without."""
    if not (asked := start.get("secure_aggregation")):
        return None
    sums = [event["secure_aggregation"] for event in rounds]
    made = [each for each in sums if "error" in each]
    return {
        **asked,
        "rounds": len(made),
        "refused": dict(Counter(each["refused"] for each in sums if each.get("refused"))),
        "fewest_survivors": min((len(each["survivors"]) for each in made), default=None),
        "bytes_up": sum(each["bytes_up"] for each in sums),
        "bytes_down": sum(each["bytes_down"] for each in sums),
        "error": max((each["error"] for each in made), default=None),
    }


def _largest(events: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """Returns the largest of a figure over all events, which may be those of several processes."""
    return max((event[name] for event in events if event.get(name) is not None), default=None)


def write_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Writes the summary; it appears complete or not at all."""
    write_atomically(path, [(json.dumps(summary, indent=2, allow_nan=False) + "\n").encode()])


def mean_scores(
    scores: Sequence[Mapping[str, float] | None], weights: Sequence[float] | None = None
) -> dict[str, float] | None:
    """Returns the mean of each score over the clients that have it; none where there is no score.

    Args:
        scores: Each client's.
        weights: How much each client counts; all the same if none.
    """
    having: dict[str, list[tuple[float, float]]] = {}
    for own, weight in zip(scores, weights or [1.0] * len(scores), strict=True):
        for name, score in (own or {}).items():
            having.setdefault(name, []).append((score, weight))
    return {name: statistics.fmean(*zip(*found, strict=True)) for name, found in having.items()} or None


def trained_scores(clients: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns what a `round` event says of the models that its clients trained, before they were merged.

    Args:
        clients: The scores of each client's model by split.

    Returns:
        For each split `clients` and their `mean`; none where nothing was scored.
    """
    parts = dict.fromkeys(part for scores in clients.values() for part in scores)
    scored = {part: {client: own[part] for client, own in clients.items()} for part in parts}
    return {
        part: {"clients": own, "mean": mean_scores(list(own.values()))} for part, own in scored.items()
    } or None


def _trained(rounds: Sequence[Mapping[str, Any]], metric: str, *, falling: bool) -> dict[str, Any] | None:
    """Returns what the clients' models scored after their training, on average and in the last round."""
    scored = [(event["round"], event["trained"]) for event in rounds if event.get("trained")]
    if not scored:
        return None
    means = [
        {"round": number, "global": parts["validation"]["mean"]}
        for number, parts in scored
        if "validation" in parts
    ]
    last = scored[-1][1].get("test") or {"clients": None, "mean": None}
    return {**last, "best": best_round(means, metric, falling=falling)}


def total_of(rounds: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Returns the sum of a figure over rounds; none where they have it not, as without emulated devices."""
    values = [value for event in rounds if (value := event.get(key)) is not None]
    return sum(values) if values else None


def _device_memory(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Returns the memory of training on emulated devices: the mean over all batches, and the largest."""
    known = [memory for event in rounds if (memory := event.get("device_memory"))]
    if not known:
        return {"device_mean_bytes": None, "device_peak_bytes": None}
    batches = sum(memory["batches"] for memory in known)
    return {
        "device_mean_bytes": sum(memory["mean_bytes"] * memory["batches"] for memory in known) / batches,
        "device_peak_bytes": max(memory["peak_bytes"] for memory in known),
    }


def headline(scores: Mapping[str, Any], metric: str) -> float | None:
    """Returns the score a round is judged by: the global one, or the clients' mean if nothing is global."""
    for group in ("global", "mean_client"):
        if scores.get(group) and metric in scores[group]:  # a label that did not occur has no score
            return float(scores[group][metric])
    return None


def falls(start: Mapping[str, Any], metric: str) -> bool:
    """Whether less is better of a score, as a record's `run` event says; of old records' scores more is."""
    return metric in start.get("lower_is_better", ())


def _evaluated(rounds: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    scored = [(event["round"], headline(event, metric)) for event in rounds]
    return [(number, score) for number, score in scored if score is not None]


def best_round(rounds: Sequence[Mapping[str, Any]], metric: str, *, falling: bool) -> dict[str, float] | None:
    """Returns the best score of any round, under its name, and that `round`; the first of equals.

    Args:
        rounds: Events or parts of them, with `round` and the scores of `headline`.
        metric: The score.
        falling: Whether less of it is better.
    """
    evaluated = _evaluated(rounds, metric)
    if not evaluated:
        return None
    number, score = (min if falling else max)(evaluated, key=lambda item: item[1])
    return {metric: score, "round": number}


def _rounds_to(rounds: Sequence[Mapping[str, Any]], metric: str, *, falling: bool) -> int | None:
    best = best_round(rounds, metric, falling=falling)
    if best is None or (best[metric] <= 0 and not falling):  # nothing was learnt, so nothing converged
        return None
    target = best[metric] / CONVERGED if falling else best[metric] * CONVERGED
    evaluated = _evaluated(rounds, metric)
    return next(number for number, score in evaluated if (score <= target if falling else score >= target))


def _communication(start: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if start["pooled"]:  # the notes travel, not a model
        return dict.fromkeys(("bytes_up", "bytes_down", "bytes_up_per_client_round", "percent_of_full_model"))
    up = sum(client["bytes_up"] for event in rounds for client in event["exchanges"].values())
    down = sum(client["bytes_down"] for event in rounds for client in event["exchanges"].values())
    updates = delivered(rounds)
    per_client = up / updates if updates else 0.0
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


def delivered(rounds: Sequence[Mapping[str, Any]]) -> int:
    """Returns how often, over all rounds, a client sent something."""
    return sum(client["bytes_up"] > 0 for event in rounds for client in event["exchanges"].values())


def overhead_of(event: Mapping[str, Any]) -> float:
    """Returns the seconds of a round that are the engine's own; of an old record what is left of them."""
    worked = event["train_seconds"] + event.get("serve_seconds", 0.0) + event["evaluate_seconds"]
    overhead: float = event.get("engine_overhead_seconds", max(0.0, event["seconds"] - worked))
    return overhead


def _time(rounds: Sequence[Mapping[str, Any]], final: Mapping[str, Any]) -> dict[str, Any]:
    train = sum(event["train_seconds"] for event in rounds)
    total = sum(event["seconds"] for event in rounds)
    serving = sum(event.get("serve_seconds", 0.0) for event in rounds)  # records before it lack it
    updates = delivered(rounds)
    return {
        "total_seconds": total + final["seconds"],
        "train_seconds": train,
        "serve_seconds": serving,
        "engine_overhead_seconds": sum(map(overhead_of, rounds)),
        "seconds_per_client_round": train / updates if updates else None,
        "simulated_seconds": total_of(rounds, "simulated_seconds"),
    }
