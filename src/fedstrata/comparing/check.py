"""Checks a comparison as a whole before anything starts; every problem at once, where its value was set."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedstrata.comparing.cells import Cell
from fedstrata.comparing.compare import LOCK, Comparison, RowPlan
from fedstrata.core.errors import Problem, did_you_mean, refuse
from fedstrata.core.preflight import Facts
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.sweep import SECTION, Row, Sweep, folder_name, label, with_value
from fedstrata.core.task import Task
from fedstrata.data.divide import Division, divide
from fedstrata.engine.check import (
    Checked,
    check_metric,
    check_settings,
    collecting,
    machine_problems,
    sections_of,
    unfit_clients,
)
from fedstrata.engine.model import check_model, refusals
from fedstrata.engine.processors import only_here
from fedstrata.engine.run_folder import INPUTS, differences
from fedstrata.models.vocabulary import digest_of, kept_tokens_in
from fedstrata.record.log import Listener
from fedstrata.record.score_columns import CLIENT, EXTERNAL, HIGH, LOW, column_names, is_of_one

DATA_SECTIONS = frozenset({"data", "partition", "task"})
"""What rows have in common unless `sweep.allow_different_data` says otherwise."""


@dataclass(frozen=True, slots=True)
class Divided:
    """The documents of one run, divided.

    Attributes:
        settings: The run's settings.
        sites: Who has which documents.
        task: The task made for them.
    """

    settings: RunSettings
    sites: Division
    task: Task

    def are_those_of(self, other: Checked) -> bool:
        """Whether another run has the same documents at the same clients, but for its seed."""
        changed = differences(self.settings, other.settings)
        return not {path.partition(".")[0] for path in changed} & DATA_SECTIONS


def check_comparison(sweep: Sweep, folder: Path, *, jobs: int, listen: Listener) -> Comparison:
    """Checks every run of a comparison: settings, machine, data, model, method, and what the folder holds.

    Args:
        sweep: What was asked for.
        folder: Where everything is to be kept, or is kept already.
        jobs: Runs side by side.
        listen: To be told of progress.

    Raises:
        ConfigurationError: With every problem that was found.
    """
    folder = folder.absolute()
    problems = list(folder_problems(folder))
    found: dict[str, list[Problem]] = {}
    rows = []
    for row in sweep.rows:
        plan, found[row.name] = _plan(row, sweep, folder)
        rows.append(plan)
    problems += _by_row(found)
    sound = [row for row in rows if not DATA_SECTIONS & sections_of(found[row.name])]
    divided: Divided | None = None
    if sound:
        if not sweep.settings.allow_different_data:
            problems += _other_data(sound)
        metrics, divided, wrong = _metrics(sound)
        problems += [*wrong, *(_wrong_scores(sweep, metrics) if metrics else ())]
        problems += _other_vocabularies(rows) if "perplexity" in metrics else ()
    problems += _by_row({row.name: _wrong_metrics(row, divided) for row in rows})
    refuse(list(dict.fromkeys(problems)))
    return Comparison(sweep, tuple(rows), folder, jobs, listen)


def _plan(row: Row, sweep: Sweep, folder: Path) -> tuple[RowPlan, list[Problem]]:
    """Returns the runs of a row, and what is wrong with any of them."""
    tune, seeds = sweep.settings.tune, sweep.settings.seeds
    problems: list[Problem] = []
    trials: dict[Any, dict[int, Cell]] = {}
    known: dict[str, list[Problem]] = {}
    for value in tune.values if tune else [None]:
        tried, under, wanted = row, folder / row.folder, list(seeds)
        if tune is not None:
            tried, wrong = with_value(row, tune.setting, value, sweep.source.origin(f"{SECTION}.tune.values"))
            problems += [wrong] if wrong else []
            under = under / folder_name(label(tune.setting, value))
            wanted += [tune.seed] if tune.seed is not None else []
        trials[value] = {}
        for seed in dict.fromkeys(wanted):
            trial = f", {label(tune.setting, value)}" if tune else ""
            name = f"{row.name}{trial}, seed {seed}"
            own = check_settings(with_value(tried, "seed", seed, f"{SECTION}.seeds")[0].source)
            cell = Cell(name, seed, own, under / f"seed-{seed}")
            problems += [*own.problems, *own.source.located(only_here(own.settings))]
            if own.sound("model", "task", "method"):
                problems += _model_problems(own, known)
            if cell.summary() is None:  # else it is not run again
                problems += own.source.located(machine_problems(own.settings))
            if not own.problems:
                wrong_folder = refusals(cell.require_resumable)
                problems += [replace(item, path=f"{name}: {item.path}") for item in wrong_folder]
            trials[value][seed] = cell
    return RowPlan(row.name, trials), list(dict.fromkeys(problems))


def _model_problems(own: Checked, known: dict[str, list[Problem]]) -> list[Problem]:
    """Returns what is wrong with the model, or with the method on it; asked once for equal ones."""
    key = _key(own, "model", "method", "task")
    if key not in known:
        known[key] = own.source.located(refusals(lambda: check_model(own.settings, own.task, own.method)))
    return known[key]


def _key(own: Checked, *sections: str) -> str:
    """Returns what equal settings of these sections have in common."""
    settings = own.settings.model_dump(mode="json")
    return json.dumps({section: settings[section] for section in sections}, sort_keys=True)


def _by_row(found: Mapping[str, list[Problem]]) -> Iterator[Problem]:
    """Yields each problem once; one that not every row has says which row it is in."""
    for name, problems in found.items():
        for problem in problems:
            everywhere = all(problem in others for others in found.values())
            named = problem.path.startswith(name)
            yield problem if everywhere or named else replace(problem, path=f"{name}: {problem.path}")


def _by_run(found: Mapping[str, list[Problem]], runs: int) -> Iterator[Problem]:
    """Yields each problem once; one that not all of so many runs have names the first that has it.

    With every seed other documents are counted and named, so numbers make no other problem.
    """
    alike: dict[Problem, dict[str, Problem]] = {}
    for name, problems in found.items():
        for problem in problems:
            kind = replace(problem, message=re.sub(r"\d+", "", problem.message))
            alike.setdefault(kind, {}).setdefault(name, problem)
    for places in alike.values():
        name, problem = next(iter(places.items()))
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield problem if len(places) == runs else replace(problem, path=f"{name}{more}: {problem.path}")


def _wrong_scores(sweep: Sweep, metrics: Sequence[str]) -> Iterator[Problem]:
    """Yields a problem for every column, and for a score to tune by, that no run can have."""
    whole = [name for name in metrics if "/" not in name]
    allowed, shown = column_names(metrics), column_names(whole)
    for name in sweep.settings.columns or ():
        outside = is_of_one(name.removeprefix(LOW).removeprefix(HIGH), metrics, EXTERNAL)
        if name not in allowed and not outside and not is_of_one(name, metrics, CLIENT):
            there = f"there are {', '.join(shown)}, and scores of single labels"
            message = f"there is no column {name!r}; {did_you_mean(name, allowed) or there}"
            yield sweep.source.problem(f"{SECTION}.columns", message, "unknown_name")
    metric = sweep.settings.tune.metric if sweep.settings.tune else None
    if metric is not None and metric not in metrics:
        message = f"must be one of {', '.join(whole)}, not {metric!r}"
        yield sweep.source.problem(f"{SECTION}.tune.metric", message, "unknown_name")


def _other_data(rows: list[RowPlan]) -> Iterator[Problem]:
    """Yields a problem wherever a row differs from the first in what all must share."""
    first = next(_of_each_trial(rows[0])).settings
    for row in rows:
        for own in _of_each_trial(row):
            for path, (wanted, here) in differences(first, own.settings).items():
                if path.partition(".")[0] in DATA_SECTIONS:
                    message = (
                        f"is {here!r}, in row {rows[0].name!r} {wanted!r}; rows are compared on the same "
                        f"data (unless {SECTION}.allow_different_data is true)"
                    )
                    yield replace(own.source.problem(path, message, "conflict"), path=f"{row.name}: {path}")


def _other_vocabularies(rows: list[RowPlan]) -> Iterator[Problem]:
    """Yields a problem wherever a row's vocabulary is cut otherwise than the first's, or not at all.

    A cut vocabulary lowers every loss by the log-probability of what was cut off.
    """
    first: str | None = None
    for row in rows:
        for own in _of_each_trial(row):
            cut = _cut(own.settings.model)
            first = first or cut
            if cut != first and own.sound("model"):
                message = (
                    f"{cut}, that of row {rows[0].name!r} {first}: their perplexities cannot be compared"
                )
                yield replace(
                    own.source.problem("model.vocabulary", message, "conflict"),
                    path=f"{row.name}: model.vocabulary",
                )


def _cut(model: ModelSettings) -> str:
    """Returns how a model's vocabulary is cut, in words."""
    if model.vocabulary is not None:
        return f"is cut to {model.vocabulary}"
    kept = kept_tokens_in(Path(model.name).expanduser()) if model.name else None
    return "is whole" if kept is None else f"was cut before (sha256 {digest_of(kept)[:12]})"


