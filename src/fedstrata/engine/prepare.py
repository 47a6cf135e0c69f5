"""From a configuration to an experiment that can run; every problem is found before anything starts.

A whole run has the model and all documents here. Of a divided model a server and each client prepare their
own side, each by its own configuration.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.method import Method
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings, TrainedTokenizer
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source
from fedstrata.core.task import Task
from fedstrata.data.divide import Division, divide
from fedstrata.data.limit import Limited
from fedstrata.data.split import Split
from fedstrata.engine.check import (
    Checked,
    check_metric,
    check_settings,
    collecting,
    device_of,
    divided_method,
    machine_problems,
    unfit_clients,
    unfit_participants,
    unservable,
    without_examples,
    without_validation,
)
from fedstrata.engine.model import check_model, load_model, refusals
from fedstrata.engine.privacy import count_problems, privacy_of, unit_problems, window_problems
from fedstrata.engine.processors import idle_cores, idle_workers, workers_of
from fedstrata.methods.divided import Divided
from fedstrata.models.load import read_tokenizer
from fedstrata.models.state import Model
from fedstrata.privacy.mechanism import NO_PRIVACY, Privacy
from fedstrata.split.divide import leave_ends, leave_middle
from fedstrata.tasks import TASKS
from fedstrata.train.processor import use_processor

Without: TypeAlias = Callable[[Method], Callable[[PreTrainedModel], None] | None]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything a run needs.

    Attributes:
        settings: The resolved configuration.
        method: The federated method.
        task: The task, which knows its labels.
        model: The loaded model.
        clients: Each client's documents by split; a site without training documents is held out: it is
            scored, and no client of any round.
        seed: Root of all seeds.
        server: The server's own documents, annotated as the task knows it.
        asked: The task's settings as they were given, where `auto` stands for what is found in documents.
        workers: How many clients compute at once.
        privacy: The mechanism of differential privacy; of none if none is asked for.
        limited: How far `data.limit` has cut the documents down; none without.
    """

    settings: RunSettings
    method: Method
    task: Task
    model: Model
    clients: dict[str, Split]
    seed: Seed
    server: tuple[Document, ...] = ()
    asked: Mapping[str, Any] | None = None
    workers: int = 1
    privacy: Privacy = NO_PRIVACY
    limited: Limited | None = None

    @property
    def metric(self) -> str:
        """The score the run is judged by."""
        return self.settings.federation.metric or self.task.metric

    @property
    def idle_cores(self) -> str:
        """Which cores of this machine stay idle in a simulation, and which setting changes it; see there."""
        return idle_cores(self.settings, self.method, self.model, self.clients, self.workers)


def prepare(
    source: Source,
    *,
    tokenizer_folder: Path | None = None,
    without_of: Without = lambda method: None,
    apart: bool = False,
    joins: bool = False,
) -> Experiment:
    """Checks a configuration and loads what it names.

    Args:
        source: The configuration.
        tokenizer_folder: Where the tokenizer lies that the run built from its texts; it is built if none.
        without_of: Returns what takes parts out of the model before its weights are read; none for nothing.
        apart: Whether clients are processes of their own: these data then need not be those of all of them.
        joins: Whether it is such a client's, which has no documents of the server's own.

    Raises:
        ConfigurationError: With every problem that could be found; sections that are wrong in themselves do
            not keep the others from being checked against the data and the model.
    """
    checked = check_settings(source)
    settings, method = checked.settings, checked.method
    problems = [*checked.problems, *source.located(machine_problems(settings, apart=apart))]
    divided = Division({})
    clients = divided.clients
    server: tuple[Document, ...] = ()
    task: Task | None = None
    tokenizer = None
    if checked.sound("data", "partition", "seed", "task"):
        with collecting(problems, source):
            divided = divide(settings, checked.task, apart=apart)
            clients = divided.clients
            if not apart:
                problems += source.located(unfit_clients(settings, checked.task, method, clients))
                problems += source.located(without_validation(method, clients))
            problems += source.located(unit_problems(settings, clients, apart=apart))
            task = checked.task.fitted(clients)
            if task.without_relations:
                divided = divided.with_relations_aside(task.without_relations)
                clients = divided.clients
            known = map(task.known, divided.server)
            server = tuple(document for document in known if task.scorable(document))
            if method is not None:
                tried = None if joins else len(server)
                facts = Facts(server_documents=tried, devices=settings.devices)
                problems += source.located(method.problems(facts))
    if checked.sound("task", "federation"):
        problems += source.located(refusals(lambda: check_metric(settings, task)))
    if checked.sound("model", "task"):
        with collecting(problems, source):
            tokenizer = check_model(settings, checked.task, method)
    problems += source.located([] if method is None else idle_workers(settings, method))
    if problems or method is None or task is None:
        raise ConfigurationError(problems)
    resolved = settings.model_copy(update={"task": TASKS.section_of(task)})
    with collecting(problems, source):
        tokenizer = tokenizer or _trained_tokenizer(resolved, clients, tokenizer_folder)
        model = load_model(resolved, task, method, tokenizer, without=without_of(method))
        problems += source.located(window_problems(resolved, task, model.tokenizer, clients))
        if not joins:
            problems += source.located(without_examples(method, task, server, model.tokenizer))
        if not problems:
            model, seed = model.to(device_of(resolved)), Seed(resolved.seed)
            workers = 1 if apart else workers_of(resolved, method, model, clients)
            resolved = _with_threads(resolved, resolved.threads if apart else resolved.threads or 1)
            privacy = privacy_of(resolved, method, model.layout)
            asked = settings.task
            made = Experiment(resolved, method, task, model, clients, seed, server, asked, workers, privacy)
            return replace(made, limited=divided.limited)
    raise ConfigurationError(problems)


