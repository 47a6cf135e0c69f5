"""What a process needs that holds one side of a divided model: a checked configuration, and its own part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import TrainedTokenizer
from fedstrata.core.settings.task import (
    ClassifySettings,
    ExtractSettings,
    NerSettings,
    RelationSettings,
    SummarizeSettings,
    TaskSettings,
)
from fedstrata.engine.agreeing import divided_method
from fedstrata.engine.check import too_few_sampled
from fedstrata.engine.model import check_model, load_model, refusals
from fedstrata.engine.prepare import (
    Experiment,
    check_metric,
    check_settings,
    device_of,
    machine_problems,
    prepare,
)
from fedstrata.split.divide import leave_ends, leave_middle
from fedstrata.tasks import TASKS
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.instruction.prompts import builtin
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.relations import RelationClassification
from fedstrata.train.processor import use_processor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fedstrata.core.method import Method
    from fedstrata.core.settings.federation import FederationSettings
    from fedstrata.core.settings.run import RunSettings
    from fedstrata.core.settings.source import Source
    from fedstrata.core.task import Task

    Without = Callable[[Method], Callable[[PreTrainedModel], None]]


def prepare_server(source: Source, clients: Sequence[str], *, trains: bool = True) -> Experiment:
    """Checks a configuration and loads what a server needs of it: the middle of the model, and few documents.

    A causal language model is served without any data, and so is a model with classes if the task names them.
    If not they are those of the configuration's data, which may be any documents with the same labels. Of the
    model's file no more is read than what any of the clients lacks.

    Args:
        source: The configuration.
        clients: Who may join.
        trains: Whether they come to train, all of them, and not to be answered.

    Raises:
        ConfigurationError: With every problem that could be found.
    """

    def without_of(method: Method) -> Callable[[PreTrainedModel], None]:
        return partial(leave_middle, cut=divided_method(method).widest(clients))

    settings, method, problems = _checked(source)
    if trains:
        problems += source.located(_unservable(settings.federation))
        problems += source.located(too_few_sampled(settings.federation, len(clients)))
        problems += source.located([] if method is None else method.problems(Facts(clients=clients)))
    if problems:
        raise ConfigurationError(problems)
    if TASKS[settings.task.name].kind == "causal-lm" or _names_its_classes(settings.task):
        return _prepared(source, without_of)
    return prepare(source, without_of=without_of, apart=True)


def _unservable(federation: FederationSettings) -> list[Problem]:
    """Returns a problem for each setting of a federation that only a simulation can follow."""
    message = "has no meaning with clients of their own; only a simulation lets them drop out or lie"
    asked = {"federation.dropout": federation.dropout, "federation.corrupt": federation.corrupt.share}
    return [Problem(path, message) for path, value in asked.items() if value]


def _names_its_classes(task: TaskSettings) -> bool:
    """Whether the settings of a task say all that is otherwise found in documents."""
    match task:
        case NerSettings():
            return task.types != "auto"
        case RelationSettings():
            return "auto" not in (task.types, task.modifiers)
        case ClassifySettings():
            return "auto" not in (task.labels, task.problem_type)
    return False


def prepare_client(source: Source, client: str) -> Experiment:
    """Checks a configuration and loads what a client needs of it: the ends of the model, and its documents.

    Args:
        source: The configuration; its data are the client's own, or hold the client's under its name.
        client: Its name.

    Raises:
        ConfigurationError: As `prepare` does, or the method does not divide the model.
    """
    return prepare(source, without_of=_without_middle(client), apart=True)


def prepare_prompts(source: Source, client: str) -> Experiment:
    """Does as `prepare_client`, for a client whose texts are no documents of the configuration's data.

    Raises:
        ConfigurationError: With every problem that could be found; or the model generates nothing.
    """
    settings, _, problems = check_settings(source)
    if TASKS[settings.task.name].kind != "causal-lm":
        message = f"{settings.task.name} has a model with classes, which generates nothing"
        raise ConfigurationError([*problems, Problem("task.name", message)])
    return _prepared(source, _without_middle(client))


def _without_middle(client: str) -> Without:
    return lambda method: partial(leave_ends, cut=divided_method(method).divides(client))


def _checked(source: Source) -> tuple[RunSettings, Method | None, list[Problem]]:
    """Returns the settings, the method and what is wrong with them, without looking at any documents."""
    settings, method, problems = check_settings(source)
    if method is not None:
        problems += source.located(refusals(lambda: divided_method(method)))
    problems += source.located(machine_problems(settings))
    problems += source.located(refusals(lambda: check_model(settings, method)))
    return settings, method, problems


def _prepared(source: Source, without_of: Without) -> Experiment:
    """Loads one side of a model whose task needs no documents; the configuration's data are not read."""
    settings, method, problems = _checked(source)
    problems += source.located(refusals(lambda: check_metric(settings, _task(settings))))
    if isinstance(settings.model.tokenizer, TrainedTokenizer):
        message = "must be one that is there already: no texts are read here to build one from"
        problems.append(source.problem("model.tokenizer", message))
    if problems or method is None:
        raise ConfigurationError(problems)
    use_processor(settings.threads)
    task = _task(settings)
    model = load_model(settings, task, None, without=without_of(method))
    return Experiment(settings, method, task, model.to(device_of(settings)), {}, Seed(settings.seed))


def _task(settings: RunSettings) -> Task:
    """Returns the task as far as it is known without documents: what it is scored by, and its classes.

    Raises:
        ConfigurationError: A setting is `auto`, for which there would have to be documents.
    """
    own = settings.task
    match own:
        case NerSettings(types=list() as types):
            return NamedEntityRecognition(own, types)
        case RelationSettings(types=list() as types):
            return RelationClassification(own, types)
        case ClassifySettings(labels=list() as labels):
            return DocumentClassification(own, labels)
    if isinstance(own, ExtractSettings):
        wanted: dict[str, Any] = {"mentions": "ner" in own.tasks, "modifiers": "re" in own.tasks}
        left_open = [name for name in wanted if getattr(own, name) == "auto"]
        message = "must be named, not 'auto': no documents are read here in which they could be found"
        if problems := [Problem(f"task.{name}", message) for name in left_open if wanted[name]]:
            raise ConfigurationError(problems)
        own = own.model_copy(update=dict.fromkeys(left_open, ()))
    if isinstance(own, SummarizeSettings) and own.template is None:
        own = own.model_copy(update={"template": builtin("summarize")})  # who asks fills in its own
    return TASKS[own.name].from_labels(own, ())
