"""`fedstrata federation`: who takes part in a federation, and the kits with which they do."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.lines import LOOPBACK
from fedstrata.cli.options import Debug
from fedstrata.core.errors import Problem, refuse

app = typer.Typer(no_args_is_help=True, help="Make a federation's kits: its server's, and one for each site.")

HANDED_OVER = "to be handed over by a way that nobody else reads"
Folder = Annotated[
    Path, typer.Option("--federation", help="The federation's folder.", metavar="FOLDER", show_default="here")
]
Archive = Annotated[bool, typer.Option("--zip", help="Kits of sites as archives, to be handed over.")]


@app.command(context_settings={"allow_interspersed_args": True})
def init(
    name: Annotated[str, typer.Argument(help="Its name, and the folder to make.", metavar="NAME")],
    more: Annotated[list[str] | None, typer.Argument(metavar="", hidden=True)] = None,
    sites: Annotated[
        list[str] | None, typer.Option(help="Names of its sites.", metavar="SITE...", show_default=False)
    ] = None,
    server: Annotated[
        str, typer.Option(help="Where sites call the server: a name or a number.", metavar="HOST:PORT")
    ] = LOOPBACK,
    listen: Annotated[
        str | None,
        typer.Option(help="Where the server listens, if not there.", metavar="HOST:PORT", show_default=False),
    ] = None,
    days: Annotated[int, typer.Option(help="Days for which a certificate holds.", min=1, max=3650)] = 365,
    archive: Archive = False,
    debug: Debug = False,
) -> None:
    """Make a certificate authority, the server's kit and a kit for each site: certificate, token, settings.

    Example: fedstrata federation init hospitals --sites north south east --server 10.0.0.1:7447
    """
    from fedstrata.core.settings.kit import FederationSettings, address_fault  # noqa: PLC0415 - heavy
    from fedstrata.transport.credentials import require_safe  # noqa: PLC0415
    from fedstrata.transport.enrolment import Federation  # noqa: PLC0415

    names = [*(sites or []), *(more or [])]
    folder = Path(name)
    wrong = [Problem("--server", fault, code="wrong_form")] if (fault := address_fault(server)) else []
    refuse([*_name_problems("NAME", [folder.name]), *_site_problems("--sites", names), *wrong])
    require_safe(listen or server, insecure=False, setting="--listen")
    settings = FederationSettings(name=folder.name, server=server, days=days)
    made = Federation.create(folder, settings, listen or server, names, archive=archive)
    typer.echo(f"{folder}/authority/authority.key signs the certificates: keep it on no other machine")
    typer.echo(f"{folder}/server is the server's kit:  fedstrata serve {folder}/server")
    for site in names:
        place = made.place_of(site)
        typer.echo(f"{place} is a site's kit, {HANDED_OVER}:  fedstrata join {place}")
    _tell_of_secure_sums()


@app.command()
def add(
    site: Annotated[str, typer.Argument(help="Its name.")],
    folder: Folder = Path(),
    archive: Archive = False,
    debug: Debug = False,
) -> None:
    """Make a kit for one more site, or for one that was revoked.

    Example: fedstrata federation add west --federation hospitals
    """
    from fedstrata.transport.enrolment import Federation  # noqa: PLC0415 - heavy

    refuse(_site_problems("SITE", [site]))
    place = Federation.read(folder).add(site, archive=archive)
    typer.echo(f"{place} is the kit of {site}, {HANDED_OVER}")
    typer.echo(f"it may join runs that begin when {folder / 'server'} lies at the server as it is now")
    _tell_of_secure_sums()


@app.command()
def renew(
    members: Annotated[list[str], typer.Argument(help="Sites, or `server`.", metavar="SITE...")],
    folder: Folder = Path(),
    archive: Archive = False,
    debug: Debug = False,
) -> None:
    """Issue new certificates, and to sites new tokens; what they had before no longer lets them join.

    Example: fedstrata federation renew north --federation hospitals
    """
    from fedstrata.transport.enrolment import Federation  # noqa: PLC0415 - heavy

    federation = Federation.read(folder)
    for member in members:
        federation.require_member(member, archive=archive)  # of all, before the first one's token ends
    for member in members:
        typer.echo(f"{federation.renew(member, archive=archive)} has the new certificate of {member}")
    if members != ["server"]:
        _tell_of_tokens(folder)
    typer.echo("what is a site's own (site.yaml, policy.yaml, identity and lock, home) stays as it is there")


@app.command()
def revoke(
    site: Annotated[str, typer.Argument(help="Its name.")], folder: Folder = Path(), debug: Debug = False
) -> None:
    """Let a site no longer join; a server that runs ends its session as soon as it sees its file changed.

    Example: fedstrata federation revoke north --federation hospitals
    """
    from fedstrata.transport.enrolment import Federation  # noqa: PLC0415 - heavy

    Federation.read(folder).revoke(site)
    typer.echo(f"{site} is revoked: it has no token any more")
    _tell_of_tokens(folder)


@app.command("list")
def members(folder: Folder = Path(), debug: Debug = False) -> None:
    """Show the server and all sites, and until when their certificates hold.

    Example: fedstrata federation list --federation hospitals
    """
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.table import Table  # noqa: PLC0415

    from fedstrata.transport.enrolment import Federation  # noqa: PLC0415 - heavy

    federation, now = Federation.read(folder), datetime.now(UTC)
    table = Table("member", "certificate holds until", "", title=federation.settings.name)
    for each in federation.enrolled:
        state = "revoked" if each.revoked else "expired" if each.expires <= now else ""
        table.add_row(each.name, f"{each.expires:%Y-%m-%d %H:%M} UTC", state)
    Console().print(table)


def _site_problems(where: str, names: list[str]) -> list[Problem]:
    from fedstrata.transport.enrolment import SERVER  # noqa: PLC0415 - heavy
    from fedstrata.transport.kit import SETTINGS  # noqa: PLC0415

    problems = [] if names else [Problem(where, "must name at least one site", code="missing")]
    problems += _name_problems(where, names)
    problems += [
        Problem(where, f"{name!r} names a file of kits; choose another", code="conflict")
        for name in names
        if name == SETTINGS or name.endswith(".zip")
    ]
    problems += [
        Problem(
            where,
            f"names {name!r} twice; capitals make no other name, since some disks tell no difference",
            code="duplicate",
        )
        for name, count in Counter(map(str.casefold, names)).items()
        if count > 1
    ]
    if SERVER in map(str.casefold, names):
        problems.append(
            Problem(where, f"{SERVER!r} is the server's own name; choose another", code="conflict")
        )
    return problems


def _name_problems(where: str, names: list[str]) -> list[Problem]:
    from fedstrata.core.settings.kit import NAME_PATTERN  # noqa: PLC0415 - heavy

    allowed = "1 to 63 letters, digits, dots, dashes and underscores, the first a letter or digit"
    return [
        Problem(where, f"must be {allowed}, not {name!r:.80}", code="wrong_form")
        for name in names
        if not re.fullmatch(NAME_PATTERN, name)
    ]


def _tell_of_tokens(folder: Path) -> None:
    where = folder / "server" / "tokens"
    typer.echo(f"if the server's kit lies on another machine, copy {where} there now; no restart is needed")


def _tell_of_secure_sums() -> None:
    typer.echo(
        "for secure aggregation each site, once, in its kit: fedstrata keys new site.identity; then, with "
        "the public halves of all: fedstrata keys lock federation.lock NAME=PUBLIC...; a new site is in a "
        "sum once it is in the locks of the others"
    )
