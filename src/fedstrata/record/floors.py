"""What a reader is told of a run's score and its floors, and of scores that mean little."""

from collections.abc import Mapping
from typing import Any

from fedstrata.record.words import score as shown


def floors_of(final: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Returns the floors of the score that a run is judged by, by name: of all documents, or clients' mean.

    Args:
        final: The record's `final` event; an older one has no floors.
        metric: The score.
    """
    group = "global" if metric in (final.get("global") or {}) else "mean_client"
    return {name: own[group] for name, own in (final.get("floors") or {}).items()}


def highest(floors: Mapping[str, float], score: float | None, *, falling: bool) -> dict[str, Any] | None:
    """Returns the floor that is the hardest to beat, and whether a score does; none without any floor.

    One that is equal does not beat it, and where there is no score nothing is left unbeaten.

    Args:
        floors: By name.
        score: The run's, if it has one.
        falling: Whether less is better, so that the lowest floor is the hardest.

    >>> highest({"look-up table": 0.5, "untrained model": 0.1}, 0.5, falling=False)
    {'name': 'look-up table', 'value': 0.5, 'beaten': False}
    """
    if not floors:
        return None
    name = (min if falling else max)(floors, key=lambda each: floors[each])
    beaten = score is None or (score < floors[name] if falling else score > floors[name])
    return {"name": name, "value": floors[name], "beaten": beaten}


def floor_text(summary: Mapping[str, Any]) -> str:
    """Returns the highest floor of a finished run with its name; empty where it has none."""
    floor = summary.get("floor")
    return f"{floor['name']} {shown(floor['value'])}" if floor else ""


def cautions(summary: Mapping[str, Any]) -> list[str]:
    """Returns what says that a run's score means little: it beats no floor, or all answers are one thing.

    >>> cautions({"floor": {"name": "unigram", "value": 93.2, "beaten": False}, "degenerate": None})
    ['no better than its floor: unigram 93.200']
    """
    floor, degenerate = summary.get("floor"), summary.get("degenerate")
    under = [f"no better than its floor: {floor_text(summary)}"] if floor and not floor["beaten"] else []
    return [*under, *([degenerate] if degenerate else [])]
