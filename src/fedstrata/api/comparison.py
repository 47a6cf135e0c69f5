"""Comparing: several runs on the same data and seeds, as one frame with means, intervals and tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedstrata.api.arguments import with_argument_names
from fedstrata.api.inputs import kept_for
from fedstrata.api.options import Config, Options, section_of, source_of
from fedstrata.api.result import Result
from fedstrata.api.running import with_objects
from fedstrata.comparing.check import check_comparison, folder_problems
from fedstrata.comparing.compare import LOCK
from fedstrata.core.errors import Problem, did_you_mean, refuse, refused
from fedstrata.core.settings.base import Settings
from fedstrata.core.settings.source import assign
from fedstrata.core.settings.sweep import SECTION, Sweep, folder_name, label, sweep_of
from fedstrata.core.settings.yaml import shortened
from fedstrata.display.comparison import Display
from fedstrata.metrics.cost import machine
from fedstrata.record.log import Listener
from fedstrata.record.table import tabulate
from fedstrata.record.table_text import write_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fedstrata.core.method import Method


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison came to.

    Attributes:
        folder: Where everything is kept.
        raw: What `table.json` holds; see docs/comparing.md.
    """

    folder: Path
    raw: Mapping[str, Any]

    @property
    def metric(self) -> str:
        """The score that runs are judged by."""
        return str(self.raw["metric"])

    @property
    def finished(self) -> bool:
        """Whether every run has ended well."""
        return all(cell["finished"] for row in self.raw["rows"] for cell in row["cells"])

    @property
    def table(self) -> pd.DataFrame:
        """A row a method or setting: figures as `mean`, `sd`, and `low` and `high` of the mean over seeds.

        Scores are fractions. `low` and `high` are a 95 % t-interval over seeds, none for one seed. With a
        `baseline`, `difference` is the mean of the row minus the baseline on the same seeds, `difference_low`
        and `difference_high` are its interval, and with `p_values` the score that runs are judged by has `p`:
        that of a paired t-test, two-sided, corrected by Holm's method for the number of rows.
        """
        import pandas as pd

        rows = {row["name"]: self._statistics(row) for row in self.raw["rows"]}
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def cells(self) -> pd.DataFrame:
        """A row a run: its row, its seed, where it lies, why it failed, and its figures."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "row": row["name"],
                    "seed": cell["seed"],
                    "folder": str(self.folder / cell["folder"]),
                    "message": cell["message"],
                    **{
                        key: values["by_seed"].get(str(cell["seed"]))
                        for key, values in row["values"].items()
                        if values is not None
                    },
                }
                for row in self.raw["rows"]
                for cell in row["cells"]
            ]
        )

    def result(self, row: str, seed: int) -> Result:
        """Returns what one run has learnt.

        Raises:
            ConfigurationError: There is no such run, or it has failed.
        """
        found = self.cells.set_index(["row", "seed"])["folder"]
        if (row, seed) not in found.index:
            runs = ", ".join(f"{name!r} with seed {number}" for name, number in found.index)
            raise refused("row", f"no {row!r} with seed {seed}; there are {runs}", "not_found")
        return Result(found[row, seed])

    def plot(self, figure: str | None = None) -> Figure:
        """Returns the mean of one figure by row, with its interval over seeds.

        Args:
            figure: A figure of `table`; the score that runs are judged by when none.

        Raises:
            ConfigurationError: There is no such figure.
        """
        from fedstrata.record.report.plots import NotebookFigure  # noqa: PLC0415 - matplotlib, heavy

        name, table = figure or self.metric, self.table
        if (name, "mean") not in table.columns:
            known = [each for each, of in table.columns if of == "mean"]
            message = f"there is no {name!r}{did_you_mean(name, known, before='; ')}; there are"
            raise refused("figure", f"{message} {', '.join(known)}", "unknown_name")
        drawn = NotebookFigure(figsize=(6.0, 1.0 + 0.4 * len(table)), layout="constrained")
        axes = drawn.add_subplot()
        middle, low, high = (table[name, of] for of in ("mean", "low", "high"))
        axes.errorbar(
            middle, range(len(table)), xerr=[(middle - low).fillna(0), (high - middle).fillna(0)], fmt="o"
        )
        axes.set_yticks(range(len(table)), table.index)
        axes.invert_yaxis()
        axes.set_xlabel(name)
        axes.grid(axis="x")
        return drawn

    def _statistics(self, row: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
        figures: dict[tuple[str, str], Any] = {}
        for key in self.raw["shown"]:
            values = row["values"].get(key) or {}
            names = {"mean": "mean", "sd": "standard_deviation", "low": "low", "high": "high"}
            figures |= {(key, name): values.get(kept) for name, kept in names.items()}
            if self.raw["baseline"] is not None:
                difference = values.get("difference") or {}
                figures[key, "difference"] = difference.get("mean")
                figures[key, "difference_low"] = difference.get("low")
                figures[key, "difference_high"] = difference.get("high")
                if self.raw["p_values"] and key == self.metric:
                    figures[key, "p"] = difference.get("p")
        return figures

    def _repr_html_(self) -> str:
        scores = [key for key in self.raw["shown"] if (key, "mean") in self.table.columns]
        shown: str = self.table[scores].dropna(axis=1, how="all").to_html(float_format="{:.4g}".format)
        return shown


@with_argument_names
def compare(
    config: Config | Sequence[str | Path] = None,
    *,
    methods: Sequence[Method | str] | Mapping[str, Method | str] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    rows: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: Sequence[int] | None = None,
    baseline: str | None = None,
    p_values: bool = False,
    jobs: int = 1,
    out: str | Path | None = None,
    progress: bool = True,
    **options: Unpack[Options],
) -> Comparison:
    """Runs several methods or settings on the same data and seeds.

    What has finished is not run again and what has begun is resumed: to go on, call it again with the same
    arguments. Every run is a process of its own.

    Args:
        config: As for `run`; or several files, one a row; it may have a `sweep` section of its own.
        methods: Methods to compare, one a row; a mapping also names the rows.
        grid: Values to try by dotted path; every row with every combination.
        rows: Settings of each row by its name, nested as in a configuration.
        seeds: Seeds of every row; 0, 1 and 2 when none.
        baseline: The row that every other row is compared with, by its name; no differences when none.
        p_values: Whether each difference to the baseline has a p-value, corrected for the number of rows.
        jobs: Runs side by side.
        out: Where everything is kept; `comparisons/NAME` when none.
        progress: Whether progress is shown.
        **options: Settings of all rows, as for `run`.

    Raises:
        ConfigurationError: With every problem of every run, before any starts.
    """
    display = Display() if progress else None
    if display is not None:
        display.say("checking every run ...")
    refuse([*_misfits(config, methods, grid, seeds, jobs, options)])
    files = config if isinstance(config, Sequence) and not isinstance(config, str) else [config]
    sources = {
        str(file) if isinstance(file, str | Path) else "comparison": source_of(file, options)
        for file in files
    }
    first = next(iter(sources.values()))
    described = _described(methods, grid, rows, seeds)
    described |= {} if baseline is None else {"baseline": baseline}
    described |= {"p_values": True} if p_values else {}
    for path, value in described.items():
        assign(first, f"{SECTION}.{path}", value, f"the argument {path}")
    name = "-".join(str(source.values.get("name", Path(file).stem)) for file, source in sources.items())
    folder = Path(out) if out is not None else Path("comparisons") / (folder_name(name) or "comparison")
    refuse([*folder_problems(folder)])  # before anything is kept in it
    with kept_for(folder, LOCK, resumes=False):
        for source in sources.values():
            with_objects(source, options, folder)
        return executed(sweep_of(sources), folder, jobs, display)


def _misfits(
    config: Any, methods: Any, grid: Any, seeds: Any, jobs: Any, options: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yields what is wrong with the arguments of a comparison that describe no single run."""
    if isinstance(config, list | tuple) and not config:
        yield Problem("config", "must name at least one file", code="missing")
    if methods is not None:
        yield from _wrong_methods(methods)
        if "method" in options:
            yield Problem(
                "method", "has no meaning with methods, which are those of the rows", code="no_effect"
            )
    if grid is not None and not isinstance(grid, Mapping):
        yield Problem(
            "grid",
            f"must be a mapping of dotted paths to values, not {type(grid).__name__}",
            code="wrong_type",
        )
    lists = {f"grid.{path}": values for path, values in grid.items()} if isinstance(grid, Mapping) else {}
    for name, values in {**lists, **({} if seeds is None else {"seeds": seeds})}.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            yield Problem(name, f"must be a list of values, not {type(values).__name__}", code="wrong_type")
    if "seed" in options:
        yield Problem(
            "seed", "has no meaning here: every row has the seeds of the comparison (seeds)", code="no_effect"
        )
    if not isinstance(jobs, int) or jobs < 1:
        yield Problem("jobs", f"must be a whole number from 1, not {shortened(jobs)}", code="out_of_range")


