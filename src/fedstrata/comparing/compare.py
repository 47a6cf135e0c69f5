"""Comparisons: the same data and seeds for every row, each run in a process of its own.

Everything is checked before anything starts. What has finished is not run again and what has begun is
resumed, so a comparison that was stopped goes on when it is given again. A setting that is tuned is chosen
for every row alike, by the validation split of one seed; the test split has no part in it.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.comparing.cells import Cell, CellProcess, stop
from fedstrata.core.files import hold, open_private, private_folder
from fedstrata.core.settings.sweep import Sweep
from fedstrata.record.log import Listener
from fedstrata.record.summary import falls
from fedstrata.record.table import CellResult, RowResult, Trial, Tuning

LOCK = ".lock"
"""Held while a comparison runs; its presence tells a comparison's folder from any other."""
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The runs of one row.

    Attributes:
        name: The row.
        trials: For every value of the tuned setting, the row's runs by seed; one entry, under none, if
            nothing is tuned.
    """

    name: str
    trials: Mapping[Any, Mapping[int, Cell]]


class Comparison:
    """A checked comparison; see `fedstrata.comparing.check.check_comparison`.

    Args:
        sweep: What was asked for.
        rows: The runs of every row.
        folder: Where everything is kept.
        jobs: Runs side by side.
        listen: Told of progress.
    """

    def __init__(
        self, sweep: Sweep, rows: tuple[RowPlan, ...], folder: Path, jobs: int, listen: Listener
    ) -> None:
        self.folder = folder
        self._settings, self._rows = sweep.settings, rows
        self._jobs, self._listen, self._shares = jobs, listen, shares_of_cores(jobs)
        self._results: dict[Cell, CellResult] = {}
        self._chosen: dict[str, Tuning] = {}

    def execute(self) -> list[RowResult]:
        """Runs what is not yet finished and returns every row's results, failures among them.

        Raises:
            ConfigurationError: Another comparison is under way in the folder.
            KeyboardInterrupt: Ctrl-C; the runs under way were stopped first and can be resumed.
        """
        with self._locked():
            self._listen("comparison", {"cells": self._count()})
            running: dict[Cell, CellProcess] = {}
            try:
                while True:
                    self._start(running)
                    if not running:
                        break
                    time.sleep(POLL_SECONDS)
                    for cell, process in list(running.items()):
                        ended = process.finished()  # asked first: what it wrote last is then there to read
                        self._show(process)
                        if ended:
                            del running[cell]
                            self._keep(cell, process.failure())
            finally:
                stop(running.values())
        return [self._row_result(row) for row in self._rows]

    def _start(self, running: dict[Cell, CellProcess]) -> None:
        """Starts runs until enough are under way; those that have finished before are taken as they are."""
        for cell in self._wanted():
            if cell in self._results or cell in running:
                continue
            if cell.summary() is not None:
                self._keep(cell, "", again=True)
                continue
            if len(running) == self._jobs:
                return
            facts = {
                "cell": cell.name,
                "rounds": cell.checked.settings.federation.rounds,
                "resumed": cell.begun,
            }
            taken = [process.cores for process in running.values()]
            running[cell] = CellProcess(cell, next((own for own in self._shares if own not in taken), ()))
            self._listen("cell_started", facts)

    def _wanted(self) -> Iterator[Cell]:
        """Yields the runs known by now to be needed: those that tune, then those of what was chosen."""
        for row in self._rows:
            yield from self._tuning_cells(row).values()
        for row in self._rows:
            yield from (self._chosen_trial(row) or {}).values()

    def _tuning_cells(self, row: RowPlan) -> dict[Any, Cell]:
        """Returns the run that tries each value of the tuned setting; empty if nothing is tuned."""
        tune = self._settings.tune
        return {value: cells[self._tuning_seed] for value, cells in row.trials.items()} if tune else {}

    @property
    def _tuning_seed(self) -> int:
        tune = self._settings.tune
        return self._settings.seeds[0] if tune is None or tune.seed is None else tune.seed

    def _chosen_trial(self, row: RowPlan) -> Mapping[int, Cell] | None:
        """Returns the row's runs in the order of the seeds; none while its setting is not chosen."""
        if self._settings.tune is None:
            return row.trials[None]
        tuning = self._tuned(row)
        if tuning is None or tuning.chosen is None:
            return None
        cells = row.trials[tuning.chosen]
        return {seed: cells[seed] for seed in self._settings.seeds}

    def _tuned(self, row: RowPlan) -> Tuning | None:
        """Returns how the row's setting was chosen; none while values are still being tried."""
        cells, tune = self._tuning_cells(row), self._settings.tune
        if tune is None or any(cell not in self._results for cell in cells.values()):
            return None
        if row.name not in self._chosen:
            runs = [run for cell in cells.values() if (run := self._results[cell].run)]
            metric = tune.metric or (runs[0]["metric"] if runs else "")
            trials = [self._trial(value, cell, metric) for value, cell in cells.items()]
            falling = any(falls(run, metric) for run in runs)
            chosen = choose(trials, falling=falling)
            self._chosen[row.name] = Tuning(tune.setting, chosen, metric, self._tuning_seed, trials)
            self._listen("chosen", {"row": row.name, "setting": tune.setting, "value": chosen})
        return self._chosen[row.name]

    def _trial(self, value: Any, cell: Cell, metric: str) -> Trial:
        message = self._results[cell].message
        score = None if message else cell.validation(metric)
        if score is None and not message:
            message = "there are no validation documents to choose by"
        return Trial(value, score, message or None)

    def _keep(self, cell: Cell, message: str, *, again: bool = False) -> None:
        """Takes down what became of a run."""
        result = cell.result(self.folder, message)
        self._results[cell] = result
        if result.summary is None:
            self._listen("cell_failed", {"cell": cell.name, "message": message})
            return
        self._listen("cell_finished", {"cell": cell.name, "summary": result.summary, "again": again})

    def _show(self, process: CellProcess) -> None:
        for event in process.events():
            self._listen(f"recorded_{event['event']}", {"cell": process.cell.name, **event})

    def _row_result(self, row: RowPlan) -> RowResult:
        tuning, cells = self._tuned(row), self._chosen_trial(row)
        if cells is None:
            message = "nothing was chosen"
            if tuning is not None:
                message = f"no value of {tuning.setting} could be used; the first: {tuning.tried[0].message}"
            failed = tuple(CellResult(seed, "", message=message) for seed in self._settings.seeds)
            return RowResult(row.name, failed, tuning)
        return RowResult(row.name, tuple(self._results[cell] for cell in cells.values()), tuning)

    def _count(self) -> int:
        """Returns how many runs the comparison has."""
        seeds = set(self._settings.seeds)
        if self._settings.tune is None:
            return len(self._rows) * len(seeds)
        values = len(self._settings.tune.values)
        return len(self._rows) * (values + len(seeds - {self._tuning_seed}))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps a second comparison out of the folder; the lock goes with the process, however it ends."""
        private_folder(self.folder, existing=True)
        with open_private(self.folder / LOCK, "w") as file:
            hold(file, f"another comparison is under way in {self.folder}")
            yield


def shares_of_cores(jobs: int) -> list[list[int]]:
    """Returns which cores each of several runs side by side computes on; none where there are too few.

    So each takes as many workers as it has cores, and what runs give does not depend on their number.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [cores[number::jobs] for number in range(jobs)] if 1 < jobs <= len(cores) else []


def choose(trials: Sequence[Trial], *, falling: bool) -> Any:
    """Returns the value with the best validation score, the first of equals; none if no trial has one.

    Args:
        trials: What was tried.
        falling: Whether less of the score is better.
    """
    sign = -1.0 if falling else 1.0
    scored = [(sign * trial.validation, trial.value) for trial in trials if trial.validation is not None]
    return max(scored, key=lambda item: item[0])[1] if scored else None
