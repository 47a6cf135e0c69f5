"""Whether a configuration is sound, and whether a run has what its method asks for."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, DataError, Problem, did_you_mean, refused
from fedstrata.core.method import Method
from fedstrata.core.preflight import Facts
from fedstrata.core.settings.data import CorpusSettings, with_places
from fedstrata.core.settings.federation import FederationSettings
from fedstrata.core.settings.run import USUAL_METHOD, USUAL_TASK, RunSettings
from fedstrata.core.settings.source import Source, validate
from fedstrata.core.task import Task
from fedstrata.data.partition import LABEL_OF
from fedstrata.data.split import Split, every
from fedstrata.engine.model import refusals, with_adapter
from fedstrata.engine.privacy import check_budget, count_problems, settings_problems
from fedstrata.engine.ray_cluster import ray_problems
from fedstrata.engine.sampling import sample_size
from fedstrata.methods import METHODS
from fedstrata.methods.divided import Divided
from fedstrata.models.given import names_factory
from fedstrata.privacy.accounting import require_installed
from fedstrata.record.trackers import require_trackers
from fedstrata.tasks import TASKS
from fedstrata.train.processor import warn_of_slow_bfloat16

Corpus = TypeVar("Corpus", bound=CorpusSettings)


@dataclass(frozen=True, slots=True)
class Checked:
    """A configuration that was checked in itself, without looking at data or models.

    Attributes:
        source: The configuration.
        settings: The settings, with defaults in place of sections that have problems.
        task: The task as it is given; the usual one if its section has problems.
        method: The method; none if its section has problems.
        problems: What is wrong, each with the place its value was set.
    """

    source: Source
    settings: RunSettings
    task: Task
    method: Method | None
    problems: Sequence[Problem]

    def sound(self, *sections: str) -> bool:
        """Whether none of these top-level sections has a problem."""
        return not sections_of(self.problems) & set(sections)

    def require_sound(self) -> Method:
        """Returns the method.

        Raises:
            ConfigurationError: The configuration has problems.
        """
        if self.problems or self.method is None:
            raise ConfigurationError(self.problems)
        return self.method


def check_settings(source: Source) -> Checked:
    """Checks a configuration in itself, without looking at data or models."""
    settings, problems = validate(RunSettings, source)
    problems = [_with_verb(problem) for problem in problems]
    broken = sections_of(problems)
    if settings is None:
        rest = {
            key: value
            for key, value in source.values.items()
            if key in RunSettings.model_fields and key not in broken
        }
        settings = RunSettings.model_validate(rest)
    task, wrong = _check_task(settings, source) if "task" not in broken else (None, [])
    problems = sorted([*problems, *wrong], key=_section_order)
    task = task or TASKS[USUAL_TASK]()
    settings = _with_absolute_paths(settings).model_copy(update={"task": TASKS.section_of(task)})
    if not sections_of(problems) & {"data", "task", "partition"}:
        problems += source.located(_idle_choices(settings, task))
    method, wrong = _check_method(settings, source)
    problems += wrong
    if method is not None:
        problems += source.located(method.problems(Facts(training=settings.training)))
        problems += source.located(settings_problems(settings, task, method))
        settings = with_adapter(settings.model_copy(update={"method": METHODS.section_of(method)}), method)
    return Checked(source, settings, task, method, problems)


def sections_of(problems: Sequence[Problem]) -> set[str]:
    """Returns the top-level sections that have a problem."""
    return {problem.path.partition(".")[0] for problem in problems}


@contextmanager
def collecting(problems: list[Problem], source: Source) -> Iterator[None]:
    """Adds what goes wrong within the block to the problems, each with the place its value was set."""
    try:
        yield
    except ConfigurationError as error:
        problems += source.located(error.problems)
    except DataError as error:
        problems += [source.problem("data.path", str(each), each.code) for each in error.each]


def _check_task(settings: RunSettings, source: Source) -> tuple[Task | None, list[Problem]]:
    """Returns the task of a configuration, none if its section has problems, and these."""
    section = {"name": USUAL_TASK, **settings.task}
    try:
        kind = TASKS.find(section["name"], "task.name")
    except ConfigurationError as error:
        return None, source.located(error.problems)
    values = Source({"task": TASKS.values_of(section)}, source.origins)
    task, problems = validate(kind, values, section="task")
    return task, [_with_owners(problem) for problem in problems]


def _check_method(settings: RunSettings, source: Source) -> tuple[Method | None, list[Problem]]:
    """Returns the method of a configuration, none if its section has problems, and these."""
    section = {"name": USUAL_METHOD, **settings.method}
    try:
        kind = METHODS.find(section["name"], "method.name")
    except ConfigurationError as error:
        return None, source.located(error.problems)
    values = Source({"method": METHODS.values_of(section)}, source.origins)
    method, problems = validate(kind, values, section="method")
    return method, [_with_hint(problem, section["name"]) for problem in problems]


def _with_owners(problem: Problem) -> Problem:
    """Says whose a setting is that is not this task's."""
    key, (_, allowed, keys) = problem.path.removeprefix("task."), problem.message.partition("Allowed here:")
    owners = [name for name, other in TASKS.items() if key in other.model_fields]
    if not owners or problem.code != "unknown_key":
        return problem
    message = f"unknown key; it belongs to name: {' or '.join(owners)}. {allowed}{keys}"
    return replace(problem, message=message)


