"""Arguments and options that verbs share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.core.errors import ConfigurationError, Problem


class Flags:
    """What `--debug` set, for the handler of errors at the very top."""

    debug = False


def _set_debug(value: bool) -> bool:
    Flags.debug = Flags.debug or value
    return value


Debug = Annotated[
    bool,
    typer.Option(
        "--debug", callback=_set_debug, is_eager=True, help="Show a traceback when something fails."
    ),
]

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.yaml] [KEY.PATH=VALUE]...",
        help="A configuration and settings that override it. Without a configuration: the demo.",
        show_default=False,
    ),
]


def sort_arguments(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Tells the configuration file from the overrides.

    Raises:
        ConfigurationError: More than one file is named.
    """
    overrides = [argument for argument in arguments if "=" in argument]
    names = [argument for argument in arguments if "=" not in argument]
    if len(names) > 1:
        raise ConfigurationError(
            [Problem("", f"one configuration file at most, not {len(names)}: {', '.join(names)}")]
        )
    return (Path(names[0]) if names else None), overrides
