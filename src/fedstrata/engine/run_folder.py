"""Run directories: making one, and going on with one."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from fedstrata.core.errors import ConfigurationError, Problem, refused
from fedstrata.core.files import TEMPORARY, new_folder, private_folder, write_atomically
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source, differing, read_source
from fedstrata.core.settings.yaml import as_document, as_yaml
from fedstrata.core.task import Task
from fedstrata.data.fingerprints import fingerprints, new_key
from fedstrata.data.split import PARTS, Split
from fedstrata.engine.budgets import room_for
from fedstrata.engine.check import check_settings
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.run import EngineType, Run
from fedstrata.record.history import start_of
from fedstrata.record.log import Listener, read_events
from fedstrata.record.trackers import Trackers
from fedstrata.tasks.instruction.prompts import read_template

MAY_CHANGE_ON_RESUME = frozenset(
    {
        "name",
        "federation.rounds",
        "federation.min_clients",
        "federation.metric",
        "threads",
        "workers",
        "device",
        "report_to",
        "training.cache",
        "training.eval_batch_size",
        "training.cache_gigabytes",
        "method.aggregation.memory_gigabytes",
        "privacy.budget.path",
        "privacy.budget.epsilon",
    }
)
"""Settings a resumed run may change: they do not change the numbers of the rounds that were committed.

`federation.min_clients` decides whether a round goes on at all; those that are committed stay as they are.
"""

SETTINGS = "config.yaml"
"""The file, within a run's folder, of its settings; a folder with one holds a run."""

DOCUMENTS = "documents.json"
"""The file, within a run's folder, of the ids of each client's documents by split."""

HANDOVER = "nvflare"
"""The folder, within a run's, of what is handed over to another process that is to serve the run."""

INPUTS = "inputs"
"""The folder, within a run's, of documents and models that were given as objects."""

TOKENIZER = "tokenizer"
"""The folder, within a run's, of a tokenizer that the run has made."""


def open_run(source: Source, folder: Path | None, listen: Listener, *, resume: bool) -> Run[LocalEngine]:
    """Prepares an experiment and its run directory.

    Args:
        source: The configuration.
        folder: The run directory; `runs/NAME`, numbered if taken, when none.
        listen: Told of every event.
        resume: Whether the directory holds a run to go on with.

    Raises:
        ConfigurationError: The configuration is wrong, or the directory holds something already.
    """
    if not resume:
        require_free_folder(folder)
    built = folder / TOKENIZER if folder is not None and resume else None
    experiment = prepare(source, tokenizer_folder=built if built is not None and built.is_dir() else None)
    if not resume:
        room_for(experiment)  # before there is a folder; it is reserved when the run begins
    if folder is None:
        folder = free_folder(Path("runs"), experiment.settings.name)
    private_folder(folder, existing=True)
    if resume:
        _require_same_numbers(folder, source, experiment.settings)
    begin = partial(_write_beginning, experiment, folder, resume=resume)
    return _opened(experiment, folder, listen, LocalEngine, begin, resume=resume)


def _write_beginning(experiment: Experiment, folder: Path, *, resume: bool) -> None:
    """Writes what a run can be gone on with that is killed before it begins.

    The documents before the settings: a folder with settings alone is of a run that was served. What a run
    once said of its documents stays.
    """
    if not resume or not (folder / DOCUMENTS).exists():
        write_documents(experiment.clients, folder / DOCUMENTS)
    write_settings(experiment.settings, folder / SETTINGS)
    if experiment.settings.model.makes_tokenizer and not (folder / TOKENIZER).exists():
        # A resumed run must not build another one.
        with new_folder(folder / TOKENIZER, private=True) as unfinished:
            experiment.model.tokenizer.save_pretrained(unfinished)


def _opened(
    experiment: Experiment,
    folder: Path,
    listen: Listener,
    engine_of: Callable[[Experiment, Path, Listener], EngineType],
    begin: Callable[[], None],
    *,
    resume: bool,
) -> Run[EngineType]:
    """Returns a run whose directory has its beginnings: one to go on with has them once it is not refused."""
    if not resume:
        begin()
    run = Run(experiment, folder, with_trackers(experiment.settings, folder, listen), engine_of)
    if resume:
        run.load()
        begin()
    return run