def _wrong_methods(methods: Any) -> Iterator[Problem]:
    if not isinstance(methods, Mapping | list | tuple):
        yield Problem(
            "methods", f"must be a list or a mapping, not {type(methods).__name__}", code="wrong_type"
        )
    elif not methods:
        yield Problem("methods", "must name at least one", code="missing")
    elif not isinstance(methods, Mapping):
        wrong = [each for each in methods if not isinstance(each, str | Settings)]
        for each in wrong:
            found = f"the class {each.__name__}" if isinstance(each, type) else type(each).__name__
            yield Problem("methods", f"must hold names and objects, not {found}", code="wrong_type")
        titles = [] if wrong else [_title(method) for method in methods]
        for name in sorted({name for name in titles if titles.count(name) > 1}):
            yield Problem(
                "methods",
                f"{name!r} is there twice; a mapping gives each row a name of its own",
                code="duplicate",
            )


def _described(
    methods: Sequence[Method | str] | Mapping[str, Method | str] | None,
    grid: Mapping[str, Sequence[Any]] | None,
    rows: Mapping[str, Mapping[str, Any]] | None,
    seeds: Sequence[int] | None,
) -> dict[str, Any]:
    """Returns what the arguments say of the section `sweep`, by its settings."""
    if methods is not None and rows is not None:
        raise refused("rows", "and methods are both the rows; give one of them", "conflict")
    described: dict[str, Any] = {}
    if methods is not None:
        named = methods if isinstance(methods, Mapping) else {_title(method): method for method in methods}
        described["rows"] = {name: {"method": section_of("method", own)} for name, own in named.items()}
    if rows is not None:
        described["rows"] = section_of("rows", rows)
    if grid is not None:
        tried = {
            str(path): [section_of(str(path), value) for value in values] for path, values in grid.items()
        }
        described["grid"] = tried
    if seeds is not None:
        described["seeds"] = section_of("seeds", list(seeds))
    return described


def _title(method: Settings | str) -> str:
    """Returns what a row is called: the method, and those of its settings that are not as usual."""
    if isinstance(method, str):
        return method
    return label("method", {**method.model_dump(exclude_defaults=True), "name": getattr(method, "name", "")})


def executed(sweep: Sweep, folder: Path, jobs: int, display: Display | None) -> Comparison:
    """Checks and runs everything; the table is also written.

    Args:
        sweep: What is to be compared.
        folder: Where everything is kept.
        jobs: Runs side by side.
        display: Shows it; nothing is shown if none.

    Raises:
        ConfigurationError: With every problem of every run, before any starts.
    """
    listen: Listener = display or (lambda event, facts: None)
    comparison = check_comparison(sweep, folder, jobs=jobs, listen=listen)
    if display is None:
        found = comparison.execute()
    else:
        with display:
            found = comparison.execute()
    table = tabulate(
        found,
        name=sweep.name,
        columns=sweep.settings.columns,
        floors=sweep.settings.floors,
        baseline=sweep.settings.baseline,
        p_values=sweep.settings.p_values,
        different_data=sweep.settings.allow_different_data,
        machine={**machine(), "jobs": jobs},
    )
    write_table(table, folder)
    return Comparison(folder, table)
