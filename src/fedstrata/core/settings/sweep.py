"""Several runs in one file: the `sweep` section, and the rows it describes.

A row is a whole configuration of its own: the file's settings, the row's over them, one choice of the grid,
and the command line's, which win. Every value keeps the place it was set.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from fedstrata.core.errors import ConfigurationError, Problem, SettingError, refuse, refused
from fedstrata.core.settings.base import Settings
from fedstrata.core.settings.source import (
    COMMAND_LINE,
    Source,
    apply_override,
    assign,
    flatten,
    read_source,
    validate,
)

SECTION = "sweep"
OWNERS = frozenset({"name", "mechanism"})
"""Settings to which the others of their section belong: where a row has one, it has the section anew."""
LONGEST_NAME = 120
"""Characters of a row's name, which also names a folder."""


def _distinct(values: list[Any]) -> list[Any]:
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise SettingError(f"must name each once; {', '.join(map(repr, twice))} is there again", "duplicate")
    return values


class TuneSettings(Settings):
    """One setting that is chosen for every row alike, by the validation split."""

    setting: str = Field(description="Dotted path, for example `training.learning_rate`.")
    values: list[bool | int | float | str]
    seed: int | None = Field(default=None, description="Seed of the tuning runs; the first seed if null.")
    metric: str | None = Field(
        default=None, description="Metric that selects the best value; the metric of the runs if null."
    )

    @field_validator("values")
    @classmethod
    def _a_choice(cls, values: list[Any]) -> list[Any]:
        if len(values) < 2:
            raise SettingError(f"must be two values or more to choose from, not {values!r}", "out_of_range")
        _distinct([folder_name(str(value)) for value in values])  # each has a folder of its own
        return _distinct(values)


class SweepSettings(Settings):
    """Several runs on the same data and seeds, one row of a table each."""

    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2])
    rows: dict[str, dict[str, Any] | None] = Field(
        default_factory=dict, description="Settings of each row by its name, nested as in a configuration."
    )
    grid: dict[str, Any] = Field(
        default_factory=dict, description="Lists of values by setting. Every row runs with every combination."
    )
    only: Annotated[list[str], AfterValidator(_distinct)] = Field(
        default_factory=list,
        description="Rows to run, by their names in the table; all if empty. Finished rows in the folder "
        "are kept.",
    )
    tune: TuneSettings | None = None
    columns: list[str] | None = Field(
        default=None, description="Columns of the table; a default selection if null."
    )
    baseline: str | None = Field(
        default=None,
        description="Reference row, by its name in the table. Every other row is compared with it: the "
        "mean difference over the same seeds, with its 95 % confidence interval.",
    )
    p_values: bool = Field(
        default=False,
        description="Report a p-value for each difference to the reference row (paired t-test over seeds, "
        "with Holm's correction for the number of rows).",
    )
    floors: Annotated[list[str], AfterValidator(_distinct)] = Field(
        default_factory=list,
        description="Rows that are trivial baselines, by their names in the table. They are never marked "
        "as best and do not count for the time to accuracy.",
    )
    allow_different_data: bool = Field(
        default=False, description="Allow rows to differ in `data`, `partition` and `task`."
    )

    @field_validator("seeds", "columns")
    @classmethod
    def _once_each(cls, values: list[Any] | None) -> list[Any] | None:
        if values is not None and not values:
            raise SettingError("must name at least one", "missing")
        return values and _distinct(values)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a comparison: a configuration but for its seed.

    Attributes:
        name: Its name in the table.
        source: Its settings.
    """

    name: str
    source: Source

    @property
    def folder(self) -> str:
        """The name as a folder."""
        return folder_name(self.name)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A comparison as described, not yet checked against data and models.

    Attributes:
        name: Its name; the folder below `comparisons/` when none is given.
        settings: The `sweep` section.
        rows: The rows in the order of the table.
        source: Where the `sweep` section came from.
    """

    name: str
    settings: SweepSettings
    rows: tuple[Row, ...]
    source: Source


def read_sweep(files: Sequence[Path], overrides: Sequence[str]) -> Sweep:
    """Reads a comparison: one file that may have a `sweep` section, or several files of one row each.

    Args:
        files: The configurations.
        overrides: `key.path=value`: those of `sweep.` describe the comparison, others hold for every row.

    Raises:
        ConfigurationError: A file cannot be read, or the description is wrong in itself; all its problems.
    """
    if not files:
        raise refused("", "name a configuration, or several to compare", "missing")
    own = [override for override in overrides if override.startswith(f"{SECTION}.")]
    sources: list[Source] = []
    problems: list[Problem] = []
    for file in files:
        try:
            sources.append(read_source(file, own))
        except ConfigurationError as error:
            problems += error.problems
    refuse(list(dict.fromkeys(problems)))
    others = [override for override in overrides if override not in own]
    return sweep_of({str(file): source for file, source in zip(files, sources, strict=True)}, others)