def with_trackers(settings: RunSettings, folder: Path, listen: Listener) -> Listener:
    """Returns what tells the trackers that a run reports to of its events, as well as a listener."""
    if not settings.report_to:
        return listen
    return Trackers(settings.report_to, folder, settings.model_dump(mode="json"), listen)


def open_served(
    source: Source,
    experiment: Experiment,
    folder: Path | None,
    listen: Listener,
    engine_of: Callable[[Experiment, Path, Listener], EngineType],
    *,
    resume: bool,
) -> Run[EngineType]:
    """Does as `open_run` for a run that is served to clients in other processes.

    Args:
        source: The configuration, in which stays open what clients find in their documents.
        experiment: What the server prepared from it.
        folder: The run directory; `runs/NAME`, numbered if taken, when none.
        listen: Told of every event.
        engine_of: Returns the engine.
        resume: Whether the directory holds a run to go on with.

    Raises:
        ConfigurationError: The directory holds another run.
    """
    settings = check_settings(source).settings.model_copy(update={"threads": experiment.settings.threads})
    folder = folder or free_folder(Path("runs"), settings.name)
    private_folder(folder, existing=True)
    begin = partial(write_settings, settings, folder / SETTINGS)
    return _opened(experiment, folder, listen, engine_of, begin, resume=resume)


def write_documents(clients: Mapping[str, Split], path: Path) -> None:
    """Writes which documents are whose, and what for; keyed hashes of those that are trained on."""
    key = new_key()
    known = {
        client: {
            **{part: [document.id for document in getattr(own, part)] for part in PARTS},
            "trained_on": fingerprints(own.train, key),
        }
        for client, own in clients.items()
    }
    text = json.dumps(known, indent=0, ensure_ascii=False)
    write_atomically(path, [text.encode()])


def require_free_folder(
    folder: Path | None, *, named_by: str = "--out", way: str = "go on with --resume"
) -> None:
    """Refuses a run directory that holds something already, other than what a run has left that never began.

    Args:
        folder: The directory; none for one that is free.
        named_by: What the user named it with, for messages.
        way: What can be done where it holds a run.

    Raises:
        ConfigurationError: It does.
    """
    if folder is None or not folder.exists():
        return
    unbegun = (
        DOCUMENTS,
        HANDOVER,
        INPUTS,
        f".*{TEMPORARY}",
    )  # what is written before the settings, and what never was to its end
    if not folder.is_dir() or any(not any(map(path.match, unbegun)) for path in folder.iterdir()):
        if not has_begun(folder):
            way = "empty it first: there is no run in it to go on with"
        message = f"{folder} holds something already; name another folder, or {way}"
        raise refused(named_by, message, "exists")


def has_begun(folder: Path | None) -> bool:
    """Whether a directory holds a run that can be gone on with."""
    return folder is not None and (folder / SETTINGS).is_file()


def has_ended(folder: Path | None) -> bool:
    """Whether a directory holds a run that was scored at its end."""
    return folder is not None and (folder / "summary.json").is_file()


def resumable(
    folder: Path,
    file: Path | None,
    overrides: Sequence[str],
    *,
    may_change: frozenset[str] = MAY_CHANGE_ON_RESUME,
    named_by: str = "--out",
    command: str | None = None,
) -> Source:
    """Returns the configuration to go on with: the run's own, or a given one that agrees with it.

    Args:
        folder: The run directory.
        file: A configuration to take in place of the run's own.
        overrides: Settings that override it.
        may_change: The settings that may differ.
        named_by: What the user named the directory with, for messages.
        command: What is to go on with the run, which must have begun it; none if it only is looked at.

    Raises:
        ConfigurationError: The directory holds no such run, or a setting differs that may not.
    """
    stored = folder / SETTINGS
    if not stored.is_file():
        message = f"{folder} holds no run: there is no {SETTINGS} in it"
        raise refused(named_by, message, "not_found")
    if command is not None and (other := _other_way(folder, command)):
        raise refused(named_by, f"{folder} holds {other}", "wrong_command")
    _find_inputs(folder)
    source = read_source(file or stored, overrides)
    require_same_settings(folder, source, may_change=may_change)
    if source.values.get("threads") is None:  # sums depend on how many they were
        source.values["threads"] = read_source(stored, []).values.get("threads")
    return source