def _section_order(problem: Problem) -> int:
    """Sorts problems by their section, as pydantic has those of sections that it knows; unknown ones last."""
    sections, own = list(RunSettings.model_fields), problem.path.partition(".")[0]
    return sections.index(own) if own in sections else len(sections)


def _idle_choices(settings: RunSettings, task: Task) -> list[Problem]:
    """Returns a problem for each choice of annotations that the task does not learn and nothing uses."""
    data = settings.data
    idle: dict[str, object] = {}
    used = "labels" in task.gives or settings.partition.by in LABEL_OF
    if not used and data.labels.without_labels == "keep":  # what is dropped depends on those that are kept
        chosen = {"keep": data.labels.keep, "top": data.labels.top}
        idle = {f"labels.{key}": value for key, value in chosen.items()}
    if "relations" not in task.gives:
        idle |= {"relations": data.relations, "modifiers": data.modifiers}
    if not task.reads_spans:
        idle["types"] = data.types
    what = dict.fromkeys(idle, "labels")
    what |= {"relations": "relations", "modifiers": "relations", "types": "mention types"}
    return [
        Problem(
            f"data.{key}",
            f"{what[key]} have no meaning with task {task.name}, which learns {task.learns}; leave it null",
            code="no_effect",
        )
        for key, value in idle.items()
        if value is not None
    ]


def _with_absolute_paths(settings: RunSettings) -> RunSettings:
    """Makes paths independent of where the command was given, so that a run can be resumed from elsewhere."""
    data, model = settings.data, settings.model
    external = {name: _with_absolute_path(corpus) for name, corpus in data.external.items()}
    data = _with_absolute_path(data).model_copy(update={"external": external})
    for key in ("name", "tokenizer", "weights", "vocabulary"):
        place = getattr(model, key)
        if key == "name" and names_factory(place):
            continue
        if isinstance(place, str) and Path(place).expanduser().exists():
            model = model.model_copy(update={key: str(Path(place).expanduser().absolute())})
    privacy = settings.privacy
    if (own := privacy.bounded_by) is not None:
        path = str(Path(own.path).expanduser().absolute())
        privacy = privacy.model_copy(update={"budget": own.model_copy(update={"path": path})})
    return settings.model_copy(update={"data": data, "model": model, "privacy": privacy})


def _with_absolute_path(corpus: Corpus) -> Corpus:
    """Makes paths of a corpus absolute; what is no file or folder may be an id of the hub, which stays."""
    places = with_places(dict(corpus), lambda place: str(Path(place).expanduser().absolute()))
    if corpus.format == "datasets" and "path" in places and not Path(places["path"]).exists():
        del places["path"]
    return corpus.model_copy(update=places)


def _with_verb(problem: Problem) -> Problem:
    """Says which verb a file of several runs is for."""
    if problem.path != "sweep":
        return problem
    message = "describes several runs; give this file to fedstrata compare"
    return Problem("sweep", message, problem.origin, code="wrong_command")


