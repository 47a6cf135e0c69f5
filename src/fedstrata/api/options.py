"""Settings as keyword arguments: every section by its name, as an object or as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from pydantic import BaseModel

from fedstrata.core.errors import ConfigurationError, Problem, did_you_mean, refuse, refused
from fedstrata.core.settings.demo import read_demo, without_demo_notes
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source, assign, flatten, read_source, variants

if TYPE_CHECKING:
    from fedstrata.core.method import Method
    from fedstrata.core.settings.adapter import BottleneckSettings, LoraSettings, PrefixSettings
    from fedstrata.core.settings.data import DataSettings
    from fedstrata.core.settings.devices import DeviceSettings
    from fedstrata.core.settings.federation import FederationSettings
    from fedstrata.core.settings.model import ModelSettings
    from fedstrata.core.settings.partition import PartitionSettings
    from fedstrata.core.settings.privacy import PrivacySettings
    from fedstrata.core.settings.report import ReportSettings
    from fedstrata.core.settings.training import TrainingSettings
    from fedstrata.core.task import Task

Config: TypeAlias = "str | Path | Mapping[str, Any] | RunSettings | None"
"""A configuration: a YAML file, nested settings, or none for the demo's."""
OnEvent: TypeAlias = Callable[[str, Mapping[str, Any]], object]
"""Told of every event of a run as it happens: its kind, and the facts that the record has of it."""