def _metrics(rows: list[RowPlan]) -> tuple[Sequence[str], Divided | None, list[Problem]]:
    """Returns the scores that runs may have, their documents, and what is wrong with these or the clients.

    Where runs are still to come their documents are read and divided, equal ones once, before any process
    is started; otherwise the scores are those of a finished run.
    """
    every = [cell for row in rows for cells in row.trials.values() for cell in cells.values()]
    pending: dict[str, Cell] = {}
    for cell in every:
        if cell.summary() is None:
            pending.setdefault(_key(cell.checked, *sorted(DATA_SECTIONS), "seed"), cell)
    if not pending:
        scores = (every[0].summary() or {"metrics": {}})["metrics"]
        return list(scores.get("global") or scores.get("mean_client") or ()), None, []
    problems: list[Problem] = []
    refused: dict[str, list[Problem]] = {}
    first: Divided | None = None
    for cell in pending.values():  # another seed may leave a label without a training document
        refused[cell.name] = []
        with collecting(refused[cell.name], cell.checked.source):
            own = cell.checked
            sites = divide(own.settings, own.task)
            divided = Divided(own.settings, sites, own.task.fitted(sites.clients))
            problems += _by_row({row.name: _unfit(row, divided) for row in rows})
            first = first or divided
    problems += _by_run(refused, len(pending))
    return first.task.score_names if first else (), first, problems


