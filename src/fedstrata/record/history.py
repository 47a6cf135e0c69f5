"""A run directory read back: its configuration, its committed rounds and how it ended."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from fedstrata.core.errors import refused
from fedstrata.record.log import as_written, committed_rounds, read_events
from fedstrata.record.summary import headline, overhead_of, summarise

State = Literal["finished", "unfinished", "failed", "interrupted"]
_NO_END: Mapping[str, Any] = {"event": "final", "global": None, "clients": {}, "seconds": 0.0}
"""Stands for the end of a run that has none yet."""


@dataclass(frozen=True, slots=True)
class History:
    """What one run directory holds.

    Attributes:
        folder: The run directory.
        configuration: The text of `config.yaml`.
        state: How the run ended; `unfinished` is also what a run under way looks like.
        start: The last `run` event, with what changed later; none when the run failed before it began.
        rounds: The committed rounds in order.
        final: The `final` event, with the scores of the test split, unless the run went on after it.
        failures: The `failed` events, oldest first.
        losses: The `client_failed` events, one for each client and round that it was lost to.
        ended: Time of the last event, ISO 8601.
        summary: The summary, of the committed rounds alone while there is no `final` event; none without a
            `run` event.
    """

    folder: Path
    configuration: str
    state: State
    start: Mapping[str, Any] | None
    rounds: Sequence[Mapping[str, Any]]
    final: Mapping[str, Any] | None
    failures: Sequence[Mapping[str, Any]]
    losses: Sequence[Mapping[str, Any]]
    ended: str
    summary: Mapping[str, Any] | None


def require_run(folder: Path) -> None:
    """Refuses a folder that holds no run.

    Raises:
        ConfigurationError: It does not.
    """
    for name in ("config.yaml", "record.jsonl"):
        if not (folder / name).is_file():
            raise refused("", f"{folder} holds no run: there is no {name} in it", "not_found")


def read_history(folder: Path) -> History:
    """Reads a run directory.

    Raises:
        ConfigurationError: The folder holds no run.
        DataError: Its record is damaged.
    """
    require_run(folder)
    record = folder / "record.jsonl"
    with as_written(record):
        return _history(folder, read_events(record))


def _history(folder: Path, events: Sequence[Mapping[str, Any]]) -> History:
    turns = [event for event in events if event["event"] in {"run", "resumed", "final", "failed"}]
    start = start_of(events)
    began = max((index for index, item in enumerate(turns) if item["event"] in {"run", "resumed"}), default=0)
    final = next((event for event in reversed(turns[began:]) if event["event"] == "final"), None)
    return History(
        folder=folder,
        configuration=(folder / "config.yaml").read_text(encoding="utf-8"),
        state=state_of(events),
        start=start,
        rounds=committed_rounds(events),
        final=final,
        failures=[event for event in turns if event["event"] == "failed"],
        losses=_losses(events),
        ended=events[-1]["time"] if events else "",
        summary=summarise([*events, *([] if final else [_NO_END])]) if start is not None else None,
    )


def start_of(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the last `run` event, with what came later: other rounds, another score, further clients."""
    start: dict[str, Any] | None = None
    for event in events:
        if event["event"] == "run":
            start = dict(event)
        elif event["event"] == "resumed" and start is not None:
            start |= {"rounds": event["rounds"], "metric": event["metric"]}
            start |= {"privacy": event["privacy"]} if event.get("privacy") else {}
        elif event["event"] == "client_joined" and start is not None:
            start["clients"] = {**start["clients"], event["client"]: event["documents"]}
            start |= {"ends": {**start["ends"], **event["ends"]}} if "ends" in event else {}
    return start


def trained_clients(start: Mapping[str, Any]) -> list[str]:
    """Returns the clients of a `run` event that train: others have 0 documents for it."""
    return [name for name, counts in start["clients"].items() if counts["train"] != 0]


