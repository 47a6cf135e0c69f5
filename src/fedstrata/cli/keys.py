"""`fedstrata keys`: a site's identity, and whom it sums with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import Debug, new_file
from fedstrata.core.errors import refused

COMPARE = "compare every fingerprint with that site's people by another channel: by telephone, or on paper"

app = typer.Typer(no_args_is_help=True, help="Make a site's keys, and its list of the sites it trusts.")


@app.command()
def new(
    path: Annotated[
        Path, new_file("The file to make; its private half never leaves the site.", metavar="PATH")
    ],
    pseudonyms: Annotated[
        bool,
        typer.Option("--pseudonyms", help="Make the key of a privacy budget's pseudonyms, and no identity."),
    ] = False,
    debug: Debug = False,
) -> None:
    """Make this site's identity in a file that nobody else may read (mode 600); none is overwritten.

    Example: fedstrata keys new north.identity
    """
    if pseudonyms:
        from fedstrata.privacy.budgets.pseudonyms import PseudonymKey  # noqa: PLC0415 - not for --help

        PseudonymKey.create(path)
        typer.echo(f"{path} is the key of the budget that lies beside it under the same name, with .db")
        typer.echo("keep both: under another key nobody is found again, nor what was spent")
        return
    from fedstrata.privacy.identity import Identity  # noqa: PLC0415 - heavy

    _tell(Identity.create(path).public)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="A file that `fedstrata keys new` has made.")],
    debug: Debug = False,
) -> None:
    """Print the public half of an identity, for the other sites, and the fingerprint to compare.

    Example: fedstrata keys show north.identity
    """
    from fedstrata.privacy.identity import Identity  # noqa: PLC0415 - heavy

    _tell(Identity.read(path).public)


@app.command()
def lock(
    file: Annotated[Path, new_file("The lock to write, usually federation.lock.", metavar="FILE")],
    sites: Annotated[
        list[str],
        typer.Argument(metavar="NAME=PUBLIC...", help="Each site's name and public half, this one's too."),
    ],
    debug: Debug = False,
) -> None:
    """Write this site's own list of the sites it sums with, from their public halves.

    Example: fedstrata keys lock federation.lock north=ed25519:58... south=ed25519:a1... east=ed25519:3c...
    """
    from fedstrata.core.settings.privacy import LEAST_SITES  # noqa: PLC0415 - not for --help
    from fedstrata.privacy.federation_lock import lock_of, write_lock  # noqa: PLC0415 - heavy
    from fedstrata.privacy.identity import fingerprint  # noqa: PLC0415
    from fedstrata.record.words import plural  # noqa: PLC0415

    if file.exists():
        message = f"{file} exists: whom a site trusts is not overwritten; name another file, or move it away"
        raise refused("", message, "exists")
    known = lock_of(sites)
    write_lock(file, known)
    for name, public in sorted(known.items()):
        typer.echo(f"{fingerprint(public)}  {name}")
    typer.echo(f"{file} names {plural(len(known), 'site')}; before it is used, {COMPARE}")
    if len(known) < LEAST_SITES:
        typer.echo(
            f"a masked sum needs at least {LEAST_SITES} sites, so that with this lock the site takes part in "
            "none; write one of all sites before a run"
        )


def _tell(public: bytes) -> None:
    from fedstrata.privacy.identity import fingerprint, public_text  # noqa: PLC0415 - heavy

    typer.echo(f"public half: {public_text(public)}")
    typer.echo(f"fingerprint: {fingerprint(public)}")
