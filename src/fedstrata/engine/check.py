"""Whether a run has what its method asks for: clients enough for a round, and documents to judge them by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedstrata.aggregate.rules import AveragingSettings, MeanRule, MultiKrumRule, RobustRule
from fedstrata.core.errors import Problem
from fedstrata.data.split import every
from fedstrata.engine.sites import sample_size
from fedstrata.methods.droppeft import DropPEFT
from fedstrata.methods.fedadaopt import CONFIGURATIONS, FedAdaOPT
from fedstrata.methods.fedmedlora_plus import FedMedLoRAPlus
from fedstrata.methods.fl_llama import FLLLaMA
from fedstrata.tasks import task_of

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
    in_vain = task_of(settings.task).named_in_vain(every(sites))
    named = [*cuts_of_nobody(method, clients), *in_vain]
    return [*named, *_too_few(settings, method, len(clients))]


def _too_few(settings: RunSettings, method: Method | None, clients: int) -> list[Problem]:
    """Returns the problem that a round asks for more clients than it has, if it does."""
    federation = settings.federation
    if problems := too_few_sampled(federation, clients):
        return problems
    sampled, why = sample_size(clients, federation.sample), _sampling(federation, clients)
    if isinstance(method, FedAdaOPT) and sampled < CONFIGURATIONS:
        needs = f"fedadaopt tries {CONFIGURATIONS} configurations in a round, each on other clients"
        return [Problem("federation.sample", f"{needs}, and {sampled} take part ({why})")]
    if isinstance(method, DropPEFT) and method.personal and sampled < 2:
        needs = "droppeft averages a block where at least two devices of a round send it, while blocks stay"
        message = f"{needs} personal, and {sampled} takes part ({why}); method.shared_blocks 1.0 shares all"
        return [Problem("federation.sample", message)]
    if isinstance(method, FedMedLoRAPlus) and (cap := method.settings.cap or 1.0) * sampled < 1:
        allowed = f"must be at least 1/{sampled}, the equal share of the clients of a round"
        return [Problem("method.cap", f"{allowed} ({why}), not {cap:g}")]
    if method is None or not isinstance(method.settings, AveragingSettings):
        return []
    rule = method.settings.aggregation
    return [] if isinstance(rule, MeanRule) else _too_few_to_judge(rule, federation, sampled, why)


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


def without_server_documents(method: Method | None, documents: Sequence[Document]) -> list[Problem]:
    """Returns the problem that a method needs documents of the server's own and there are none, if so."""
    if not isinstance(method, FedMedLoRAPlus) or documents:
        return []
    message = f"must be 1 or more with {method.name}, which weighs clients by their loss on such documents"
    return [Problem("data.split.server", f"{message} (its paper has 5)")]


def without_whole_models(settings: RunSettings, method: Method | None) -> list[Problem]:
    """Returns the problem that devices are emulated and none holds the whole model, if so."""
    if settings.devices is None or not isinstance(method, FLLLaMA):
        return []
    message = f"emulated devices compute with the whole model, and {method.name} leaves a part to the server"
    return [Problem("devices", message)]


def cuts_of_nobody(method: Method | None, clients: Iterable[str]) -> list[Problem]:
    """Returns a problem for each cut of a client that there is not."""
    if not isinstance(method, FLLLaMA):
        return []
    known = list(clients)
    return [
        Problem(f"method.cuts.{name}", f"there is no client {name!r}; there are: {', '.join(known)}")
        for name in method.settings.cuts
        if name not in known
    ]


def unfit_steps(settings: RunSettings, method: Method) -> list[Problem]:
    """Returns the problem that a divided step has too few batches for what is wanted, or too many."""
    batches = settings.training.accumulation
    if not isinstance(method, FLLLaMA):
        return []
    if batches == 1:
        if (flight := method.settings.in_flight) == 1:
            return []
        message = f"{flight} has no meaning with training.accumulation 1: what may be under way at once are"
        return [Problem("method.in_flight", f"{message} the batches of one step")]
    if (method.settings.mode, method.settings.mean) != ("client_batch", "clients"):
        return []
    message = f"'clients' needs training.accumulation 1, not {batches}: the server goes back through a batch"
    return [Problem("method.mean", f"{message} before it knows how many terms a client's whole step has")]


def without_examples(
    method: Method, task: Task, documents: Sequence[Document], tokenizer: Any
) -> list[Problem]:
    """Returns the problem that the server's documents give no example, and so no loss, if so."""
    if not isinstance(method, FedMedLoRAPlus) or task.encode(documents, tokenizer):
        return []
    message = (
        f"{method.name} weighs clients by their loss on the {len(documents)} documents of the server, and"
    )
    return [Problem("data.split.server", f"{message} none has an example for task {task.name}")]


def _too_few_to_judge(
    rule: RobustRule, federation: FederationSettings, sampled: int, why: str
) -> list[Problem]:
    """Returns the problem that a robust rule may get fewer updates than it can judge, if it may."""
    hostile, needed = rule.hostile_among(sampled), rule.needed(sampled)
    told = f", with f = {hostile}" if hostile else ""
    condition = f"{rule.rule} needs {needed} updates a round ({rule.condition}{told})"
    if sampled < needed:
        message = f"{condition}, and {sampled} clients take part in one ({why})"
        return [Problem("method.aggregation", message)]
    if federation.min_clients is not None and federation.min_clients < needed:
        message = f"must be at least {needed}, not {federation.min_clients}: {condition}"
        return [Problem("federation.min_clients", message)]
    if federation.min_clients is None and federation.dropout > 0:
        message = f"must be set, to {needed} or more, when clients drop out: {condition}"
        return [Problem("federation.min_clients", message)]
    if isinstance(rule, MultiKrumRule) and rule.keep is not None and rule.keep > sampled - hostile:
        message = f"must be at most {sampled - hostile}, n - f, not {rule.keep}"
        return [Problem("method.aggregation.keep", message)]
    return []