def _find_inputs(folder: Path) -> None:
    """Names anew where a run's directory has its documents and its model, once it has been moved."""
    stored, changed = read_source(folder / SETTINGS, []).values, False
    for section, name in (("data", "path"), ("model", "name"), ("model", "weights")):
        values = stored.get(section)
        kept = Path(str(values.get(name))) if isinstance(values, dict) else Path()
        here = folder.absolute() / INPUTS / kept.name
        if kept.is_absolute() and kept.parent.name == INPUTS and here.exists() and not kept.exists():
            stored[section][name], changed = str(here), True
    if changed:
        write_atomically(folder / SETTINGS, [as_document(stored)])


def _other_way(folder: Path, command: str) -> str:
    """Says what a directory holds that another command goes on with; empty if it is this one.

    A run that was stopped before its record could say so is known by its documents (`_write_beginning`).
    """
    begun = start_of(read_events(folder / "record.jsonl"))
    if begun and (client := begun.get("client")):
        what = f"what client {client!r} has kept of a run, which goes on where its server is"
        return f"{what}; here it can be used with: fedstrata predict, score --as, export, report"
    served = begun.get("id") is not None if begun else not (folder / DOCUMENTS).is_file()
    what, right = "a run of one process", "fedstrata run"
    if served:
        what, right = "a run whose clients were processes of their own", "fedstrata serve"
    return "" if right == command else f"{what}; go on with: {right} --resume --out {folder}"


def require_same_settings(
    folder: Path, source: Source, *, may_change: Collection[str] = MAY_CHANGE_ON_RESUME
) -> None:
    """Refuses a configuration that differs from a run's own where that would change committed rounds.

    What a task was left to find in its data may be left to it again: the data cannot change.

    Args:
        folder: The run directory.
        source: The configuration.
        may_change: The settings that may differ.

    Raises:
        ConfigurationError: It does, or one of the two is wrong in itself.
    """
    before, now = check_settings(read_source(folder / SETTINGS, [])), check_settings(source)
    if before.method is not None and before.method.validates:  # its rounds go by this score
        may_change = set(may_change) - {"federation.metric"}
    problems = [*before.problems, *now.problems]
    changed = {} if problems else differences(before.settings, now.settings)
    for path, (old, new) in list(changed.items()):
        left_open = path.startswith("task.") and new in (None, "auto", {})
        if left_open or _is_text_of(path, now.task, old, new):
            del changed[path]
    problems += _changes(source, changed, may_change)
    if problems:
        raise ConfigurationError(list(dict.fromkeys(problems)))


def _require_same_numbers(folder: Path, source: Source, settings: RunSettings) -> None:
    """Refuses what a configuration came to with its data, if it is not what the run came to."""
    before = check_settings(read_source(folder / SETTINGS, [])).settings
    if problems := _changes(source, differences(before, settings), MAY_CHANGE_ON_RESUME):
        raise ConfigurationError(problems)


def _changes(
    source: Source, changed: Mapping[str, tuple[Any, Any]], may_change: Collection[str]
) -> list[Problem]:
    """Returns what has changed and may not; the last of it says, once, what may."""
    not_allowed = {path: values for path, values in changed.items() if path not in may_change}
    problems = []
    for path, (old, new) in not_allowed.items():
        was = "another text" if path.startswith("task.template") else as_yaml(old)
        message = f"is {as_yaml(new)}, the run has {was}; it cannot change"
        if path == list(not_allowed)[-1]:
            message += f", unlike: {', '.join(sorted(may_change))}"
        problems.append(source.problem(path, message, "changed"))
    return problems


def _is_text_of(path: str, task: Task, text: Any, given: Any) -> bool:
    """Whether a setting is the path of a template whose text a run has."""
    if not path.startswith("task.template") or not isinstance(text, str) or not isinstance(given, str):
        return False
    return bool(task.template_field) and read_template(given, task.template_field, path) == text


def differences(one: RunSettings, other: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Returns the settings in which two configurations differ, by dotted path, with the value in each."""
    both = differing(one.model_dump(mode="json"), other.model_dump(mode="json"))
    return {path: (old, new) for path, old, new in both}


def free_folder(parent: Path, name: str) -> Path:
    """Returns the first of NAME, NAME-2, NAME-3 ... that is not taken."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(parent / each for each in names if not (parent / each).exists())


def write_settings(settings: RunSettings, path: Path) -> None:
    """Writes a configuration with every setting; the file appears complete or not at all."""
    write_atomically(path, [as_document(settings.model_dump(mode="json"))])
