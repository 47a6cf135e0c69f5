"""Settings as keyword arguments: every section by its name, as an object or as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from pydantic import BaseModel

from fedstrata.core.errors import ConfigurationError, Problem, did_you_mean, refuse
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source, assign, flatten, read_source

if TYPE_CHECKING:
    from fedstrata.core.method import Method
    from fedstrata.core.settings.adapter import BottleneckSettings, LoraSettings, PrefixSettings
    from fedstrata.core.settings.data import DataSettings
    from fedstrata.core.settings.devices import DeviceSettings
    from fedstrata.core.settings.federation import FederationSettings
    from fedstrata.core.settings.model import ModelSettings
    from fedstrata.core.settings.partition import PartitionSettings
    from fedstrata.core.settings.privacy import PrivacySettings
    from fedstrata.core.settings.training import TrainingSettings
    from fedstrata.core.task import Task

Config: TypeAlias = "str | Path | Mapping[str, Any] | None"
"""A configuration: a YAML file, nested settings, or none for the settings' own defaults."""
OnEvent: TypeAlias = Callable[[str, Mapping[str, Any]], object]
"""Told of every event of a run as it happens: its kind, and the facts that the record has of it."""


class Options(TypedDict, total=False):
    """The settings of a run.

    An object or a mapping stands for a whole section. `settings` sets single values by dotted path, after all
    others: `{"training.epochs": 2}`.

    Attributes:
        method: The federated method; a bare word is its name.
        task: What is learnt; a bare word is its name.
        model: What is fine-tuned; a bare word or a path is its name. Or a loaded model, which is kept in the
            run directory, or a factory `(kind, labels) -> (module, tokenizer)`.
        tokenizer: That of a loaded model.
        data: A section, or the path of documents; documents, a pandas frame or a `datasets.Dataset`, of all
            sites or by site. Objects are kept in the run directory, for its owner alone.
        columns: What the columns of tables hold, as in the section `data.columns`.
        partition: How documents are divided into clients.
        adapter: What trains beside a frozen model; a bare word is its kind. Or a configuration of PEFT's.
        training: How a client trains.
        federation: Rounds, who takes part in them, and how they are scored.
        privacy: Differential privacy and secure aggregation.
        devices: Emulated devices.
        rounds: `federation.rounds`.
        seed: The number that all randomness comes from.
        name: What the run is called.
        workers: Processes that clients are computed in.
        device: Where a model is computed.
        threads: Threads of each process.
        report_to: Trackers that are told of the run.
        settings: Single values by dotted path.
    """

    method: Method | str | Mapping[str, Any]
    task: Task | str | Mapping[str, Any]
    model: ModelSettings | str | Path | Mapping[str, Any] | Any
    tokenizer: Any
    data: DataSettings | str | Path | Mapping[str, Any] | Any
    columns: Mapping[str, Any]
    partition: PartitionSettings | Mapping[str, Any]
    adapter: LoraSettings | BottleneckSettings | PrefixSettings | str | Mapping[str, Any] | Any
    training: TrainingSettings | Mapping[str, Any]
    federation: FederationSettings | Mapping[str, Any]
    privacy: PrivacySettings | Mapping[str, Any]
    devices: DeviceSettings | Mapping[str, Any]
    rounds: int
    seed: int
    name: str
    workers: int | Literal["auto", "ray"]
    device: str
    threads: int
    report_to: Sequence[str]
    settings: Mapping[str, Any]


SHORT = {"rounds": "federation.rounds"}
"""Arguments that stand for one setting within a section."""
OBJECTS = ("data", "columns", "model", "tokenizer")
"""Arguments that may be objects which a configuration cannot hold (`api.inputs`)."""
_NAMED_BY = {"method": "name", "task": "name", "model": "name", "adapter": "kind"}
"""The key of a section that a bare word stands for."""


def source_of(config: Config, options: Mapping[str, Any]) -> Source:
    """Returns the configuration that a file or mapping and keyword arguments describe.

    Args:
        config: What the arguments are laid over.
        options: The arguments, of `Options`, but for those that are objects (`api.inputs`).

    Raises:
        ConfigurationError: The file cannot be read, or an argument is unknown; all such problems at once.
        TypeError: The configuration is neither a file nor a mapping.
    """
    if isinstance(config, str | Path):
        source = read_source(Path(config), [])
    elif config is None or isinstance(config, Mapping):
        values = _plain(config or {})
        source = Source(values, {path: "the mapping given" for path, _ in flatten(values)})
    else:
        raise TypeError(f"a configuration is a file or a mapping, not {type(config).__name__}")
    lay(source, options)
    return source


def lay(source: Source, options: Mapping[str, Any]) -> None:
    """Lays keyword arguments over a configuration.

    Raises:
        ConfigurationError: An argument is unknown, or has no place; all such problems at once.
    """
    _refuse_unknown(options)
    single = options.get("settings") or {}
    arguments = {SHORT.get(name, name): name for name, value in options.items() if value is not None}
    problems = [
        Problem(path, f"is given twice: as the argument {arguments[path]} and in settings")
        for path in single
        if path in arguments
    ]
    for name, value in [*options.items(), *single.items()]:
        if name == "settings" or value is None:
            continue
        path = SHORT.get(name, name)
        origin = f"the argument {name}" if name not in single else "the argument settings"
        if (problem := assign(source, path, section_of(name, value), origin)) is not None:
            problems.append(problem)
    refuse(problems)


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = Options.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        hints = (did_you_mean(name, known, before="; ") for name in unknown)
        way = "single settings go into settings={'section.name': value}"
        raise ConfigurationError(
            [Problem(name, f"is no argument{hint}; {way}") for name, hint in zip(unknown, hints, strict=True)]
        )


def section_of(name: str, value: Any) -> Any:
    """Returns a section as plain values."""
    if name in _NAMED_BY and isinstance(value, str | Path):
        return {_NAMED_BY[name]: str(value)}
    if isinstance(value, type) and issubclass(value, BaseModel):
        message = f"is the class {value.__name__}; give an object of it: {value.__name__}(...)"
        raise ConfigurationError([Problem(name, message)])
    if isinstance(value, BaseModel):
        return _described(name, value)
    if name == "adapter" and hasattr(value, "peft_type"):
        from fedstrata.adapters import section_of as section_of_adapter  # noqa: PLC0415 - heavy

        return section_of_adapter(value)
    return _plain(value)


def _described(name: str, value: BaseModel) -> dict[str, Any]:
    """Returns the section of an object: of a method or a task with the name it is found by."""
    from fedstrata.core.method import Method  # noqa: PLC0415 - heavy
    from fedstrata.core.task import Task  # noqa: PLC0415

    if isinstance(value, Method):
        from fedstrata.methods import METHODS  # noqa: PLC0415

        return METHODS.section_of(value)
    if isinstance(value, Task):
        from fedstrata.tasks import TASKS  # noqa: PLC0415

        return TASKS.section_of(value)
    if name not in RunSettings.model_fields:
        message = f"must be a plain value, not {type(value).__name__}"
        raise ConfigurationError([Problem(name, message)])
    return value.model_dump(mode="json")


def _plain(value: Any) -> Any:
    """Returns a value as a configuration holds it: lists for tuples, texts for paths, objects described."""
    if isinstance(value, Mapping):
        return {str(key): section_of(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return str(value) if isinstance(value, Path) else value
