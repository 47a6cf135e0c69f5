"""Options that every verb has."""

from __future__ import annotations

from typing import Annotated

import typer


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
