"""Problems of Python callers: what the command line calls an option they call an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import ParamSpec, TypeVar

from fedstrata.core.errors import ConfigurationError, Problem

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_OWN_NAMES = {"--as": "run", "RUN": "folder", "INPUT": "texts"}
"""Options that have another name as arguments; of the others `--input-format` is `input_format`."""


def with_argument_names(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Returns a function whose refusals name arguments where those of what it calls name options."""

    @wraps(function)
    def named(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except ConfigurationError as error:
            raise type(error)([_named(problem) for problem in error.problems]) from error.__cause__

    return named


def _named(problem: Problem) -> Problem:
    """Returns a problem under the name that a caller knows."""
    path, message = problem.path, problem.message
    for option, name in _OWN_NAMES.items():
        message = message.replace(f"with {option},", f"with {name},").replace(
            f"out {option},", f"out {name},"
        )
    if path in _OWN_NAMES:
        path = _OWN_NAMES[path]
    elif path.startswith("--"):
        path = path.removeprefix("--").replace("-", "_")
    return replace(problem, path=path, message=message)
