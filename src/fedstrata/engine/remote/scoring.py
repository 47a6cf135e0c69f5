"""Scores of a run whose documents are elsewhere: made of what clients have counted, which adds up.

What does not add up, such as an area under a curve, is the mean of the clients' own, weighted by their
documents, and is named as such. With secure aggregation the server hears sums alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedstrata.core.errors import FedstrataError, FrameError, printable
from fedstrata.core.floors import UNTRAINED
from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.core.task import Task
from fedstrata.core.types import ClientInfo, Plan, Tally, Update
from fedstrata.engine.cohort import RoundCohort
from fedstrata.engine.floors import joined, withheld
from fedstrata.engine.protocol import Counting
from fedstrata.engine.scoring import alike
from fedstrata.metrics.counts import added
from fedstrata.record.summary import mean_scores
from fedstrata.split.messages import is_number

Scores = Mapping[str, float]
_LARGEST = 1e15
"""Of what clients count; sums of it are exact."""


def gathered(
    task: Task,
    scored: Iterable[tuple[ClientInfo, Update]],
    documents: Mapping[str, int],
    reject: Callable[[str, FedstrataError], None],
    *,
    one_model: bool,
    metric: str | None = None,
) -> dict[str, Any]:
    """Returns scores of what clients have counted; see `engine.protocol.Engine.score`.

    Args:
        task: What they have scored.
        scored: What each says.
        documents: How many documents each has, by the names of all clients.
        reject: Told whose counts are of no use, and why.
        one_model: Whether all have scored the same model; else there is no score of one model.
        metric: The score of which they were asked for floors; none if they were not.
    """
    clients: dict[str, Scores | None] = dict.fromkeys(documents)
    tallies: list[Tally] = []
    apart: list[Scores] = []
    weights: list[float] = []
    floors: dict[str, Mapping[str, Tally | None]] = {}
    for info, update in scored:
        if update.values.get("tally") is None:
            continue
        try:
            tally, own = _said_numbers(update, "tally"), _said_numbers(update, "apart")
            if min(tally.values(), default=0.0) < 0:
                raise FrameError("what a client has counted is less than nothing", code="out_of_range")
            if not 0 < update.weight <= documents[info.id]:
                told = f"scores came of {update.weight:g} documents"
                raise FrameError(f"{told}; the client has {documents[info.id]}", code="not_agreed")
            floors_of_client = _said_floors(task, update) if metric is not None else {}
            clients[info.id] = _scores(task, tally, own)
        except FrameError as error:
            reject(info.id, error)
            continue
        tallies.append(tally)
        apart.append(own)
        weights.append(update.weight)
        floors[info.id] = floors_of_client
    weighted = mean_scores(apart, weights) or {}
    counted = {client: documents[client] for client in floors}
    beside = joined(task, metric, floors, counted) if metric is not None else {}
    return {
        "global": _scores(task, added(tallies), weighted) if tallies and one_model else None,
        "clients": clients,
        "mean_client": mean_scores(list(clients.values())),
        "external": {},
        **({"weighted": sorted(weighted)} if weighted else {}),
        **({"floors": beside} if beside else {}),
        **({"floors_withheld": kept} if (kept := withheld(floors)) else {}),
        **alike(task, tallies, round(sum(weights))),
    }


@dataclass(frozen=True, slots=True)
class Summed:
    """What comes of a sum of counts.

    Attributes:
        scores: As those of `gathered`; no client has any of its own.
        clients: Whose counts are in it.
    """

    scores: dict[str, Any]
    clients: Collection[str] = ()


def summed(
    task: Task, sums: Counting, cohort: RoundCohort, plan: Plan, documents: Mapping[str, int]
) -> Summed:
    """Returns the scores that a masked sum of counts gives; no score that does not add up is among them.

    Args:
        task: What is scored.
        sums: Makes the sum.
        cohort: Those who are asked; who is lost is not among them any more.
        plan: What they are sent.
        documents: How many documents each has, by the names of all clients.
    """
    nothing = Summed(gathered(task, (), documents, cohort.reject, one_model=True))
    part, names = str(plan.values["part"]), sorted(task.counted([], []))
    having = [info for info in cohort.clients if documents[info.id]]
    if not having:
        return nothing
    if len(having) < LEAST_SITES:
        told = f"a masked sum of {part} scores needs {LEAST_SITES} clients that have such documents"
        cohort.book.warn(f"{told}, not {len(having)}: there are none")
        return nothing
    found = sums.counted(replace(cohort, clients=having), plan, part, names)
    if found is None:
        return nothing
    tally, counted, clients = found
    try:
        known = documents.keys() >= set(clients)  # a sum that a killed server left may have others
        if known and counted != sum(documents[client] for client in clients):
            told = f"scores came of {counted} documents, which are not those of the clients"
            raise FrameError(told, code="not_agreed")
        if not all(is_number(value, _LARGEST * len(clients)) for value in tally.values()):
            raise FrameError("what was counted is too much", code="out_of_range")
        scores = _scores(task, tally, {})
    except FrameError as error:
        cohort.book.warn(f"the {part} scores are of no use: {error}")
        return replace(nothing, clients=clients)
    said = alike(task, [tally], counted)
    return Summed({**nothing.scores, "global": scores, **said}, clients)


def _scores(task: Task, tally: Tally, apart: Scores) -> Scores:
    """Returns the scores of what was counted.

    Raises:
        FrameError: Nothing can be made of it.
    """
    try:
        return task.scored(tally, apart)
    except (KeyError, ValueError, ArithmeticError) as error:
        raise FrameError(f"no scores can be made of what was counted ({type(error).__name__})") from None


def _said_numbers(update: Update, name: str) -> dict[str, float]:
    """Returns numbers that a client says of its documents, by name.

    Raises:
        FrameError: They are none.
    """
    return _numbers(update.values.get(name), name)


def _numbers(said: Any, name: str) -> dict[str, float]:
    match said:
        case dict(own) if all(
            is_number(value, _LARGEST) and key == printable(key, 100) for key, value in own.items()
        ):
            return own
        case _:
            message = f"what a client says of its documents ({name}) is no numbers by name"
            raise FrameError(message, code="wrong_type")


def _said_floors(task: Task, update: Update) -> dict[str, Tally | None]:
    """Returns what floors count to on a client's documents, by name; it need not say anything of them.

    Of one that the client keeps to itself there is none.

    Raises:
        FrameError: It says something else, or of floors that the task has not.
    """
    said = update.values.get("floors", {})
    if not isinstance(said, dict) or not said.keys() <= {*task.floor_names, UNTRAINED}:
        raise FrameError("what a client says of floors is of none of this task's", code="unknown_name")
    floors = {name: own if own is None else _numbers(own, "floors") for name, own in said.items()}
    for tally in floors.values():
        if tally is None:
            continue
        if min(tally.values(), default=0.0) < 0:
            raise FrameError("what a client has counted is less than nothing", code="out_of_range")
        _scores(task, tally, {})
    return dict(floors)
