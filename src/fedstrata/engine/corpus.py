"""What a run says of its documents before it trains on any: in its record, its plan, and to who watches."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.settings.partition import PartitionSettings
from fedstrata.core.settings.report import shown
from fedstrata.core.surveyed import Truncation
from fedstrata.core.task import Task
from fedstrata.data.degenerate import alike_names, degenerate, unmentioned
from fedstrata.data.duplicates import find_duplicates
from fedstrata.data.overview import holdings_of, overview
from fedstrata.data.split import PARTS, Split
from fedstrata.engine.prepare import Experiment

_NUMBERS = {"dirichlet": "alpha", "dirichlet_equal": "alpha", "quantity": "alpha", "speciality": "lean"}
"""The number that a rule of partition goes by."""


def corpus_facts(experiment: Experiment, clients: Mapping[str, Split], *, served: bool) -> dict[str, Any]:
    """Returns what is to be known of documents, as JSON: counts, names of clients and classes, and no text.

    Args:
        experiment: The experiment.
        clients: The documents of all clients of a simulation, or of a site alone, by split.
        served: Whether it is such a site.

    Returns:
        What `fedstrata.data.overview.overview` gives; `cut`, by client and part what is not read
        (`Truncation`), none where all is; `room`, the settings that this goes by; `partition`, in words, none
        of a site; `small_counts`, `hide` or `show`; and `warnings`.
    """
    settings, task = experiment.settings, experiment.task
    documents = [document for own in clients.values() for document in own.all]
    hide = settings.report.hides(served=served)
    duplicates = find_duplicates(clients, _whole if "text_pair" not in task.gives else _first)
    holdings = holdings_of(clients, task)
    cut = _cut(clients, task, experiment.model.tokenizer)
    return {
        **overview(holdings, duplicates, hide=hide),
        "cut": None if cut is None else _told(cut, hide=hide),
        "room": None if cut is None else _room(task),
        "partition": None if served else _words_of(settings.partition),
        "small_counts": "hide" if hide else "show",
        "warnings": [
            *degenerate(holdings, duplicates, served=served, hide=hide),
            *unmentioned(documents, task),
            *alike_names(documents, hide=hide),
        ],
    }


def _whole(document: Document) -> str:
    return "\n".join(document.texts)


def _first(document: Document) -> str:
    return document.text


def _cut(clients: Mapping[str, Split], task: Task, tokenizer: Any) -> dict[str, dict[str, Truncation]] | None:
    """Returns what is not read of each client's documents; none where all is."""
    found = {
        name: {part: task.truncation(getattr(own, part), tokenizer) for part in PARTS}
        for name, own in clients.items()
    }
    if all(own is None for parts in found.values() for own in parts.values()):
        return None
    return {name: {part: own or Truncation() for part, own in parts.items()} for name, parts in found.items()}


def _told(cut: Mapping[str, Mapping[str, Truncation]], *, hide: bool) -> dict[str, Any]:
    """Returns what is not read as JSON; of few documents nothing, where small counts are hidden."""
    return {
        name: {
            part: None
            if None in (shown(own.documents, hide=hide), shown(own.cut, hide=hide))
            else asdict(own)
            for part, own in parts.items()
        }
        for name, parts in cut.items()
    }


def _room(task: Task) -> str:
    """Returns the settings that what is read goes by, with their values."""
    values = {name: getattr(task, name, None) for name in ("max_length", "max_windows", "answer_length")}
    return ", ".join(f"task.{name} {value}" for name, value in values.items() if value is not None)


def _words_of(settings: PartitionSettings) -> str:
    """Returns how documents came to clients."""
    number = _NUMBERS.get(settings.by)
    return settings.by if number is None else f"{settings.by}, {number} {getattr(settings, number):g}"