def _with_hint(problem: Problem, method: str) -> Problem:
    """Says whose a setting is that is not this method's, and how to leave another's settings behind."""
    if problem.code != "unknown_key":
        return problem
    key = problem.path.removeprefix("method.")
    owners = [name for name, other in METHODS.items() if key in other.model_fields]
    others = f"; a setting of {', '.join(owners)}" if owners else ""
    hint = f"{others}; to change the method as a whole: 'method={{name: {method}}}'"
    return replace(problem, message=problem.message + hint)


def device_of(settings: RunSettings) -> torch.device:
    """Returns the device to run on: the GPU if there is one, unless the settings say otherwise.

    On a GPU torch is told to use deterministic kernels, so that a seed gives one result there too.
    """
    available = torch.cuda.is_available()
    name = ("cuda" if available else "cpu") if settings.device == "auto" else settings.device
    device = torch.device(name)
    if device.type == "cuda":
        if (device.index or 0) >= torch.cuda.device_count():
            found = f"torch sees {torch.cuda.device_count()} GPUs here"
            message = f"{name!r} is not available: {found}; cpu always is"
            raise refused("device", message, "not_found")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
        torch.use_deterministic_algorithms(True, warn_only=True)
    elif settings.training.precision == "bfloat16":
        warn_of_slow_bfloat16()
    return device


def machine_problems(settings: RunSettings, *, apart: bool = False) -> list[Problem]:
    """Returns the problems with what must be on this machine: the device, libraries, a budget's files.

    Args:
        settings: The run's settings.
        apart: Whether they are those of a client that is a process of its own.
    """
    private = [require_installed] if settings.privacy.mechanism != "none" else []
    own = partial(check_budget, settings.privacy, apart=apart)
    found = refusals(lambda: device_of(settings), lambda: require_trackers(settings.report_to), own, *private)
    return [*found, *ray_problems(settings)]


def check_metric(settings: RunSettings, task: Task | None) -> None:
    """Checks the name of the score a run is judged by against those the task gives.

    Args:
        settings: The run's settings.
        task: The task; none where the data that would tell its labels is not sound.
    """
    metric = settings.federation.metric
    names: Any = TASKS[settings.task["name"]].metrics if task is None else task.score_names
    if metric is None or not isinstance(names, tuple):  # a class may not know without its data
        return
    if metric in names or (task is None and "/" in metric):
        return
    hint = did_you_mean(metric, names, before="; ") or "."
    whole = [name for name in names if "/" not in name]
    singles = len(names) - len(whole)
    more = f" and {singles} scores of single labels, such as {names[-1]}" if singles else ""
    message = f"{metric!r} is no score of this task{hint} It gives: {', '.join(whole)}{more}"
    raise refused("federation.metric", message, "unknown_name")


def divided_method(method: Method) -> Divided:
    """Returns a method that divides the model between client and server.

    Raises:
        ConfigurationError: This one does not.
    """
    if not isinstance(method, Divided):
        able = " or ".join(name for name, card in METHODS.items() if issubclass(card, Divided))
        message = f"must be {able}, which divides the model between client and server, not {method.name}"
        raise refused("method.name", message, "not_supported")
    return method


def unfit_clients(
    settings: RunSettings, task: Task, method: Method | None, sites: Mapping[str, Split]
) -> list[Problem]:
    """Returns the problems that a run asks for clients, or for labels of theirs, that there are not.

    Args:
        settings: The run's settings.
        task: Its task, as it is given.
        method: Its method, if that is sound.
        sites: The documents of each site by split; one without training documents is no client.
    """
    clients = [name for name, own in sites.items() if own.train]
    return [
        *unfit_participants(settings.federation, method, clients),
        *count_problems(settings, method, len(clients)),
        *task.named_in_vain(every(sites)),
        *_unknown_corrupt(settings.federation, clients),
    ]


