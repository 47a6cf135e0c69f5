"""Problems of Python callers: what the command line calls an option they call an argument."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fedstrata.core.errors import ConfigurationError, Problem, TrainedOnWarning
from fedstrata.core.settings.source import COMMAND_LINE
from fedstrata.results.trained import caution

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_OWN_NAMES = {"--as": "run", "RUN": "folder", "INPUT": "texts", "GOLD": "gold"}
"""Options that have another name as arguments; of the others `--input-format` is `input_format`."""

_GO_ON = re.compile(r"fedstrata run --resume --out ((?:[^\s,]|,(?! ))+)(?: federation\.rounds=(\d+))?")


def with_argument_names(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Returns a function whose refusals name arguments where those of what it calls name options."""

    @wraps(function)
    def named(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except ConfigurationError as error:
            raise type(error)([_named(problem) for problem in error.problems]) from error.__cause__

    return named


def _as_call(found: re.Match[str]) -> str:
    """Returns a command that goes on with a run as the call that does."""
    rounds = f", rounds={found[2]}" if found[2] else ""
    return f"fedstrata.resume({found[1]!r}{rounds})"


def _named(problem: Problem) -> Problem:
    """Returns a problem under the name that a caller knows."""
    path, message = problem.path, _GO_ON.sub(_as_call, problem.message)
    for option, name in _OWN_NAMES.items():
        message = message.replace(f"with {option},", f"with {name},").replace(
            f"out {option},", f"out {name},"
        )
    message = re.sub(r"\bGOLD\b", "gold", message)
    if path in _OWN_NAMES:
        path = _OWN_NAMES[path]
    elif path.startswith("--"):
        path = path.removeprefix("--").replace("-", "_")
    origin = "the argument settings" if problem.origin == COMMAND_LINE else problem.origin
    return replace(problem, path=path, message=message, origin=origin)


def warn_of_trained(trained: int | None, documents: int) -> None:
    """Warns of documents that a run was trained on, at the line outside of fedstrata that asked."""
    if trained:
        packages = (own.frame.f_globals.get("__name__", "").partition(".")[0] for own in inspect.stack(0))
        depth = next((level for level, own in enumerate(packages, start=1) if own != "fedstrata"), 1)
        warnings.warn(caution(trained, documents), TrainedOnWarning, stacklevel=depth)


def kinds_in(part: Any) -> str:
    """Says what was given, without anything of its text."""
    if isinstance(part, Sequence) and not isinstance(part, str):
        kinds = sorted({type(each).__name__ for each in part}) or ["nothing"]
        return f"{type(part).__name__} of {', '.join(kinds)}"
    return type(part).__name__
