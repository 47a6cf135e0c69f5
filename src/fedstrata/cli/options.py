"""Arguments and options that verbs share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.core.errors import refused

if TYPE_CHECKING:
    from fedstrata.core.settings.source import Source


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
        metavar="CONFIG.yaml|KEY.PATH=VALUE",
        help="A configuration and settings that override it. Without a configuration: the demo.",
        show_default=False,
    ),
]

MOST_SECONDS = 2e6
"""Of an option: gRPC counts them as milliseconds in 32 bits."""


def number(help: str, least: float, most: float = MOST_SECONDS) -> Any:
    """Returns the option of a number within bounds; what is none, as nan, is within no bounds."""

    def checked(value: float) -> float:
        if not least <= value <= most:
            raise typer.BadParameter(f"must be from {least:.10g} to {most:.10g}, not {value:.10g}")
        return value

    return typer.Option(help=help, metavar=f"{least:.10g}..{most:.10g}", callback=checked)


def seconds(told: str, least: float = 0.1) -> Any:
    """Returns the option of a time."""
    return number(f"Seconds {told}", least)


def new_file(help: str, **more: Any) -> Any:
    """Returns the argument of a file to be made: of a path that can be one."""

    def checked(text: str) -> Path:
        if not text:
            raise typer.BadParameter("'' names no file; name the one to make")
        if text.endswith("/") or Path(text).is_dir():
            raise typer.BadParameter(f"{text!r} names a folder; name a file to make, in it or elsewhere")
        return Path(text)

    return typer.Argument(parser=checked, help=help, **more)


FinishedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="The directory of a finished run.", show_default=False)
]
Owner = Annotated[str | None, typer.Option(help="Whose model, where every client has its own.", metavar="ID")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the last committed round of --out.")]


def sort_arguments(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Tells the configuration file from the overrides.

    Raises:
        ConfigurationError: More than one file is named.
    """
    files, overrides = sort_files(arguments)
    if len(files) > 1:
        named = ", ".join(map(str, files))
        message = f"one configuration file at most, not {len(files)}: {named}; a setting is PATH=VALUE"
        raise refused("", message, "conflict")
    return (files[0] if files else None), overrides


def sort_files(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Tells configuration files from `key.path=value`; a path may hold an equals sign after a slash.

    Example:
        >>> sort_files(["./top=2/site.yaml", "data.path=a/b"])
        ([PosixPath('top=2/site.yaml')], ['data.path=a/b'])
    """
    overrides = [text for text in arguments if "=" in text and "/" not in text.partition("=")[0]]
    return [Path(text) for text in arguments if text not in overrides], overrides


def configuration(file: Path | None, overrides: Sequence[str]) -> Source:
    """Reads a configuration, or the demo's where none is named.

    Raises:
        ConfigurationError: It cannot be read, or an override is malformed.
    """
    from fedstrata.core.settings.demo import read_demo, without_demo_notes  # noqa: PLC0415 - heavy
    from fedstrata.core.settings.source import read_source  # noqa: PLC0415 - heavy

    return without_demo_notes(read_demo(overrides)) if file is None else read_source(file, overrides)


def on_command_line(source: Source, section: str) -> bool:
    """Whether the command line sets a section: itself, anything in it, or a whole that it is part of."""
    from fedstrata.core.settings.source import COMMAND_LINE  # noqa: PLC0415 - heavy

    asked = f"{section}."
    given = [f"{path}." for path, origin in source.origins.items() if origin == COMMAND_LINE]
    return any(path.startswith(asked) or asked.startswith(path) for path in given)