def _unknown_corrupt(federation: FederationSettings, clients: Sequence[str]) -> Iterator[Problem]:
    """Yields the corrupt clients that there are not."""
    for name in federation.corrupt.clients or ():
        if name not in clients:
            hint = did_you_mean(name, clients, before="; ")
            message = f"{name!r} is no client of this run{hint}"
            yield Problem("federation.corrupt.clients", message, code="unknown_name")


def unfit_participants(
    federation: FederationSettings, method: Method | None, clients: Sequence[str]
) -> list[Problem]:
    """Returns the problems that a run has with who takes part: their names, and how many they are."""
    named = [] if method is None else method.problems(Facts(clients=clients))
    if problems := too_few_sampled(federation, len(clients)):
        return [*named, *problems]
    if method is None:
        return named
    sampled = sample_size(len(clients), federation.sample)
    why = _sampling(federation, len(clients))
    return [*named, *method.problems(Facts(sampled=sampled, sampling=why, federation=federation))]


def too_few_sampled(federation: FederationSettings, clients: int) -> list[Problem]:
    """Returns the problem that more clients must deliver than take part in a round, if so."""
    sampled = sample_size(clients, federation.sample)
    if federation.min_clients is None or federation.min_clients <= sampled:
        return []
    allowed = f"must be at most {sampled}, the clients that take part in a round"
    message = f"{allowed} ({_sampling(federation, clients)}), not {federation.min_clients}"
    return [Problem("federation.min_clients", message, code="out_of_range")]


def unservable(settings: RunSettings, method: Method | None, *, joins: bool = False) -> list[Problem]:
    """Returns a problem for each setting that only a simulation, which has all documents, can follow.

    Args:
        settings: The settings of a server, or of a client.
        method: The method, if it is sound.
        joins: Whether it is a client's.
    """
    federation, data = settings.federation, settings.data
    divided = isinstance(method, Divided)
    lets = "only a simulation lets them drop out or lie"
    scores = "they score their documents, each with the shared ends or its own, and tell the scores alone"
    asked = {
        "federation.dropout": (federation.dropout, lets),
        "federation.corrupt": (federation.corrupt.names_clients, lets),
        "federation.bootstrap": (federation.bootstrap is not None, scores),
        "federation.score_clients": (federation.score_clients, scores),
        "federation.score_everywhere": (federation.score_everywhere is True, scores),
        "data.split.test_sites": (data.split.test_sites, scores),
        "data.external": (data.external, scores),
        "devices": (settings.devices is not None, "only a simulation emulates devices"),
        "method.name": (
            method is not None and method.pooled,
            "it has the documents of all of them in one place",
        ),
        "training.cache": (
            divided and settings.training.cache == "on",
            "nothing of theirs is kept on disk between steps",
        ),
        "data.split.server": (joins and data.split.server, "documents of the server's own lie at the server"),
        "report_to": (joins and settings.report_to, "the server reports"),
        "privacy.budget": (
            not joins and settings.privacy.budget is not None,
            "it is each site's own, in the site's file",
        ),
        "workers": (settings.workers not in ("auto", 1), "each computes its own turns, one at a time"),
    }
    without = "has no meaning with clients that are processes of their own"
    return [
        Problem(path, f"{without}: {why}", code="not_supported")
        for path, (value, why) in asked.items()
        if value
    ]


def _sampling(federation: FederationSettings, clients: int) -> str:
    return f"{clients} clients, of which federation.sample takes {federation.sample:g}"


def without_validation(method: Method | None, sites: Mapping[str, Split]) -> list[Problem]:
    """Returns the problem that a method judges by validation documents and no client has any, if so."""
    if method is None or not method.validates or any(own.validation for own in sites.values() if own.train):
        return []
    message = f"{method.name} goes by clients' scores on validation documents in the rounds, and none has any"
    return [Problem("data.split.validation", message, code="not_enough_data")]


def without_examples(
    method: Method, task: Task, documents: Sequence[Document], tokenizer: Any
) -> list[Problem]:
    """Returns the problem that the server's documents give no example, and so no loss, if so."""
    if not method.tries_updates:
        return []
    examples = len(task.encode(documents, tokenizer))
    return method.problems(Facts(task=task.name, server_documents=len(documents), server_examples=examples))