def _unfit(row: RowPlan, divided: Divided) -> list[Problem]:
    """Returns the problems that a row asks for clients, or documents of the server's, that there are not."""
    problems = []
    for own in filter(divided.are_those_of, _of_each_trial(row)):
        found = unfit_clients(own.settings, own.task, own.method, divided.sites.clients)
        if own.method is not None:
            found += own.method.problems(Facts(server_documents=len(divided.sites.server)))
        problems += own.source.located(found)
    return list(dict.fromkeys(problems))


def _wrong_metrics(row: RowPlan, divided: Divided | None) -> list[Problem]:
    """Returns the problem that runs of a row are to be judged by a score that they do not have."""
    problems = []
    for own in _of_each_trial(row):
        if own.sound("task", "federation"):
            task = divided.task if divided is not None and divided.are_those_of(own) else None
            problems += own.source.located(refusals(partial(check_metric, own.settings, task)))
    return list(dict.fromkeys(problems))


def _of_each_trial(row: RowPlan) -> Iterator[Checked]:
    """Yields the configuration of the first run with each value of the tuned setting."""
    return (next(iter(cells.values())).checked for cells in row.trials.values())


def folder_problems(folder: Path) -> Iterator[Problem]:
    """Yields why a comparison cannot be kept in a folder; what was given to it as objects may be there."""
    if folder.exists() and not folder.is_dir():
        yield Problem("--out", f"{folder} is a file; name a folder", code="exists")
        return
    others = {each.name for each in folder.iterdir()} - {INPUTS} if folder.is_dir() else set[str]()
    if others and LOCK not in others:
        yield Problem(
            "--out", f"{folder} holds something other than a comparison; name another folder", code="exists"
        )