def sweep_of(files: Mapping[str, Source], overrides: Sequence[str] = ()) -> Sweep:
    """Returns the comparison of one configuration with a `sweep` section, or of several of one row each.

    Args:
        files: The configurations, at least one, by what they are called.
        overrides: `key.path=value`, which hold for every row.

    Raises:
        ConfigurationError: The description is wrong in itself; all its problems.
    """
    first, several = next(iter(files.values())), len(files) > 1
    settings, problems = validate(SweepSettings, first, section=SECTION)
    for file, source in files.items():
        if several and source.origins.get(SECTION, COMMAND_LINE) != COMMAND_LINE:
            message = f"{file} describes several runs itself; compare such a file alone"
            problems.append(source.problem(SECTION, message, "conflict"))
    if settings is None or problems:
        raise ConfigurationError(problems)
    if several and settings.rows:
        problems.append(
            first.problem(f"{SECTION}.rows", "every file is a row when several are given", "conflict")
        )
    rows = bases = [_base(file, source) for file, source in files.items()]
    if settings.rows:
        rows = [_row(bases[0].source, name, values or {}, first) for name, values in settings.rows.items()]
    choices = _choices(settings.grid, first, problems)
    named = several or bool(settings.rows)
    rows = [chosen for row in rows for chosen in _grid(row, choices, first, problems, named=named)]
    problems += [wrong for row in rows for text in overrides if (wrong := apply_override(text, row.source))]
    problems += [*_wrong_names(rows, first), *_own_seeds(settings, choices, overrides, first)]
    problems += [*_wrong_floors(settings, rows, first), *_wrong_baseline(settings, rows, first)]
    problems += _no_rows("only", settings.only, rows, first)
    refuse(list(dict.fromkeys(problems)))
    if settings.only:
        rows = [row for row in rows if row.name in settings.only]
        settings = _without_others(settings, {row.name for row in rows})
    return Sweep("-".join(row.name for row in bases), settings, tuple(rows), first)


def folder_name(name: str) -> str:
    """Returns a name as one safe file name; empty if it has neither letter nor digit.

    Example:
        >>> folder_name("top 2 of 8, rate=0.1")
        'top-2-of-8-rate=0.1'
    """
    return re.sub(r"[^\w.=+]+", "-", name).strip("-._")


def with_value(row: Row, path: str, value: Any, origin: str) -> tuple[Row, Problem | None]:
    """Returns the row with one setting changed, and what is wrong with the setting's path, if anything."""
    source = deepcopy(row.source)
    problem = assign(source, path, deepcopy(value), origin)
    return Row(row.name, source), problem


def label(path: str, value: Any) -> str:
    """Returns a setting and its value in few words.

    Example:
        >>> label("method.top", 4), label("method", {"name": "layer_skipping", "top": 4})
        ('top=4', 'layer_skipping top=4')
    """
    if isinstance(value, Mapping):
        rest = [label(key, inner) for key, inner in value.items() if key != "name"]
        return " ".join([str(value.get("name", path.rpartition(".")[2])), *rest])
    return f"{path.rpartition('.')[2]}={value}"


def _base(file: str, source: Source) -> Row:
    """Returns a file's settings without its `sweep` section, under the name the file gives them."""
    base = deepcopy(source)
    base.values.pop(SECTION, None)
    for path in [path for path in base.origins if path.partition(".")[0] == SECTION]:
        del base.origins[path]
    name = base.values.get("name")
    return Row(name if isinstance(name, str) else Path(file).stem, base)


def _row(base: Source, name: str, values: Mapping[str, Any], file: Source) -> Row:
    """Lays a row's settings over the file's.

    A section that has a `name` of its own (`method`, `model`, `task`), or a `mechanism` (`privacy`), replaces
    the file's as a whole, since its other settings belong to that; any other is merged setting by setting.
    """
    source, at = deepcopy(base), f"{SECTION}.rows.{name}"

    def lay(node: dict[str, Any], over: Mapping[str, Any], prefix: str) -> None:
        for key, value in over.items():
            path = f"{prefix}.{key}" if prefix else key
            if isinstance(value, Mapping) and isinstance(node.get(key), dict) and not OWNERS & value.keys():
                lay(node[key], value, path)
                continue
            node[key] = deepcopy(value)
            for known in [known for known in source.origins if f"{known}.".startswith(f"{path}.")]:
                del source.origins[known]
            for known, origin in file.origins.items():
                if f"{known}.".startswith(f"{at}.{path}."):
                    source.origins[known.removeprefix(f"{at}.")] = origin

    lay(source.values, values, "")
    return Row(name, source)


