"""What a record says of differential privacy: the mechanism, and what was spent by whom and when."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedstrata.record.words import epsilon, left_of

SEEDED = "the noise was drawn from the run's seed: an experiment, and no protection"
NOT_COVERED = "not part of the mechanism: epsilon does not cover them"
OF_A_SIMULATION = "of a simulation, not part of the mechanism"


def withheld_scores(start: Mapping[str, Any]) -> str:
    """Returns why the clients of a run keep to themselves how their documents are answered, if they do.

    Args:
        start: The record's `run` event.
    """
    sums = start.get("secure_aggregation")
    facts = start.get("privacy") or {}, sums or {}
    if start.get("id") is None or "none" not in [each.get("scores") for each in facts]:
        return ""
    of_whom = "the sum over all of them alone is seen" if sums else "no mask hides those of one client"
    return (
        "the clients, processes of their own, told none (privacy.scores: none); with privacy.scores: summed "
        f"they tell counts of what is right, of which {of_whom}, and which epsilon does not cover"
    )


def budget_line(own: Mapping[str, Any], budget: Mapping[str, Any]) -> str:
    """Says what of a budget is spent at a client in all runs, and what is left.

    Args:
        own: The client's `spent` and `left`.
        budget: The budget's `epsilon` and `delta`.
    """
    cap, delta = budget["epsilon"], budget["delta"]
    spent, left = epsilon(own["spent"]), left_of(own["left"])
    line = f"budget over all runs: epsilon {spent} of {cap:g} is spent at delta {delta:g}, {left} is left"
    return f"{line}{over_budget(own['spent'], cap)}"


def budget_over_runs(facts: Mapping[str, Any]) -> str:
    """Says which budget over all runs holds at a site, or why none does.

    Args:
        facts: The budget's settings, or as its `epsilon` null, and `why`.
    """
    if facts["epsilon"] is None:
        return f"no budget bounds what all runs together spend here: {facts['why']}"
    cap, delta = facts["epsilon"], facts["delta"]
    return f"all runs together may spend epsilon {cap:g} at delta {delta:g} here, by {facts['path']}"


def over_budget(spent: float | None, cap: float) -> str:
    """Returns what is to be added to a line of what is spent that is more than may be; else nothing.

    No run is let past its cap, so that the cap was lowered since.

    Args:
        spent: Epsilon; none where nothing bounds it.
        cap: What may be spent.
    """
    if spent is not None and spent <= cap:
        return ""
    return "; that is over the budget, which was larger when it was spent: no run can spend more"


def largest(clients: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Returns the largest epsilon over clients, as an event has them; none where nothing bounds it."""
    spent = [own["epsilon"] for own in clients.values()]
    return max(spent) if spent and None not in spent else None


def spent_by(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Returns the turns and the epsilon of every client as the record last has them; empty without."""
    known: Mapping[str, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == "round" and event.get("privacy"):
            known = event["privacy"]["clients"]
        elif event["event"] == "privacy":
            known = event["clients"]
    return known


def summed_rounds(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns what the committed rounds of a record say of their masked sums; none without any.

    Returns:
        `rows`, the facts of each round with its number; and over all of them `bytes_up`, `bytes_down`, and
        the largest `error`, null if no sum was unmasked.
    """
    rows = [
        {"round": event["round"], **event["secure_aggregation"]}
        for event in rounds
        if "secure_aggregation" in event
    ]
    if not rows:
        return None
    return {
        "rows": rows,
        "bytes_up": sum(row["bytes_up"] for row in rows),
        "bytes_down": sum(row["bytes_down"] for row in rows),
        "error": max((row["error"] for row in rows if "error" in row), default=None),
    }


def epsilon_rows(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns for each committed round what every client had spent by then, and what was clipped in it.

    Each row has `round`, `epsilon` and `clipped` by client, and of both the lowest and highest (`low`,
    `high`) and the largest epsilon or mean share (`epsilon_all`, `clipped_all`); null where there is none.
    """
    rows = []
    for event in rounds:
        own = event.get("privacy") or {}
        epsilons = {name: client["epsilon"] for name, client in (own.get("clients") or {}).items()}
        bounded = {name: value for name, value in epsilons.items() if value is not None}
        clipped = dict(own.get("clipped") or {})
        rows.append(
            {
                "round": event["round"],
                "epsilon": bounded,
                "clipped": clipped,
                "epsilon_all": max(bounded.values(), default=None),
                "epsilon_low": min(bounded.values(), default=None),
                "clipped_all": sum(clipped.values()) / len(clipped) if clipped else None,
                "clipped_low": min(clipped.values(), default=None),
                "clipped_high": max(clipped.values(), default=None),
            }
        )
    return rows