def _losses(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns who was lost to which round; of a round that was run twice the later time counts.

    Who was lost while it scored a `part` of its documents had trained, or has been told of before.
    """
    failed = [event for event in events if event["event"] == "client_failed" and not event.get("part")]
    return list({(event["round"], event["client"]): event for event in failed}.values())


def lost_clients(losses: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[int]]]:
    """Returns for each client that was ever lost the rounds, by what was the matter."""
    rounds: dict[str, dict[str, list[int]]] = {}
    for event in losses:
        reason = event["error"] + (f": {event['message']}" if event.get("message") else "")
        rounds.setdefault(event["client"], {}).setdefault(reason, []).append(event["round"])
    return rounds


def state_of(events: Sequence[Mapping[str, Any]]) -> State:
    """Returns how a run ended, by the events of its record."""
    turns = [event for event in events if event["event"] in {"run", "resumed", "final", "failed"}]
    last = turns[-1] if turns else {"event": "run"}
    if last["event"] == "final":
        return "finished"
    if last["event"] == "failed":
        return "interrupted" if last["error"] == "KeyboardInterrupt" else "failed"
    return "unfinished"


def bytes_sent(rounds: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Returns the bytes that had travelled up, and down, over all clients, at the end of each round."""
    up, down = (
        list(accumulate(sum(client[way] for client in event["exchanges"].values()) for event in rounds))
        for way in ("bytes_up", "bytes_down")
    )
    return list(zip(up, down, strict=True))


def client_scores(event: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Returns the score of every client that has one in an event, in the clients' order."""
    clients = event.get("clients") or {}
    return {name: scores[metric] for name, scores in clients.items() if scores and metric in scores}


def extremes(scores: Mapping[str, float], *, falling: bool = False) -> tuple[str, str] | None:
    """Returns the clients with the worst and the best score, the first of equals; none if all equal.

    Args:
        scores: Of every client.
        falling: Whether less is better; else more is, and the worst is the lowest.
    """
    if len(set(scores.values())) < 2:
        return None
    ends = min(scores, key=lambda name: scores[name]), max(scores, key=lambda name: scores[name])
    return (ends[1], ends[0]) if falling else ends


def group_bytes(rounds: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the bytes that clients sent of each tensor group, over all rounds."""
    totals: Counter[str] = Counter()
    for event in rounds:
        totals.update(event.get("groups_up", {}))
    return dict(totals)


def time_parts(history: History) -> dict[str, float]:
    """Returns the seconds of a run by what they were spent on; they add up to the total.

    Where several clients work at once, their seconds are shares of those in which any was at work. The
    server's part of a divided model comes last, and only where there was one.
    """
    train = sum(event["train_seconds"] for event in history.rounds)
    scoring = sum(event["evaluate_seconds"] for event in history.rounds)
    serving = sum(event.get("serve_seconds", 0.0) for event in history.rounds)
    engine = sum(map(overhead_of, history.rounds))
    at_work = sum(event["seconds"] for event in history.rounds) - engine
    share = at_work / worked if (worked := train + scoring + serving) else 1.0
    parts = {
        "training": share * train,
        "scoring the validation split": share * scoring,
        "engine": engine,
        "scoring the test split, saving": history.final["seconds"] if history.final else 0.0,
    }
    return parts | ({"the server's part of the model": share * serving} if serving else {})


def round_rows(rounds: Sequence[Mapping[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Returns one row of numbers for each committed round.

    Scores are those of the validation split by this metric, null for a round that was not scored; `headline`
    is the one a round is judged by, `trained` the mean of the models that clients trained, before they were
    merged. `up` and `down` are the bytes that had travelled by then, `bytes` both; `simulated` is what the
    rounds so far took on the simulated clock in seconds, null without emulated devices.
    """
    rows, simulated = [], 0.0
    for event, (up, down) in zip(rounds, bytes_sent(rounds), strict=True):
        own = event.get("simulated_seconds")
        simulated += own or 0.0
        clients = client_scores(event, metric).values()
        trained = (event.get("trained") or {}).get("validation") or {}
        rows.append(
            {
                "round": event["round"],
                "loss": event["loss"],
                "global": (event.get("global") or {}).get(metric),
                "mean": (event.get("mean_client") or {}).get(metric),
                "trained": (trained.get("mean") or {}).get(metric),
                "headline": headline(event, metric),
                "low": min(clients, default=None),
                "high": max(clients, default=None),
                "up": up,
                "down": down,
                "bytes": up + down,
                "simulated": None if own is None else simulated,
                "seconds": event["seconds"],
            }
        )
    return rows
