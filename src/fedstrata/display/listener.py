"""What every display of events shares: progress bars on a terminal, plain lines, and one handler an event."""

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from fedstrata.display import log
from fedstrata.display.tables import say

_STATUS = 72
"""Characters that all but the bar take in a line, of a usual run."""

_WARNINGS = frozenset({"warning", "client_failed"})


def _draws_in_notebook(console: Console) -> bool:
    """Whether this is a notebook in which bars can be drawn: rich needs ipywidgets for them."""
    return console.is_jupyter and find_spec("ipywidgets") is not None


class _Bars(Progress):
    """Bars that in a notebook only their own thread draws.

    What is raised while an output is drawn into ipywidgets keeps to itself: on the main thread also Ctrl-C,
    which would then stop nothing.
    """

    def start(self) -> None:
        if not self.disable:
            self.live.start(refresh=not self.console.is_jupyter)

    def refresh(self) -> None:
        if not self.console.is_jupyter:
            super().refresh()


class EventDisplay:
    """Passes an event `x` on to the method `_on_x`, if there is one; a context manager around what it shows.

    Args:
        console: Where to print; standard output when none.
        description: The column with the name of each bar.
        width: Width of the bars, in characters; where they leave less than `_STATUS` they are shorter.
    """

    def __init__(self, console: Console | None, description: TextColumn, width: int) -> None:
        self._console = console or Console(force_terminal=False if log.is_json() else None)
        self._event: dict[str, Any] = {}  # that a line is said of
        self._progress = _Bars(
            description,
            BarColumn(bar_width=max(8, min(width, self._console.width - _STATUS))),
            MofNCompleteColumn(),
            # Goes on in the next line where it is too long, or names and counts would be cut for it.
            TextColumn("{task.fields[status]}", markup=False, table_column=Column()),
            TimeElapsedColumn(),
            console=self._console,
            refresh_per_second=2 if self._console.is_jupyter else 10,  # there each is sent to a browser
            disable=not (self._console.is_terminal or _draws_in_notebook(self._console)),
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, message: str) -> None:
        """Prints one line; in a log of JSON with the event that it is said of."""
        if log.is_json():
            log.tell(message, **self._event)
        else:
            say(self._console, message)

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        """Takes one event."""
        handler = getattr(self, f"_on_{event}", None)
        if handler is not None:
            level = logging.WARNING if event in _WARNINGS else logging.INFO
            known = {name: facts.get(name) for name in ("client", "round")}
            self._event = {"event": event, "level": level, **known}
            handler(facts)
            self._event = {}
