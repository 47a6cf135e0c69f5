"""`fedstrata ledger`: what has left a client, by its own ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstrata.cli.options import Debug
from fedstrata.core.errors import FedstrataError, printable, refused

if TYPE_CHECKING:
    from fedstrata.core.types import JSON
    from fedstrata.privacy.ledger_summary import Sent, Summary
    from fedstrata.privacy.ledger_verification import Line

_MOST_VALUES = 8
"""That are named of one kind; a ledger may come from anywhere."""

Ledgers = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="An egress.jsonl, a client's folder, a run directory, or the folder that a client keeps.",
        show_default=False,
    ),
]
app = typer.Typer(no_args_is_help=True, help="Tell what has left clients, and check their ledgers of it.")


@app.command()
def show(path: Ledgers, debug: Debug = False) -> None:
    """Tell what has left each client: what, how much, how protected, and the epsilon so far.

    Example: fedstrata ledger show runs/first
    """
    from fedstrata.privacy.ledger_summary import summary_of  # noqa: PLC0415 - heavy
    from fedstrata.privacy.ledger_verification import ledgers_in  # noqa: PLC0415

    wrong: list[FedstrataError] = []
    for ledger in ledgers_in(path):
        _show(ledger, summary_of(_sound(ledger, wrong)))
    _end_with(wrong, "; nothing from there on is shown")


@app.command()
def verify(
    path: Ledgers,
    head: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="A head that others were told: the ledger must hold its line."),
    ] = None,
    witnessed: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Another site's witnessed.jsonl; needs --lock."),
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A federation.lock, with the identity that signed the heads."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Check ledgers, and name the first line of each that is not what its client wrote; exit status 1 then.

    Example: fedstrata ledger verify runs/first/clients/site-1
    """
    from fedstrata.privacy import ledger_verification  # noqa: PLC0415 - not for --help
    from fedstrata.record.words import plural  # noqa: PLC0415

    ledgers, wrong = ledger_verification.ledgers_in(path), list[FedstrataError]()
    if (head or witnessed) and len(ledgers) > 1:
        message = f"is of one ledger, and {path} holds {len(ledgers)}; name one of them"
        raise refused("--head" if head else "--witnessed", message, "conflict")
    if head is not None and not ledger_verification.is_hash(head):
        raise refused(
            "--head", f"must be 64 digits of 0-9 and a-f, not {printable(head, 80)!r}", "wrong_form"
        )
    heads = {head: "--head"} if head else {}
    if witnessed or lock:
        heads |= _witnessed(ledgers[0], witnessed, lock)
    for ledger in ledgers:
        try:
            count, last = ledger_verification.verify(ledger, heads)
        except ledger_verification.LedgerError as error:
            wrong.append(error)
        else:
            held = f", with {plural(len(heads), 'head')} that others know" if heads else ""
            typer.echo(f"{ledger}: {plural(count, 'line')}, as written{held}; head {last}")
    _end_with(wrong)


def _witnessed(ledger: Path, witnessed: Path | None, lock: Path | None) -> dict[str, str]:
    """Returns the heads of a ledger that another site has kept, and the sums that they came with."""
    if witnessed is None or lock is None:
        given, missing = ("--lock", "--witnessed") if witnessed is None else ("--witnessed", "--lock")
        raise refused(given, f"says nothing without {missing}", "no_effect")
    from fedstrata.privacy.federation_lock import read_lock  # noqa: PLC0415 - heavy
    from fedstrata.privacy.ledger_verification import read_ledger  # noqa: PLC0415
    from fedstrata.privacy.ledger_witness import heads_witnessed  # noqa: PLC0415

    first = next(read_ledger(ledger), None)
    if first is None:
        message = f"{ledger} has no line, and nobody's heads are looked for"
        raise refused("PATH", message, "missing")
    return heads_witnessed(witnessed, first["client"], first["run"], read_lock(lock))


def _sound(ledger: Path, wrong: list[FedstrataError]) -> Iterator[Line]:
    """Yields the lines of a ledger up to the first that is wrong, and notes why that is."""
    from fedstrata.privacy.ledger_verification import LedgerError, read_ledger  # noqa: PLC0415

    try:
        yield from read_ledger(ledger)
    except LedgerError as error:
        wrong.append(error)


def _end_with(wrong: list[FedstrataError], more: str = "") -> None:
    """Ends with what is wrong, if anything is."""
    if wrong:
        raise FedstrataError("\n".join(f"{error}{more}" for error in wrong), code=wrong[0].code)


def _show(ledger: Path, summary: Summary) -> None:
    """Prints what one ledger says."""
    from fedstrata.record.words import epsilon, plural, size  # noqa: PLC0415 - heavy

    client = printable(summary.client, 128) or "nobody"
    run = f", run {printable(summary.run, 64)}" if summary.run else ""
    typer.echo(f"{client}{run} ({ledger})")
    for row in summary.sent:
        what = printable(f"{row.what} ({row.handler})" if row.handler else row.what, 80)
        times = f", {row.times:,} times" if row.times != 1 else ""
        again = f", and {row.repeats:,} times again with the same bytes" if row.repeats else ""
        bounded = "" if row.epsilon is None else f", epsilon {epsilon(row.epsilon)} after it"
        how = f"protection: {printable(row.protection, 128)}{bounded}"
        when = f"round {row.round}" if row.round else "no round"
        typer.echo(f"  {when}: {what}{times}{again}: {_held(row)}; {size(row.bytes)}; {how}")
    left = f"{plural(summary.times, 'thing')} left, {size(summary.bytes)}"
    spent = "none is claimed" if summary.epsilon is None else epsilon(summary.epsilon)
    typer.echo(f"  in all: {left}, {summary.unprotected:,} of them without protection; epsilon: {spent}")
    typer.echo(f"  head: {summary.head}, of line {summary.lines:,}")


def _held(row: Sent) -> str:
    """Returns what was sent in words: tensors, and what stood beside them by name."""
    from fedstrata.record.words import plural  # noqa: PLC0415 - heavy

    names = list(row.values)[:_MOST_VALUES]
    held = [plural(row.tensors, "tensor")] if row.tensors else []
    held += [_value(name, row.values[name], alone=row.times == 1) for name in names]
    if more := len(row.values) - len(names):
        held.append(f"{more:,} more")
    return ", ".join(held) or "nothing"


def _value(name: str, value: JSON, *, alone: bool) -> str:
    """Returns a value's name, and itself where it is one number or a short text."""
    shown = printable(name, 64)
    if not alone or isinstance(value, dict | list):
        return shown
    return f"{shown} {value:.4g}" if isinstance(value, float) else f"{shown} {printable(str(value), 64)}"
