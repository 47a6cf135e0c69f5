"""From a configuration to an experiment that can run; every problem is found before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fedstrata.core.errors import ConfigurationError, DataError, Problem, did_you_mean
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.data import CorpusSettings
from fedstrata.core.settings.model import ModelSettings, TrainedTokenizer
from fedstrata.core.settings.run import USUAL_METHOD, RunSettings
from fedstrata.core.settings.source import Source, validate
from fedstrata.core.settings.task import ExtractSettings, TaskSettings
from fedstrata.data.divide import divide
from fedstrata.data.partition import LABEL_OF
from fedstrata.data.split import Split
from fedstrata.engine.check import unfit_clients, without_examples, without_validation
from fedstrata.engine.model import check_model, load_model, refusals, with_adapter
from fedstrata.methods import METHODS
from fedstrata.models.load import read_tokenizer
from fedstrata.record.trackers import require_trackers
from fedstrata.tasks import TASKS
from fedstrata.train.processor import use_processor, warn_of_slow_bfloat16

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fedstrata.core.documents import Document
    from fedstrata.core.method import Method
    from fedstrata.core.task import Task
    from fedstrata.models.state import Model


Corpus = TypeVar("Corpus", bound=CorpusSettings)

_LEARNT = {
    "ner": "mentions (data.types)",
    "classify": "labels of documents (data.labels)",
    "lm": "the next token of a text",
    "cloze": "which answer follows a question (labels of documents)",
    "summarize": "the second text of a document",
}
"""What tasks learn that have no use for relations; those that read no mentions have none for these either."""


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
    """

    settings: RunSettings
    method: Method
    task: Task
    model: Model
    clients: dict[str, Split]
    seed: Seed
    server: tuple[Document, ...] = ()
    asked: TaskSettings | None = None

    @property
    def metric(self) -> str:
        """The score the run is judged by."""
        return self.settings.federation.metric or self.task.metric


def prepare(
    source: Source,
    *,
    tokenizer_folder: Path | None = None,
    without_of: Callable[[Method], Callable[[PreTrainedModel], None] | None] = lambda method: None,
    apart: bool = False,
) -> Experiment:
    """Checks a configuration and loads what it names.

    Args:
        source: The configuration.
        tokenizer_folder: Where the tokenizer lies that the run built from its texts; it is built if none.
        without_of: Returns what takes parts out of the model before its weights are read; none for nothing.
        apart: Whether clients are processes of their own: these data then need not be those of all of them.

    Raises:
        ConfigurationError: With every problem that could be found; sections that are wrong in themselves do
            not keep the others from being checked against the data and the model.
    """
    settings, method, problems = check_settings(source)
    sound = _sound_sections(problems)
    clients: dict[str, Split] = {}
    server: tuple[Document, ...] = ()
    task: Task | None = None
    problems += source.located(machine_problems(settings))
    if sound("data", "partition", "seed", "task"):
        with _collecting(problems, source):
            divided = divide(settings, TASKS[settings.task.name], apart=apart)
            clients = divided.clients
            if not apart:
                problems += source.located(unfit_clients(settings, method, clients))
            problems += source.located(without_validation(method, clients))
            task = TASKS[settings.task.name].from_documents(settings.task, clients)
            if isinstance(task.settings, ExtractSettings):
                divided = divided.with_mentions_only(task.settings.mentions_only)
                clients = divided.clients
            known = map(task.known, divided.server)
            server = tuple(document for document in known if task.scorable(document))
            if method is not None:
                facts = Facts(server_documents=len(server), devices=settings.devices)
                problems += source.located(method.problems(facts))
    if sound("task", "federation"):
        problems += source.located(refusals(lambda: check_metric(settings, task)))
    if sound("model", "task"):
        problems += source.located(refusals(lambda: check_model(settings, method)))
    if problems or method is None or task is None:
        raise ConfigurationError(problems)
    seed = Seed(settings.seed)
    use_processor(settings.threads)
    asked, settings = settings.task, settings.model_copy(update={"task": task.settings})
    with _collecting(problems, source):
        tokenizer = _trained_tokenizer(settings, clients, tokenizer_folder)
        model = load_model(settings, task, tokenizer, without=without_of(method))
        problems += source.located(without_examples(method, task, server, model.tokenizer))
        if not problems:
            model = model.to(device_of(settings))
            return Experiment(settings, method, task, model, clients, seed, server, asked)
    raise ConfigurationError(problems)


def _trained_tokenizer(settings: RunSettings, clients: Mapping[str, Split], folder: Path | None) -> Any:
    """Returns the tokenizer that is built from all clients' training texts; none where it is not to be."""
    asked = settings.model.tokenizer
    if not isinstance(asked, TrainedTokenizer):
        return None
    if folder is not None:
        return read_tokenizer(ModelSettings(name=str(folder)))
    from fedstrata.models.train_tokenizer import train_tokenizer  # noqa: PLC0415 - seldom needed

    texts = (text for own in clients.values() for item in own.train for text in item.texts)
    return train_tokenizer(asked, texts)


@contextmanager
def _collecting(problems: list[Problem], source: Source) -> Iterator[None]:
    """Adds what goes wrong within the block to the problems, each with the place its value was set."""
    try:
        yield
    except ConfigurationError as error:
        problems += source.located(error.problems)
    except DataError as error:
        problems += [source.problem("data.path", str(each)) for each in error.each]


def machine_problems(settings: RunSettings) -> list[Problem]:
    """Returns the problems that the device is not there and that trackers are not installed."""
    return refusals(lambda: device_of(settings), lambda: require_trackers(settings.report_to))


