"""From a configuration to an experiment that can run; every problem is found before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedstrata.core.config import DataSettings, RunSettings
from fedstrata.core.errors import ConfigurationError, DataError, Problem
from fedstrata.core.seeding import Seed
from fedstrata.core.sources import Source, validate
from fedstrata.data.partition import partition
from fedstrata.data.select import select_types
from fedstrata.data.split import Split, split
from fedstrata.methods import METHODS
from fedstrata.models.blocks import find_layout
from fedstrata.models.load import load, skeleton
from fedstrata.tasks import TASKS

if TYPE_CHECKING:
    from fedstrata.core.documents import Document
    from fedstrata.core.method import Method, Task
    from fedstrata.models.state import Model


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything a run needs.

    Attributes:
        settings: The resolved configuration.
        method: The federated method.
        task: The task, which knows its labels.
        model: The loaded model.
        clients: Each client's documents by split.
        seed: Root of all seeds.
    """

    settings: RunSettings
    method: Method
    task: Task
    model: Model
    clients: dict[str, Split]
    seed: Seed


def prepare(source: Source) -> Experiment:
    """Checks a configuration and loads what it names.

    Raises:
        ConfigurationError: With every problem that could be found; sections that are wrong in themselves do
            not keep the others from being checked against the data and the model.
    """
    settings, method, problems = check_settings(source)
    sound = _sound_sections(problems)
    clients: dict[str, Split] = {}
    task: Task | None = None
    if sound("data", "partition", "seed", "task"):
        try:
            clients = divide(settings)
            task = TASKS[settings.task.name].from_documents(settings.task, clients)
        except ConfigurationError as error:
            problems += [source.problem(problem.path, problem.message) for problem in error.problems]
        except DataError as error:
            problems.append(source.problem("data.path", str(error)))
    if sound("model"):
        try:
            layout = find_layout(skeleton(settings.model, kind=TASKS[settings.task.name].kind, labels=("O",)))
            if method is not None:
                method.trainable(layout)
        except ConfigurationError as error:
            problems += [source.problem(problem.path, problem.message) for problem in error.problems]
    if problems or method is None or task is None:
        raise ConfigurationError(problems)
    seed = Seed(settings.seed)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    try:
        model = load(settings.model, kind=task.kind, labels=task.labels, seed=seed.child("model"))
    except ConfigurationError as error:
        raise ConfigurationError(
            [source.problem(item.path, item.message) for item in error.problems]
        ) from None
    return Experiment(settings, method, task, model.to(_device(settings, source)), clients, seed)


def check_settings(source: Source) -> tuple[RunSettings, Method | None, list[Problem]]:
    """Checks a configuration in itself, without looking at data or models.

    Returns:
        The settings, with defaults in place of sections that have problems; the method, if its section is
        sound; the problems.
    """
    settings, problems = validate(RunSettings, source)
    if settings is None:
        sound = _sound_sections(problems)
        rest = {
            key: value
            for key, value in source.values.items()
            if key in RunSettings.model_fields and sound(key)
        }
        settings = RunSettings.model_validate(rest)
    name = settings.method.get("name")
    if not isinstance(name, str) or name not in METHODS:
        allowed = ", ".join(METHODS)
        problems.append(source.problem("method.name", f"must be one of {allowed}, not {name!r}"))
        return settings, None, problems
    card = METHODS[name]
    method_settings, wrong = validate(
        card.Settings, Source({"method": settings.method}, source.origins), section="method"
    )
    problems += wrong
    if method_settings is None:
        return settings, None, problems
    resolved = settings.model_copy(update={"method": method_settings.model_dump()})
    return resolved, card(method_settings), problems


def read_documents(settings: DataSettings, seed: Seed) -> list[Document]:
    """Reads or generates the corpus a configuration names, with the mention types it asks for."""
    if settings.format == "synthetic":
        from fedstrata.data.synthetic import generate  # noqa: PLC0415 - its lexicons are not needed with real data

        corpus = settings.synthetic
        number = seed.root if corpus.seed is None else corpus.seed
        documents: Sequence[Document] = generate(seed=number, sites=corpus.sites, notes=corpus.notes)
    else:
        from fedstrata.data.readers import read  # noqa: PLC0415

        path = Path(str(settings.path)).expanduser()
        documents = read(path, settings.format, skip_unannotated=settings.unannotated == "skip")
    return list(select_types(documents, settings.types))


def _device(settings: RunSettings, source: Source) -> torch.device:
    """Returns the device to run on: the GPU if there is one, unless the settings say otherwise."""
    available = torch.cuda.is_available()
    name = ("cuda" if available else "cpu") if settings.device == "auto" else settings.device
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"torch sees {torch.cuda.device_count()} GPUs here"
        raise ConfigurationError(
            [source.problem("device", f"{name!r} is not available: {found}; cpu always is")]
        )
    return device


def divide(settings: RunSettings) -> dict[str, Split]:
    """Reads, splits by document, then partitions among clients."""
    seed = Seed(settings.seed)
    documents = read_documents(settings.data, seed)
    parts = split(documents, settings.data.split, seed.child("split"))
    return partition(parts, settings.partition, seed.child("partition"))


def _sound_sections(problems: Sequence[Problem]) -> Any:
    """Returns a test whether none of the named top-level sections has a problem."""
    broken = {problem.path.partition(".")[0] for problem in problems}
    return lambda *sections: not broken & set(sections)