class Options(TypedDict, total=False):
    """The settings of a run.

    An object or a mapping stands for a whole section. `settings` sets single values by dotted path, after all
    others: `{"training.epochs": 2}`. None is the `null` of YAML: `{"training.clip_norm": None}` clips no
    gradients. An argument that is left out changes nothing.

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
        report: What the record and the report say of the data.
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
    adapter: LoraSettings | BottleneckSettings | PrefixSettings | str | Mapping[str, Any] | Any | None
    training: TrainingSettings | Mapping[str, Any]
    federation: FederationSettings | Mapping[str, Any]
    privacy: PrivacySettings | Mapping[str, Any]
    devices: DeviceSettings | Mapping[str, Any] | None
    rounds: int
    seed: int
    name: str
    workers: int | Literal["auto", "ray"]
    device: str
    threads: int | None
    report: ReportSettings | Mapping[str, Any]
    report_to: Sequence[str]
    settings: Mapping[str, Any]


SHORT = {"rounds": "federation.rounds", "columns": "data.columns", "tokenizer": "model.tokenizer"}
"""Arguments that stand for one setting within a section."""
OBJECTS = ("data", "columns", "model", "tokenizer")
"""Arguments that may be objects which a configuration cannot hold (`api.inputs`); it can hold their null."""
_NAMED_BY = {"method": "name", "task": "name", "model": "name", "adapter": "kind"}
"""The key of a section that a bare word stands for."""


def source_of(config: Config, options: Mapping[str, Any]) -> Source:
    """Returns the configuration that a file or mapping and keyword arguments describe.

    Args:
        config: What the arguments are laid over; the demo's configuration if none, as on the command line.
        options: The arguments, of `Options`; see `lay`.

    Raises:
        ConfigurationError: The file cannot be read, or an argument is unknown; all such problems at once.
        TypeError: The configuration is neither a file nor a mapping.
    """
    if isinstance(config, str | Path):
        source = read_source(Path(config), [])
    elif config is None:
        source = read_demo()
    elif isinstance(config, Mapping | RunSettings):
        values = config.model_dump(mode="json") if isinstance(config, RunSettings) else _plain("", config)
        source = Source(values, {path: "the mapping given" for path, _ in flatten(values)})
    else:
        raise TypeError(f"a configuration is a file or a mapping, not {type(config).__name__}")
    lay(source, options)
    if config is None:
        return without_demo_notes(source, own_data=options.get("data") is not None)
    return source


def lay(source: Source, options: Mapping[str, Any]) -> None:
    """Lays keyword arguments over a configuration, but for those that are objects (`api.inputs`).

    Raises:
        ConfigurationError: An argument is unknown, or has no place; all such problems at once.
    """
    _refuse_unknown(options)
    single = _single(options.get("settings"))
    arguments = {SHORT.get(name, name): name for name in options}
    problems = [
        Problem(path, f"is given twice: as the argument {arguments[path]} and in settings", code="duplicate")
        for path in single
        if path in arguments
    ]
    given = {name: value for name, value in options.items() if name not in OBJECTS or value is None}
    given.pop("settings", None)
    for name, value in [*given.items(), *single.items()]:
        path = SHORT.get(name, name)
        origin = f"the argument {name}" if name not in single else "the argument settings"
        try:
            problem = assign(source, path, section_of(name, value), origin)
        except ConfigurationError as error:
            problems += error.problems
        else:
            problems += [problem] if problem else []
    refuse(problems)


def _single(settings: Any) -> Mapping[str, Any]:
    """Returns the argument `settings`.

    Raises:
        ConfigurationError: It is no mapping of paths.
    """
    if settings is None:
        return {}
    if not isinstance(settings, Mapping) or not all(isinstance(path, str) for path in settings):
        message = "must be a mapping of dotted paths to values, {'training.epochs': 2}"
        raise refused("settings", f"{message}, not {type(settings).__name__}", "wrong_type")
    return settings


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = Options.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        hints = (did_you_mean(name, known, before="; ") for name in unknown)
        way = "single settings go into settings={'section.name': value}"
        raise ConfigurationError(
            [
                Problem(name, f"is no argument{hint}; {way}", code="unknown_name")
                for name, hint in zip(unknown, hints, strict=True)
            ]
        )


def section_of(name: str, value: Any) -> Any:
    """Returns a section as plain values."""
    if name in _NAMED_BY and isinstance(value, str | Path):
        return {_NAMED_BY[name]: str(value)}
    if isinstance(value, type) and issubclass(value, BaseModel):
        message = f"is the class {value.__name__}; give an object of it: {value.__name__}(...)"
        raise refused(name, message, "wrong_type")
    if isinstance(value, BaseModel):
        return _described(name, value)
    if name == "adapter" and hasattr(value, "peft_type"):
        from fedstrata.adapters import section_of as section_of_adapter  # noqa: PLC0415 - heavy

        return section_of_adapter(value)
    return _plain(name, value)


def _described(name: str, value: BaseModel) -> Any:
    """Returns the section of an object: of a method, a task or a metric with the name it is found by.

    Raises:
        ConfigurationError: It is the object of another section, or of an argument that is none.
    """
    from fedstrata.core.method import Method  # noqa: PLC0415 - heavy
    from fedstrata.core.metric import METRICS, Metric  # noqa: PLC0415
    from fedstrata.core.task import Task  # noqa: PLC0415

    kinds = {"method": (Method,), "task": (Task,)}.get(name) or variants(RunSettings.model_fields.get(name))
    if name in Options.__annotations__ and not isinstance(value, kinds):
        allowed = " or ".join(["a plain value", *(f"fedstrata's {kind.__name__}" for kind in kinds)])
        raise refused(name, f"must be {allowed}, not {type(value).__name__}", "wrong_type")
    if isinstance(value, Method):
        from fedstrata.methods import METHODS  # noqa: PLC0415

        return METHODS.section_of(value)
    if isinstance(value, Task):
        from fedstrata.tasks import TASKS  # noqa: PLC0415

        return TASKS.section_of(value)
    return METRICS.section_of(value) if isinstance(value, Metric) else value.model_dump(mode="json")


def _plain(name: str, value: Any) -> Any:
    """Returns a value as a configuration holds it: lists for tuples, texts for paths, objects described.

    Raises:
        ConfigurationError: No configuration can hold it.
    """
    if isinstance(value, Mapping):
        return {str(key): section_of(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [section_of("", inner) for inner in value]
    if type(value).__module__ == "numpy":
        return _plain(name, value.tolist())
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Path):
        return str(value)
    raise refused(name, f"must be a plain value, not {type(value).__name__}", "wrong_type")
