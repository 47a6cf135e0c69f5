"""The log of a verb as lines of JSON, for what collects them; without `--log-json` lines for people.

Every line is one object, on standard output: what the verb says, what fedstrata logs, and that a library has
logged or warned of something. Of a library's message only its place is kept: it may quote what it was given,
and a log leaves the machine more easily than a terminal's text does.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from fedstrata.core.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN = "fedstrata"
_PACKAGE = Path(__file__).parents[1]
_LONGEST = 10_000
"""Characters of a message; one that lists all problems of a configuration is long."""
_logger = logging.getLogger(_OWN)


class _Lines(logging.StreamHandler[TextIO]):
    """Writes records as JSON.

    Attributes:
        about: What holds for all lines from now on, such as the run.
    """

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.about: dict[str, Any] = {}

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line; the text of an error is no part of it, since it may quote a note."""
        facts: Mapping[str, Any] = getattr(record, "facts", {})
        own = record.name.partition(".")[0] == _OWN
        message = (
            record.getMessage()
            if own
            else f"{record.name} logged at {_place(record.pathname, record.lineno)}"
        )
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": "log",
            "logger": record.name,
            **self.about,
            **{name: value for name, value in facts.items() if value is not None},
            "message": "\n".join(printable(each, _LONGEST) for each in message.split("\n")),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line)


def _place(file: str, line: int) -> str:
    """Returns a place in the code, without where it is installed."""
    return f"{Path(*Path(file).parts[-2:])}:{line}"


def _handler() -> _Lines | None:
    return next((each for each in logging.getLogger().handlers if isinstance(each, _Lines)), None)


def is_json() -> bool:
    """Whether lines are JSON."""
    return _handler() is not None


def _begin(value: bool) -> bool:
    if value and not is_json():
        root = logging.getLogger()
        root.addHandler(_Lines())
        root.setLevel(logging.WARNING)
        _logger.setLevel(logging.INFO)
        warnings.showwarning = _warned
    return value


LogJson = Annotated[
    bool,
    typer.Option("--log-json", callback=_begin, is_eager=True, help="Write the log as lines of JSON."),
]


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Takes a warning, in place of Python's own way."""
    own = Path(filename).is_relative_to(_PACKAGE)  # an environment may lie in a folder of this name, too
    told = f": {message}" if own else ""
    tell(f"{category.__name__} at {_place(filename, lineno)}{told}", level=logging.WARNING, event="warning")


def take_over() -> None:
    """Has libraries that were imported by now log here, and no longer in ways of their own."""
    if not is_json():
        return
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            for handler in logger.handlers[:]:
                if isinstance(handler, logging.StreamHandler) and not isinstance(
                    handler, logging.FileHandler
                ):
                    logger.removeHandler(handler)
                    logger.propagate = True


def about(**facts: Any) -> None:
    """Says what holds for all lines from now on: `run` and `client`."""
    if (handler := _handler()) is not None:
        handler.about |= facts


def tell(message: str, *, level: int = logging.INFO, event: str = "told", **facts: Any) -> None:
    """Writes a line: as JSON, or for people, warnings and worse to standard error.

    Args:
        message: What is said.
        level: How serious it is, as `logging` counts.
        event: What has happened.
        facts: What else is known: `client`, `round`; none is left out.
    """
    if is_json():
        _logger.log(level, "%s", message, extra={"facts": {"event": event, **facts}})
    else:
        typer.echo(message, err=level >= logging.WARNING)
