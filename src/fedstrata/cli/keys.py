"""`fedstrata keys`: a site's identity, and the lock that says whom it sums with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import Debug
from fedstrata.core.errors import ConfigurationError, Problem

app = typer.Typer(no_args_is_help=True, help="Make a site's identity, and say whom it sums with.")

KIND = "ed25519:"


@app.command()
def new(
    path: Annotated[Path, typer.Argument(help="The file to make; it is a secret, and stays at the site.")],
    debug: Debug = False,
) -> None:
    """Make an identity, and show its public half and what people compare.

    Example: fedstrata keys new north.identity
    """
    from fedstrata.privacy.accounting import require_ciphers  # noqa: PLC0415 - heavy

    require_ciphers()
    from fedstrata.privacy.identity import Identity  # noqa: PLC0415 - optional

    _show(Identity.create(path).public)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="An identity.")],
    debug: Debug = False,
) -> None:
    """Show the public half of an identity again."""
    from fedstrata.privacy.accounting import require_ciphers  # noqa: PLC0415 - heavy

    require_ciphers()
    from fedstrata.privacy.identity import Identity  # noqa: PLC0415 - optional

    _show(Identity.read(path).public)


@app.command()
def lock(
    path: Annotated[Path, typer.Argument(help="The lock to write; one that is there is replaced.")],
    sites: Annotated[list[str], typer.Argument(help="NAME=ed25519:DIGITS of every site, this one included.")],
    debug: Debug = False,
) -> None:
    """Write whom this site sums with, after comparing each fingerprint with that site's people.

    Example: fedstrata keys lock federation.lock north=ed25519:58... south=ed25519:07... east=ed25519:9a...
    """
    from fedstrata.privacy.accounting import require_ciphers  # noqa: PLC0415 - heavy

    require_ciphers()
    from fedstrata.privacy.federation_lock import write_lock  # noqa: PLC0415 - optional
    from fedstrata.privacy.identity import fingerprint  # noqa: PLC0415

    known: dict[str, bytes] = {}
    for site in sites:
        name, _, public = site.rpartition("=")
        try:
            digits = bytes.fromhex(public.removeprefix(KIND) if public.startswith(KIND) else "-")
        except ValueError:
            digits = None
        if not name or digits is None or name in known:
            message = f"{site!r:.80} must be NAME={KIND}DIGITS, each name once, as fedstrata keys show has it"
            raise ConfigurationError([Problem("", message)])
        known[name] = digits
    write_lock(path, known)
    for name, public_half in known.items():
        typer.echo(f"{name}: {fingerprint(public_half)}")
    typer.echo("compare every fingerprint with the people of its site, and not by way of the server")


def _show(public: bytes) -> None:
    from fedstrata.privacy.identity import fingerprint  # noqa: PLC0415 - optional

    typer.echo(f"{KIND}{public.hex()}")
    typer.echo(f"fingerprint: {fingerprint(public)}")
