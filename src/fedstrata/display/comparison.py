"""What a person sees of a comparison: a bar for every run under way on a terminal, lines elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from fedstrata.display.listener import EventDisplay
from fedstrata.display.tables import new_table
from fedstrata.record.floors import cautions
from fedstrata.record.summary import headline
from fedstrata.record.table_text import grid, markdown, notes


class Display(EventDisplay):
    """Listens to a comparison; use it as a context manager around the runs."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console, TextColumn("{task.description}", markup=False), width=16)
        self._all: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._metrics: dict[str, str] = {}
        self._rounds: dict[str, int] = {}

    def _on_comparison(self, facts: Mapping[str, Any]) -> None:
        self._all = self._progress.add_task("runs", total=facts["cells"], status="")

    def _on_cell_started(self, facts: Mapping[str, Any]) -> None:
        cell = facts["cell"]
        self._rounds[cell] = facts["rounds"]
        self._tasks[cell] = self._progress.add_task(cell, total=facts["rounds"], status="starting")
        if not self._console.is_terminal:
            self.say(f"{cell}: {'going on' if facts['resumed'] else 'starting'}")

    def _on_recorded_run(self, facts: Mapping[str, Any]) -> None:
        self._metrics[facts["cell"]] = facts["metric"]

    _on_recorded_resumed = _on_recorded_run

    def _on_recorded_round(self, facts: Mapping[str, Any]) -> None:
        cell = facts["cell"]
        metric = self._metrics.get(cell, "")
        score = headline(facts, metric)
        status = f"validation {metric} {score:.3f}" if score is not None else ""
        self._progress.update(self._tasks[cell], completed=facts["round"], status=status)
        if not self._console.is_terminal:
            self.say(f"{cell}: round {facts['round']} of {self._rounds[cell]}{status and f', {status}'}")

    def _on_cell_finished(self, facts: Mapping[str, Any]) -> None:
        summary = facts["summary"]
        metric = summary["convergence"]["metric"]
        score = headline(summary["metrics"], metric)
        result = f"test {metric} {score:.3f}" if score is not None else "no test documents"
        result = ", ".join([result, *cautions(summary)])
        seconds = summary["time"]["total_seconds"]
        self._end(facts["cell"], f"{result}, {seconds:.0f} s{' (finished before)' if facts['again'] else ''}")

    def _on_cell_failed(self, facts: Mapping[str, Any]) -> None:
        self._end(facts["cell"], f"failed: {facts['message']}")

    def _on_chosen(self, facts: Mapping[str, Any]) -> None:
        if facts["value"] is not None:
            self.say(f"{facts['row']}: {facts['setting']} {facts['value']} is best on the validation split")

    def _end(self, cell: str, message: str) -> None:
        self.say(f"{cell}: {message}")
        if cell in self._tasks:
            self._progress.remove_task(self._tasks.pop(cell))
        if self._all is not None:
            self._progress.advance(self._all)

    def show(self, table: Mapping[str, Any], folder: Path) -> None:
        """Prints the table, its notes and where it was written: as Markdown where nobody watches."""
        if self._console.is_terminal:
            self._console.print(_printed(table))
            for note in notes(table):
                self.say(f"- {note}")
        else:
            self.say(markdown(table).rstrip())
        self.say(f"table: {folder / 'table.md'}, table.csv, table.json")


def _printed(table: Mapping[str, Any]) -> Table:
    """Returns the table as a terminal shows it."""
    titles, rows = grid(table)
    printed = new_table(table["name"], titles, overflow="fold", box=SIMPLE_HEAD)
    for row in rows:
        printed.add_row(*(Text(text, style="bold" if best else "") for text, best in row))
    return printed
