"""A finished run, opened again to use what was learnt: its settings, its task and its model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedstrata.adapters.attach import saved_adapter
from fedstrata.client.store import client_folder
from fedstrata.core.errors import DataError, refused
from fedstrata.core.files import hash_of
from fedstrata.core.method import Method
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings, TrainedTokenizer
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.task import Task
from fedstrata.engine.check import Checked, check_settings, device_of
from fedstrata.engine.checkpoint import Checkpoints
from fedstrata.engine.model import load_model
from fedstrata.engine.remote.agreeing import Weights
from fedstrata.engine.run_folder import resumable
from fedstrata.models.given import names_factory
from fedstrata.models.load import load, read_config, read_tokenizer
from fedstrata.models.plain import PlainConfig
from fedstrata.models.state import Model
from fedstrata.record.history import start_of, trained_clients
from fedstrata.record.log import committed_rounds, read_events
from fedstrata.record.summary import summarise
from fedstrata.tasks import task_of
from fedstrata.train.processor import use_processor

ADAPTER = "adapter_config.json"
"""The file by which PEFT knows the folder of an adapter."""

MAY_CHANGE_TO_USE = frozenset(
    {"device", "threads", "task.decoding", "training.eval_batch_size", "training.precision"}
)
"""Settings that a use of the result may choose anew: they do not change what the model is."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished run learnt.

    Attributes:
        folder: The run directory.
        settings: The run's settings, with those chosen anew.
        method: The federated method.
        task: The task, which knows its labels.
        model: The trained model, on the device to use.
        client: Whose model it is; none where all clients share one.
        start: The facts of the record's `run` event.
        summary: The summary of the run.
    """

    folder: Path
    settings: RunSettings
    method: Method
    task: Task
    model: Model
    client: str | None
    start: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def served(self) -> bool:
        """Whether clients were processes of their own, of whose documents the run's settings say nothing."""
        return self.start.get("id") is not None

    @property
    def scores(self) -> Mapping[str, float]:
        """The scores of this model on the run's test split; empty where that had no documents."""
        metrics = self.summary["metrics"]
        own = metrics["global"] if self.client is None else metrics["clients"].get(self.client)
        return own or {}


def open_result(
    folder: Path, overrides: Sequence[str] = (), *, client: str | None = None, dequantized: bool = False
) -> Result:
    """Opens what a finished run learnt.

    Args:
        folder: The run directory.
        overrides: `key.path=value`, for settings in `MAY_CHANGE_TO_USE`.
        client: Whose model to open, where every client has its own.
        dequantized: Whether weights that the run had in 4 bits are loaded as they are in their file, so that
            an adapter can be merged into them.

    Raises:
        ConfigurationError: The directory holds no finished run, or the client or an override does not fit it.
    """
    checked = check_settings(resumable(folder, None, overrides, may_change=MAY_CHANGE_TO_USE, named_by="RUN"))
    method, settings = checked.require_sound(), checked.settings
    events = _finished(folder)
    start = start_of(events) or {}
    trained = trained_clients(start)  # others were held out
    device = device_of(settings)
    use_processor(settings.threads)
    unpacked = dequantized and settings.model.quantization is not None
    if unpacked:
        as_in_file = settings.model.model_copy(update={"quantization": None})
        settings = settings.model_copy(update={"model": as_in_file})
    if _is_in_parts(start):
        settings, task = _served_task(settings, start)
        began_with = {} if unpacked else start["ends"]
        model = _assembled(folder, settings, method, task, len(committed_rounds(events)), began_with)
    else:
        if method.personal and start.get("id") is not None and not (folder / "model").is_dir():
            message = (
                "every client has a model of its own, and keeps it: in the folder that it named at the end"
            )
            raise refused("RUN", message, "not_found")
        saved = _model_folder(folder, method, client, trained)
        _require_as_saved(folder, saved, events)
        task, model = _load(saved, replace(checked, settings=settings))
    return Result(folder, settings, method, task, model.to(device), client, start, summarise(events))


def open_task(folder: Path, named_by: str) -> tuple[RunSettings, Task]:
    """Returns the settings of a finished run and the task it was trained on, without loading its model.

    Args:
        folder: The run directory.
        named_by: What the user named it with, for messages.

    Raises:
        ConfigurationError: The directory holds no finished run.
    """
    checked = check_settings(resumable(folder, None, (), named_by=named_by))
    method, settings = checked.require_sound(), checked.settings
    start = start_of(_finished(folder)) or {}
    if _is_in_parts(start):
        return _served_task(settings, start)
    trained = trained_clients(start)
    client = trained[0] if method.personal else None  # all have the same classes
    return settings, _task_of(_model_folder(folder, method, client, trained), checked)[0]


def _finished(folder: Path) -> list[dict[str, Any]]:
    """Returns the record of a run whose model is that of its last round.

    A checkpoint is no substitute: its scores on the test split are not known, and a run can be ended at
    the round it has reached, which scores and saves it.
    """
    events = read_events(folder / "record.jsonl")
    committed = len(committed_rounds(events))
    kinds = [event["event"] for event in events if event["event"] in ("round", "final")]
    if kinds and kinds[-1] == "final":
        return events
    command = _way_on(folder, start_of(events) or {})
    message = (
        f"the run in {folder} is not finished, and has no model of its last round; finish it with: {command}"
    )
    if committed:
        message += f", or end it after round {committed} with: {command} federation.rounds={committed}"
    raise refused("RUN", message, "not_finished")