def _choices(grid: Mapping[str, Any], file: Source, problems: list[Problem]) -> dict[str, list[Any]]:
    """Returns the values to try by dotted path, whether the grid is written with dots or nested."""
    choices = {path: values for path, values in flatten(grid) if values != {}}  # a section may be empty
    for path, values in choices.items():
        if not isinstance(values, list) or not values:
            message = f"must be a list of values to try, not {values!r}"
            problems.append(file.problem(f"{SECTION}.grid.{path}", message, "wrong_type"))
    return {path: values for path, values in choices.items() if isinstance(values, list)}


def _grid(
    row: Row, choices: Mapping[str, list[Any]], file: Source, problems: list[Problem], *, named: bool
) -> Iterator[Row]:
    """Yields the row with every combination of the grid's values; the row itself if there is no grid."""
    for combination in itertools.product(*choices.values()):
        chosen, labels = row, []
        for path, value in zip(choices, combination, strict=True):
            chosen, problem = with_value(chosen, path, value, file.origin(f"{SECTION}.grid.{path}"))
            problems += [problem] if problem else []
            labels.append(label(path, value))
        yield Row(", ".join([row.name, *labels] if named or not labels else labels), chosen.source)


def _own_seeds(
    settings: SweepSettings, choices: Mapping[str, Any], overrides: Sequence[str], file: Source
) -> Iterator[Problem]:
    """Yields a problem wherever a row would have a seed of its own."""
    message = "rows share the seeds of the comparison: sweep.seeds, or --seeds"
    if any(override.partition("=")[0] == "seed" for override in overrides):
        yield Problem("seed", message, COMMAND_LINE, code="conflict")
    places = [f"rows.{name}.seed" for name, values in settings.rows.items() if "seed" in (values or {})]
    places += ["grid.seed"] if "seed" in choices else []
    places += ["tune.setting"] if settings.tune and settings.tune.setting == "seed" else []
    yield from (file.problem(f"{SECTION}.{place}", message, "conflict") for place in places)


def _without_others(settings: SweepSettings, names: Set[str]) -> SweepSettings:
    """Returns the settings without a baseline and floors that do not run."""
    baseline = settings.baseline if settings.baseline in names else None
    floors = [name for name in settings.floors if name in names] if names - set(settings.floors) else []
    changed = {"baseline": baseline, "floors": floors, "p_values": settings.p_values and baseline is not None}
    return settings.model_copy(update=changed)


def _wrong_names(rows: Sequence[Row], file: Source) -> Iterator[Problem]:
    """Yields a problem for every name that cannot be a folder of its own."""
    seen: dict[str, str] = {}
    for row in rows:
        path = f"{SECTION}.rows.{row.name}"
        if not row.folder or len(row.name) > LONGEST_NAME:
            message = f"a row's name needs a letter or digit and at most {LONGEST_NAME} characters"
            yield file.problem(path, message, "wrong_form")
        elif row.folder.casefold() in seen:
            message = f"{row.name!r} and {seen[row.folder.casefold()]!r} would share one folder; rename one"
            yield file.problem(path, message, "duplicate")
        seen.setdefault(row.folder.casefold(), row.name)


def _wrong_floors(settings: SweepSettings, rows: Sequence[Row], file: Source) -> Iterator[Problem]:
    """Yields a problem for every floor that is no row, and one where nothing but floors is compared."""
    yield from _no_rows("floors", settings.floors, rows, file)
    if rows and {row.name for row in rows} <= set(settings.floors):
        yield file.problem(f"{SECTION}.floors", "must leave a row that is none", "conflict")


def _wrong_baseline(settings: SweepSettings, rows: Sequence[Row], file: Source) -> Iterator[Problem]:
    """Yields a problem for a baseline that is no row, and for p-values that cannot be computed."""
    if settings.baseline is not None:
        yield from _no_rows("baseline", [settings.baseline], rows, file)
    if not settings.p_values:
        return
    if settings.baseline is None:
        yield file.problem(
            f"{SECTION}.p_values", f"needs a row to compare with: set {SECTION}.baseline", "missing"
        )
    if len(settings.seeds) < 2:
        message = f"needs two seeds or more, not {len(settings.seeds)}: set {SECTION}.seeds"
        yield file.problem(f"{SECTION}.p_values", message, "out_of_range")


def _no_rows(setting: str, names: Sequence[str], rows: Sequence[Row], file: Source) -> Iterator[Problem]:
    """Yields a problem for every name that no row has."""
    known = [row.name for row in rows]
    for name in names:
        if name not in known:
            message = f"there is no row {name!r}; there are {', '.join(map(repr, known))}"
            yield file.problem(f"{SECTION}.{setting}", message, "unknown_name")
