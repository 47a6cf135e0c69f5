"""`fedstrata budget`: what all runs of a site have spent of each patient's privacy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstrata.cli.options import Debug
from fedstrata.core.errors import printable

if TYPE_CHECKING:
    from fedstrata.privacy.budgets.accounts import Account

MOST_ROWS = 8
"""Of those who have spent most."""

app = typer.Typer(no_args_is_help=True, help="Tell what runs have spent of a site's budget of privacy.")


@app.callback()
def _several() -> None:
    """Keeps `show` a name of its own."""


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(metavar="BUDGET.db", help="The file that privacy.budget.path names.")
    ],
    debug: Debug = False,
) -> None:
    """Tell which runs there were, what each has spent by itself, and what those have spent who spent most.

    Example: fedstrata budget show budget.db
    """
    from fedstrata.privacy.budgets.budget import read_budget  # noqa: PLC0415 - heavy
    from fedstrata.privacy.budgets.events import largest  # noqa: PLC0415
    from fedstrata.record.privacy import over_budget  # noqa: PLC0415
    from fedstrata.record.words import epsilon, left_of, plural  # noqa: PLC0415

    terms, book = read_budget(path)
    unit, delta, most = terms["unit"], float(terms["delta"]), float(terms["epsilon"])
    typer.echo(f"{path}: {plural(len(book.cohorts), unit)}, in {plural(len(book.accounts), 'account')}")
    typer.echo(
        f"of each {unit} all runs together may spend epsilon {most:g} at delta {delta:g} (zero-out "
        "adjacency), as the last of them had it"
    )
    for account in book.accounts.values():
        typer.echo(f"  {_account(account, len(book.units(account.id)), unit, delta)}")
    spent = largest(book.profiles(), delta)
    for row in spent[:MOST_ROWS]:
        bounded = row.epsilon if math.isfinite(row.epsilon) else None
        left = left_of(max(0.0, most - row.epsilon))
        over = over_budget(bounded, most)
        typer.echo(f"spent by {plural(row.units, unit)}: epsilon {epsilon(bounded)}, {left} left{over}")
    if others := len(book.cohorts) - sum(row.units for row in spent[:MOST_ROWS]):
        typer.echo(f"the other {plural(others, unit)} have spent no more than the first of these")


def _account(account: Account, units: int, unit: str, delta: float) -> str:
    """Returns what a run has at a client, in words."""
    from fedstrata.privacy.budgets.events import composed  # noqa: PLC0415 - heavy
    from fedstrata.record.words import epsilon, plural  # noqa: PLC0415

    alone = composed([account.charges], delta)
    turn, how = account.turn, f"{account.begun} begun, {account.committed} of them sent or ready to be"
    ends = "the run has ended" if account.ended else "all of which count until the run has ended"
    kept = "" if account.ended else " reserved"
    count = f"{plural(account.charged, 'turn')} of {plural(turn.steps, 'step')}{kept}, {how}; {ends}"
    when = account.opened[:16].replace("T", " ")
    return (
        f"{printable(account.run, 64)}, {printable(account.client, 64)}, {when} UTC: {plural(units, unit)}; "
        f"{count}; {turn.kind} noise of sigma {turn.sigma:g}, rate {turn.rate:.3g}; by itself epsilon "
        f"{epsilon(alone if math.isfinite(alone) else None)}"
    )