def _way_on(folder: Path, start: Mapping[str, Any]) -> str:
    """Returns what goes on with a run: the command that began it, and of what a client keeps the server's."""
    if "client" in start:
        return "fedstrata join, when its server goes on with: fedstrata serve --resume"
    verb = "serve" if start.get("id") is not None else "run"
    return f"fedstrata {verb} --resume --out {folder}"


def _model_folder(folder: Path, method: Method, client: str | None, clients: Sequence[str]) -> Path:
    """Returns where the model to open was saved."""
    names = ", ".join(clients)
    own = folder / "model"  # where a client of a served run has kept it there is no other
    if not method.personal or (own.is_dir() and client in {None, *clients}):
        if client is None or method.personal:
            return own
        message = f"must be left out: with {method.name} all clients share one model, not {client!r}"
        raise refused("--client", message, "no_effect")
    if client is None:
        message = f"must be set: with {method.name} every client has a model of its own; one of: {names}"
        raise refused("--client", message, "missing")
    if client not in clients:
        raise refused("--client", f"must be one of {names}, not {client!r}", "unknown_name")
    return client_folder(folder, client) / "model"


def _require_as_saved(folder: Path, saved: Path, events: Sequence[Mapping[str, Any]]) -> None:
    """Refuses weights that are not those that a run saved; of older runs no hashes are known."""
    final = [event for event in events if event["event"] == "final"][-1]
    for name, written in final.get("saved", {}).items():
        path = folder / name
        if path.parent == saved and path.is_file() and hash_of(path) != written:
            again = f"it is saved again by: {_way_on(folder, start_of(events) or {})}"
            raise DataError(
                path, f"is not what the run saved, but damaged or changed; {again}", code="damaged"
            )


def _task_of(saved: Path, checked: Checked) -> tuple[Task, ModelSettings, tuple[str, ...]]:
    """Makes the task that a saved model was trained on; returns with it the model's settings and classes."""
    if not saved.is_dir():
        raise DataError(saved, "no such folder", expected="the model that the run saved", code="not_found")
    asked = checked.settings.model
    stored = ModelSettings(name=str(saved.absolute()), attention=asked.attention, blocks=asked.blocks)
    names = read_config(stored).id2label or {}
    labels = tuple(names[index] for index in sorted(names))
    return checked.task.restored(labels), stored, labels


def _is_in_parts(start: Mapping[str, Any]) -> bool:
    """Whether no side of the run had a whole model that it could save."""
    return "ends" in start


def _served_task(settings: RunSettings, start: Mapping[str, Any]) -> tuple[RunSettings, Task]:
    """Makes the task of a served run; returns it with the settings, in which nothing is `auto` any more."""
    section = start["task_settings"]
    return settings.model_copy(update={"task": section}), task_of(section).restored(start["labels"])


def _assembled(
    folder: Path, settings: RunSettings, method: Method, task: Task, committed: int, began_with: Weights
) -> Model:
    """Puts the model of a served run together: the one it began with, and what was learnt, of all its parts.

    Args:
        folder: The run directory.
        settings: The run's settings.
        method: The federated method.
        task: The task it was trained on.
        committed: How many rounds it has.
        began_with: Hashes of the weights that the clients began with; none where they had them in 4 bits,
            and here they are as in their file.

    Raises:
        ConfigurationError: A part of what was learnt is not here, or not the model that the run began with.
    """
    if method.personal:
        message = "its clients keep the ends of the model (average_ends: never), and no side has all of it"
        raise refused("RUN", f"{message}; texts come from: fedstrata split answer {folder}", "not_supported")
    if isinstance(settings.model.tokenizer, TrainedTokenizer):
        message = "was built from the texts of the server's data; no file holds it"
        raise refused("model.tokenizer", message, "not_found")
    model = load_model(settings, task, method, None)
    number, state = Checkpoints(folder / "checkpoints").load(committed)
    if number != committed:  # its scores are those of the last round
        raise DataError(
            folder / "checkpoints", f"that of round {committed} cannot be read", code="unreadable"
        )
    learnt = state.tensors
    if lacking := [name for name in model.layout.all if name not in learnt]:
        message = f"nothing was learnt of {lacking[0]}: no client left it to the server"
        raise refused("RUN", message, "missing")
    own = model.hashes(began_with.keys() - learnt.keys())
    if changed := sorted(name for name, digest in own.items() if digest != began_with[name]):
        message = (
            f"{settings.model.name!r} is no longer the model that the run began with: {len(changed)} of its "
            f"weights are not the same, {changed[0]} for one"
        )
        raise refused("model.name", message, "changed")
    model.load({name: learnt[name] for name in model.layout.all})
    return model


def _load(saved: Path, checked: Checked) -> tuple[Task, Model]:
    """Loads a saved model, and makes the task it was trained on."""
    settings, method = checked.settings, checked.require_sound()
    task, stored, labels = _task_of(saved, checked)
    if settings.adapter is not None and (saved / ADAPTER).is_file():  # else it was merged in the rounds
        model = load_model(settings, task, method, read_tokenizer(stored))
        model.load(saved_adapter(model, saved))
        return task, model
    if names_factory(settings.model.name) and isinstance(read_config(stored), PlainConfig):
        stored = settings.model.model_copy(update={"weights": stored.name})
    model = load(stored, kind=task.kind, labels=labels, seed=Seed(settings.seed))
    if model.new_parameters:
        raise DataError(saved, f"its weights lack {', '.join(model.new_parameters)}", code="wrong_weights")
    return task, model
