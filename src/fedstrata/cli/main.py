"""The `fedstrata` command. Nothing heavy is imported here: `fedstrata --help` answers at once."""

import logging
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from fedstrata import __version__
from fedstrata.cli import (
    attack,
    budget,
    compare,
    export,
    federation,
    keys,
    ledger,
    methods,
    models,
    nvflare,
    plan,
    predict,
    report,
    run,
    score,
    serve,
    split,
    status,
    synth,
    watch,
)
from fedstrata.cli.options import Flags
from fedstrata.core.errors import ConfigurationError, FedstrataError, printable
from fedstrata.display import log

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


app.command()(run.run)
app.command()(plan.plan)
app.command()(compare.compare)
app.command()(predict.predict)
app.command()(score.score)
app.command()(export.export)
app.command()(serve.serve)
app.command()(serve.join)
app.command()(nvflare.nvflare_kit)
app.command()(methods.methods)
app.command()(report.report)
app.command()(watch.watch)
app.command()(status.status)
app.command()(synth.synth)
app.add_typer(attack.app, name="attack")
app.add_typer(budget.app, name="budget")
app.add_typer(federation.app, name="federation")
app.add_typer(keys.app, name="keys")
app.add_typer(ledger.app, name="ledger")
app.add_typer(models.app, name="models")
app.add_typer(split.app, name="split")


def main() -> None:
    """Runs the command line; errors become one message and an exit status.

    Exit status: 0 success, 1 a failure while running, 2 a wrong configuration, input or usage, 130
        interrupted.
    """
    try:
        app(prog_name="fedstrata")
    except FedstrataError as error:
        shown = str(error) if isinstance(error, ConfigurationError) else f"{error}  [{error.code}]"
        _fail(shown, error.exit_status, error.code)
    except OSError as error:
        _fail(f"{error.strerror or type(error).__name__}: {error.filename or 'no file named'}", 1)
    except Exception as error:  # a bug; its text may quote a note, so only its type is shown
        _fail(f"unexpected {type(error).__name__}; run again with --debug to see where", 1)


def _fail(message: str, status: int, code: str = "unexpected") -> NoReturn:
    if Flags.debug:  # the places, not the text of the error: that may quote a note
        error = sys.exc_info()[1]
        for link in (error.__cause__ if error else None, error):  # a client's own error first
            traceback.print_tb(link.__traceback__ if link else None)
    if log.is_json():
        log.tell(message, level=logging.ERROR, event="failed", code=code)
        sys.exit(status)
    for line in f"fedstrata: {message}".split("\n"):
        print(printable(line, len(line)), file=sys.stderr)
    sys.exit(status)
