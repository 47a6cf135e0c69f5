"""What a client that joins a run tells of itself, in a line for people."""

from collections.abc import Mapping
from typing import Any

from fedstrata.record.privacy import budget_line, budget_over_runs

TROUBLE = frozenset({"budget_refused", "policy_refused", "turn_failed", "warning"})
"""Events that say that something went wrong."""


def line_of(event: str, facts: Mapping[str, Any]) -> str:
    """Returns what is told of an event; nothing if it is not for people."""
    match event:
        case "bounds":
            told = (
                f"this site allows one run of at most {facts['rounds']} rounds, and {facts['scorings']} "
                "scorings a round"
            )
        case "joined":
            told = f"joined as {facts['client']}"
        case "hidden":
            told = f"secure aggregation: each update is hidden among at least {facts['least']} of "
            told += f"{facts['known']} sites"
        case "session_over":
            told = f"joining again: {facts['message']}"
        case "turn":
            told = f"round {facts['round']}: {facts['handler']}"
        case "scoring":
            told = f"scoring the {facts['part']} split"
        case "budget" | "budget_over_runs":
            told = (
                budget_line(dict(facts["clients"]).popitem()[1], facts)
                if event == "budget"
                else budget_over_runs(facts)
            )
        case "kept":
            told = f"what was learnt is in {facts['folder']}"
        case "turn_failed":
            told = f"round {facts['round']} has failed here: {facts['message']}"
        case "warning":
            told = f"warning: {facts['message']}"
        case "budget_refused" | "policy_refused":
            told = str(facts["message"])
        case _:
            told = ""
    return told