def check_metric(settings: RunSettings, task: Task | None) -> None:
    """Checks the name of the score a run is judged by against those the task gives.

    Args:
        settings: The run's settings.
        task: The task; none where the data that would tell its labels is not sound.
    """
    metric = settings.federation.metric
    names: Any = TASKS[settings.task.name].metrics if task is None else task.metric_names
    if metric is None or not isinstance(names, tuple):  # a class may not know without its data
        return
    if metric in names or (task is None and "/" in metric):
        return
    hint = did_you_mean(metric, names, before="; ") or "."
    whole = [name for name in names if "/" not in name]
    singles = len(names) - len(whole)
    more = f" and {singles} scores of single labels, such as {names[-1]}" if singles else ""
    message = f"{metric!r} is no score of this task{hint} It gives: {', '.join(whole)}{more}"
    raise ConfigurationError([Problem("federation.metric", message)])


def check_settings(source: Source) -> tuple[RunSettings, Method | None, list[Problem]]:
    """Checks a configuration in itself, without looking at data or models.

    Returns:
        The settings, with defaults in place of sections that have problems; the method, if its section is
        sound; the problems.
    """
    settings, problems = validate(RunSettings, source)
    problems = [_with_verb(problem) for problem in problems]
    sound = _sound_sections(problems)
    if settings is None:
        rest = {
            key: value
            for key, value in source.values.items()
            if key in RunSettings.model_fields and sound(key)
        }
        settings = RunSettings.model_validate(rest)
    settings = _with_absolute_paths(settings)
    if sound("data", "task", "partition"):
        problems += source.located(_idle_choices(settings))
    name = settings.method.get("name", USUAL_METHOD)
    if not isinstance(name, str) or name not in METHODS:
        allowed = ", ".join(METHODS)
        problems.append(source.problem("method.name", f"must be one of {allowed}, not {name!r}"))
        return settings, None, problems
    method, wrong = validate(
        METHODS[name], Source({"method": settings.method}, source.origins), section="method"
    )
    problems += [_with_hint(problem, name) for problem in wrong]
    if method is None:
        return settings, None, problems
    problems += source.located(method.problems(Facts(training=settings.training)))
    resolved = settings.model_copy(update={"method": method.model_dump()})
    return with_adapter(resolved, method), method, problems


def _idle_choices(settings: RunSettings) -> list[Problem]:
    """Returns a problem for each choice of annotations that the task does not learn and nothing uses."""
    data, name = settings.data, settings.task.name
    idle: dict[str, object] = {}
    used = "labels" in TASKS[name].gives or settings.partition.by in LABEL_OF
    if not used and data.labels.without_labels == "keep":  # what is dropped depends on those that are kept
        chosen = {"keep": data.labels.keep, "top": data.labels.top}
        idle = {f"labels.{key}": value for key, value in chosen.items()}
    if "relations" not in TASKS[name].gives:
        idle |= {"relations": data.relations, "modifiers": data.modifiers}
    if not TASKS[name].reads_spans:
        idle["types"] = data.types
    what = dict.fromkeys(idle, "labels")
    what |= {"relations": "relations", "modifiers": "relations", "types": "mention types"}
    return [
        Problem(
            f"data.{key}",
            f"{what[key]} have no meaning with task {name}, which learns {_LEARNT[name]}; leave it null",
        )
        for key, value in idle.items()
        if value is not None
    ]


def _with_absolute_paths(settings: RunSettings) -> RunSettings:
    """Makes paths independent of where the command was given, so that a run can be resumed from elsewhere."""
    data, model = settings.data, settings.model
    external = {name: _with_absolute_path(corpus) for name, corpus in data.external.items()}
    data = _with_absolute_path(data).model_copy(update={"external": external})
    for key in ("name", "tokenizer"):
        place = getattr(model, key)
        if isinstance(place, str) and Path(place).expanduser().is_dir():
            model = model.model_copy(update={key: str(Path(place).expanduser().absolute())})
    return settings.model_copy(update={"data": data, "model": model})


def _with_absolute_path(corpus: Corpus) -> Corpus:
    """Makes the path of a corpus absolute; what is no file or folder may be an id of the hub, which stays."""
    if corpus.path is None:
        return corpus
    place = Path(corpus.path).expanduser()
    if corpus.format == "datasets" and not place.exists():
        return corpus
    return corpus.model_copy(update={"path": str(place.absolute())})


def _with_verb(problem: Problem) -> Problem:
    """Says which verb a file of several runs is for."""
    if problem.path != "sweep":
        return problem
    return Problem("sweep", "describes several runs; give this file to fedstrata compare", problem.origin)


def _with_hint(problem: Problem, method: str) -> Problem:
    """Says whose a setting is that is not this method's, and how to leave another's settings behind."""
    if not problem.message.startswith("unknown key"):
        return problem
    key = problem.path.removeprefix("method.")
    owners = [name for name, other in METHODS.items() if key in other.model_fields]
    others = f"; a setting of {', '.join(owners)}" if owners else ""
    hint = f"{others}; to change the method as a whole: 'method={{name: {method}}}'"
    return Problem(problem.path, problem.message + hint, problem.origin)


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
            raise ConfigurationError([Problem("device", message)])
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
        torch.use_deterministic_algorithms(True, warn_only=True)
    elif settings.training.precision == "bfloat16":
        warn_of_slow_bfloat16()
    return device


def _sound_sections(problems: Sequence[Problem]) -> Any:
    """Returns a test whether none of the named top-level sections has a problem."""
    broken = {problem.path.partition(".")[0] for problem in problems}
    return lambda *sections: not broken & set(sections)
