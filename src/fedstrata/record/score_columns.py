"""The scores of a run as columns of a comparison: of all documents, of clients, of held-out sites."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedstrata.core.settings.federation import FEW_CLIENTS
from fedstrata.record.costs import COSTS, Summary
from fedstrata.record.target import TARGETS

CLIENTS = "mean_client."
"""What stands before a score's name for the mean of the clients' own."""
TRAINED = "trained."
"""What stands before a score's name for the mean of clients' models after their last local training."""
BEST = "best."
"""What stands before the name of the score that runs are judged by, for its best round, in validation."""
LOW, HIGH = "low.", "high."
"""What stands before a score's name, and before what stands there already, for the ends of its interval."""
EXTERNAL = "external."
"""What stands, with a site's name and a dot, before a score's name on a site or corpus that is held out."""
CLIENT = "client."
"""What stands, with a client's name and a dot, before a score's name on that client's own documents."""
FLOOR = "floor"
"""The column of the highest floor of the score that runs are judged by."""
_DOUBLED = {ord(brace): brace * 2 for brace in "{}"}  # a name of a site is no field of a title


def column_names(metrics: Sequence[str]) -> list[str]:
    """Returns the columns a comparison can be asked for, given the scores its task may give.

    Besides, there are those of single clients and sites, which `is_of_one` knows.
    """
    groups = (CLIENTS, TRAINED, BEST, LOW, HIGH, LOW + CLIENTS, HIGH + CLIENTS)
    return [*metrics, *(prefix + name for prefix in groups for name in metrics), FLOOR, *COSTS, *TARGETS]


def is_of_one(column: str, metrics: Sequence[str], group: str) -> bool:
    """Whether a column is a score of one client, or on one site that is held out, whatever its name.

    >>> is_of_one("external.north.f1", ["f1"], EXTERNAL), is_of_one("external.f1", ["f1"], EXTERNAL)
    (True, False)
    """
    return column.startswith(group) and any(
        column.endswith(f".{name}") and len(column) > len(group) + len(name) + 1 for name in metrics
    )


def score_groups(summaries: Sequence[Summary]) -> dict[str, str]:
    """Returns what may stand before a score's name in these runs, each with the title of such a column.

    Args:
        summaries: Of the runs.
    """
    sites = {site for summary in summaries for site in summary["metrics"].get("external") or {}}
    outside = {f"{EXTERNAL}{site}.": f"{{}}, {site.translate(_DOUBLED)}" for site in sorted(sites)}
    clients = {site for summary in summaries for site in _clients(summary)}
    within = {f"{CLIENT}{site}.": f"{{}}, {site.translate(_DOUBLED)}" for site in sorted(clients)}
    drawn = {"": "{}", CLIENTS: "{}, mean of clients", **outside}
    seldom = {
        TRAINED: "{}, clients' own models",
        BEST: "{}, best round, validation",
        **{f"{LOW}{prefix}": f"{title}, lower end" for prefix, title in drawn.items()},
        **{f"{HIGH}{prefix}": f"{title}, upper end" for prefix, title in drawn.items()},
        **outside,
        **within,
    }
    having = (prefix for prefix in seldom if any(scores_of(summary, prefix) for summary in summaries))
    return {"": "{}", CLIENTS: "{}, mean of clients", **{prefix: seldom[prefix] for prefix in having}}


def score_of(summary: Summary, column: str) -> float | None:
    """Returns one score of a run; none where it has it not."""
    found = (prefix for prefix in score_groups([summary]) if column.startswith(prefix))
    prefix = max(found, key=len)  # a site may be called what another's name begins with
    return scores_of(summary, prefix).get(column.removeprefix(prefix))


def scores_of(summary: Summary, prefix: str) -> Mapping[str, float]:
    """Returns the scores of which a column's name begins with this; empty where the run has none."""
    metrics = summary["metrics"]
    if prefix.startswith(EXTERNAL):
        return (metrics.get("external") or {}).get(prefix.removeprefix(EXTERNAL)[:-1]) or {}
    if prefix.startswith(CLIENT):
        return _clients(summary).get(prefix.removeprefix(CLIENT)[:-1]) or {}
    if prefix.startswith((LOW, HIGH)):
        ends = _intervals(metrics, prefix.partition(".")[2])
        return {name: own[prefix.startswith(HIGH)] for name, own in ends.items()}
    if prefix == BEST:
        return {name: own for name, own in (metrics.get("best") or {}).items() if name != "round"}
    if prefix == TRAINED:
        return (metrics.get("trained") or {}).get("mean") or {}
    return metrics.get("mean_client" if prefix == CLIENTS else "global") or {}


def _clients(summary: Summary) -> Mapping[str, Mapping[str, float]]:
    """Returns the scores of each client; nothing where there are many, to whom a table gives no columns."""
    clients = summary["metrics"].get("clients") or {}
    return clients if len(clients) <= FEW_CLIENTS else {}


def _intervals(metrics: Mapping[str, Any], prefix: str) -> Mapping[str, Sequence[float]]:
    """Returns the ends of the intervals of the scores that begin with this."""
    if prefix.startswith(EXTERNAL):
        return (metrics.get("external_intervals") or {}).get(prefix.removeprefix(EXTERNAL)[:-1]) or {}
    return metrics.get("mean_client_intervals" if prefix == CLIENTS else "intervals") or {}