def with_model(experiment: Experiment, tokenizer: Any, device: torch.device) -> Experiment:
    """Returns an experiment with a model of its own, as it was before anything was learnt.

    Args:
        experiment: The experiment; its model is not looked at.
        tokenizer: The model's.
        device: Where the model is to be.
    """
    model = load_model(experiment.settings, experiment.task, experiment.method, tokenizer)
    return replace(experiment, model=model.to(device), workers=1)


def prepare_server(source: Source, clients: Sequence[str], *, trains: bool = True) -> Experiment:
    """Checks a configuration and loads what a server needs of it: a model, and few documents or none.

    A causal language model is served without any data, and so is a model with classes if the task names them.
    If not they are those of the configuration's data, which may be any documents with the same labels; a
    method that tries updates on documents of the server's own takes them from there too. Of a model that the
    method divides no more is read than what any of the clients lacks.

    Args:
        source: The configuration.
        clients: Who may join.
        trains: Whether they come to train, all of them, and not to be answered.

    Raises:
        ConfigurationError: With every problem that could be found.
    """

    def without_of(method: Method) -> Callable[[PreTrainedModel], None] | None:
        return partial(leave_middle, cut=method.widest(clients)) if isinstance(method, Divided) else None

    checked = check_served(source, clients, trains=trains)
    if checked.task.needs_documents or (checked.method is not None and checked.method.tries_updates):
        return prepare(source, without_of=without_of, apart=True)
    return _without_documents(checked, without_of, [])


def check_served(source: Source, clients: Sequence[str], *, trains: bool = True) -> Checked:
    """Checks a configuration that is to be served to clients, as far as that needs no model and no data.

    Args:
        source: The configuration.
        clients: Who may join.
        trains: Whether they come to train, all of them, and not to be answered.

    Raises:
        ConfigurationError: With every problem that could be found.
    """
    checked = check_settings(source)
    method = checked.method
    problems = _side_problems(checked, divided=not trains)
    if trains:
        problems += source.located(unservable(checked.settings, method))
        problems += source.located(unfit_participants(checked.settings.federation, method, clients))
        problems += source.located(count_problems(checked.settings, method, len(clients)))
    if problems:
        raise ConfigurationError(problems)
    return checked


def prepare_client(source: Source, client: str) -> Experiment:
    """Checks a configuration and loads what a client needs of it: its documents, and its part of the model.

    Args:
        source: The configuration; its data are the client's own, or hold the client's under its name.
        client: Its name.

    Raises:
        ConfigurationError: As `prepare` does.
    """
    return prepare(source, without_of=_without_middle(client), apart=True, joins=True)


def prepare_prompts(source: Source, client: str) -> Experiment:
    """Does as `prepare_client`, for a client whose texts are no documents of the configuration's data.

    Raises:
        ConfigurationError: With every problem that could be found; or the model generates nothing.
    """
    checked = check_settings(source)
    if checked.task.kind != "causal-lm":
        message = f"{checked.task.name} has a model with classes, which generates nothing"
        raise ConfigurationError([*checked.problems, Problem("task.name", message, code="not_supported")])
    return _without_documents(checked, _without_middle(client), _side_problems(checked, divided=True))


def _without_middle(client: str) -> Without:
    def without_of(method: Method) -> Callable[[PreTrainedModel], None] | None:
        cut = method.divides(client)
        return None if cut is None else partial(leave_ends, cut=cut)

    return without_of


def _side_problems(checked: Checked, *, divided: bool) -> list[Problem]:
    """Returns what is wrong with a configuration of one side, without looking at any documents.

    Args:
        checked: The configuration.
        divided: Whether the method has to divide the model.
    """
    settings, method = checked.settings, checked.method
    found = refusals(lambda: divided_method(method)) if divided and method is not None else []
    found += machine_problems(settings)
    found += refusals(lambda: check_model(settings, checked.task, method))
    return [*checked.problems, *checked.source.located(found)]


def _without_documents(checked: Checked, without_of: Without, problems: list[Problem]) -> Experiment:
    """Loads one side of a model whose task needs no documents; the configuration's data are not read."""
    source, settings, method = checked.source, checked.settings, checked.method
    problems += source.located(refusals(lambda: check_metric(settings, checked.task.as_named())))
    if isinstance(settings.model.tokenizer, TrainedTokenizer):
        message = "must be one that is there already: no texts are read here to build one from"
        problems.append(source.problem("model.tokenizer", message, "not_supported"))
    if problems or method is None:
        raise ConfigurationError(problems)
    settings = _with_threads(settings, settings.threads)
    task = checked.task.as_named()
    model = load_model(settings, task, method, None, without=without_of(method))
    with collecting(problems, source):
        seed, privacy = Seed(settings.seed), privacy_of(settings, method, model.layout)
        return Experiment(settings, method, task, model.to(device_of(settings)), {}, seed, privacy=privacy)
    raise ConfigurationError(problems)


def _with_threads(settings: RunSettings, threads: int | None) -> RunSettings:
    """Sets up this process; returns the settings with its threads, which a run that goes on must have."""
    use_processor(threads)
    return settings.model_copy(update={"threads": torch.get_num_threads()})


def _trained_tokenizer(settings: RunSettings, clients: Mapping[str, Split], folder: Path | None) -> Any:
    """Returns the tokenizer that is built from all clients' training texts; none where it is not to be."""
    if folder is not None:
        return read_tokenizer(ModelSettings(name=str(folder)))
    asked = settings.model.tokenizer
    if not isinstance(asked, TrainedTokenizer):
        return None
    from fedstrata.models.train_tokenizer import train_tokenizer  # noqa: PLC0415 - seldom needed

    texts = (text for own in clients.values() for item in own.train for text in item.texts)
    return train_tokenizer(asked, texts)
