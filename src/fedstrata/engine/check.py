"""Whether a run has what its method asks for: clients enough for a round, and documents to judge them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedstrata.core.errors import Problem, did_you_mean
from fedstrata.core.preflight import Facts
from fedstrata.core.settings.task import ClassifySettings, NerSettings, RelationSettings
from fedstrata.data.select import mention_types, relation_types
from fedstrata.engine.sites import sample_size

if TYPE_CHECKING:
    from fedstrata.core.documents import Document
    from fedstrata.core.method import Method
    from fedstrata.core.settings.federation import FederationSettings
    from fedstrata.core.settings.run import RunSettings
    from fedstrata.core.task import Task
    from fedstrata.data.split import Split


def unfit_clients(settings: RunSettings, method: Method | None, sites: Mapping[str, Split]) -> list[Problem]:
    """Returns the problems that a run asks for clients, or for labels of theirs, that there are not.

    Args:
        settings: The run's settings.
        method: Its method, if that is sound.
        sites: The documents of each site by split; one without training documents is no client.
    """
    clients = [name for name, own in sites.items() if own.train]
    named = [] if method is None else method.problems(Facts(clients=clients))
    named += _names_of_nothing(settings, sites)
    return [*named, *_too_few(settings.federation, method, len(clients))]


def _names_of_nothing(settings: RunSettings, sites: Mapping[str, Split]) -> list[Problem]:
    """Returns a problem for each type or label that a task names to be learnt and no document has."""
    documents = [document for own in sites.values() for document in own.all]
    match settings.task:
        case NerSettings(types=list() as names):
            setting, occurring = "types", set(mention_types(documents))
        case RelationSettings(types=list() as names):
            setting, occurring = "types", set(relation_types(documents))
        case ClassifySettings(labels=list() as names):
            setting, occurring = "labels", {label for document in documents for label in document.labels}
        case _:
            return []
    return [
        Problem(
            f"task.{setting}", f"{name!r} occurs in no document{did_you_mean(name, occurring, before='; ')}"
        )
        for name in names
        if name not in occurring
    ]


def _too_few(federation: FederationSettings, method: Method | None, clients: int) -> list[Problem]:
    """Returns the problem that a round asks for more clients than it has, if it does."""
    if problems := too_few_sampled(federation, clients):
        return problems
    if method is None:
        return []
    sampled, why = sample_size(clients, federation.sample), _sampling(federation, clients)
    return method.problems(Facts(sampled=sampled, sampling=why, federation=federation))


def too_few_sampled(federation: FederationSettings, clients: int) -> list[Problem]:
    """Returns the problem that more clients must deliver than take part in a round, if so."""
    sampled = sample_size(clients, federation.sample)
    if federation.min_clients is None or federation.min_clients <= sampled:
        return []
    allowed = f"must be at most {sampled}, the clients that take part in a round"
    message = f"{allowed} ({_sampling(federation, clients)}), not {federation.min_clients}"
    return [Problem("federation.min_clients", message)]


def _sampling(federation: FederationSettings, clients: int) -> str:
    return f"{clients} clients, of which federation.sample takes {federation.sample:g}"


def without_validation(method: Method | None, sites: Mapping[str, Split]) -> list[Problem]:
    """Returns the problem that a method judges by validation documents and no client has any, if so."""
    if method is None or not method.validates or any(own.validation for own in sites.values() if own.train):
        return []
    message = f"{method.name} goes by clients' scores on validation documents in the rounds, and none has any"
    return [Problem("data.split.validation", message)]


def without_examples(
    method: Method, task: Task, documents: Sequence[Document], tokenizer: Any
) -> list[Problem]:
    """Returns the problem that the server's documents give no example, and so no loss, if so."""
    if not method.tries_updates:
        return []
    examples = len(task.encode(documents, tokenizer))
    name = task.settings.name
    return method.problems(Facts(task=name, server_documents=len(documents), server_examples=examples))
