"""The `fedstrata` command. Nothing heavy is imported here: `fedstrata --help` answers at once."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, NoReturn

import typer

from fedstrata import __version__
from fedstrata.core.errors import FedstrataError


class _Flags:
    """What `--debug` set, for the handler of errors at the very top."""

    debug = False


def _set_debug(value: bool) -> bool:
    _Flags.debug = _Flags.debug or value
    return value


Debug = Annotated[
    bool,
    typer.Option(
        "--debug", callback=_set_debug, help="Show a traceback when something fails.", is_eager=True
    ),
]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated fine-tuning of language models, one layer at a time.",
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


def _add_commands() -> None:
    from fedstrata.cli import methods, run, synth  # noqa: PLC0415 - they import `Debug` from here

    app.command()(run.run)
    app.command()(methods.methods)
    app.command()(synth.synth)


def main() -> None:
    """Runs the command line; errors become one message and an exit status.

    Exit status: 0 success, 1 a failure while running, 2 a wrong configuration, input or usage, 130
        interrupted.
    """
    try:
        _add_commands()
        app()
    except FedstrataError as error:
        _fail(str(error), error.exit_status)
    except Exception as error:  # a bug; its text may quote a note, so only its type is shown
        _fail(f"unexpected {type(error).__name__}; run again with --debug to see where", 1)


def _fail(message: str, status: int) -> NoReturn:
    if _Flags.debug:
        traceback.print_exc()
    print(f"fedstrata: {message}", file=sys.stderr)
    sys.exit(status)
