"""The folder of a federation's coordinator: its authority, the server's kit, and a kit for each site.

| place | |
|---|---|
| `federation.yaml` | name, address, days of a certificate |
| `authority/` | the authority's key, which belongs to no other machine, and every certificate as issued |
| `server/` | the server's kit; in `tokens` are the sites that may join, and nobody else |
| `sites/NAME/`, or `sites/NAME.zip` | a site's kit, to be handed over |
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

from fedstrata.core.errors import ConfigurationError, did_you_mean, refused
from fedstrata.core.files import new_folder, taking_turns, write_atomically
from fedstrata.core.settings.kit import FederationSettings, KitSettings
from fedstrata.core.settings.source import read_source, validate
from fedstrata.core.settings.yaml import as_document
from fedstrata.transport.authority import Authority, Issued, validities_of
from fedstrata.transport.credentials import read_tokens
from fedstrata.transport.kit import CREDENTIALS, POLICY, SETTINGS, write_archive, write_files

FEDERATION = "federation.yaml"
SERVER = "server"
"""The server's name, which no site may have."""
_ISSUED = "issued"
_TOKEN_BYTES = 32
_WHO_MAY_JOIN = "# The sites that may join, and their tokens."
"""Begins the file of tokens, so that one of no site is not empty, as one is that is half written."""


@dataclass(frozen=True)
class Enrolled:
    """A member of a federation.

    Attributes:
        name: A site's, or `server`.
        expires: Until when its certificate holds.
        revoked: Whether it may no longer join.
    """

    name: str
    expires: datetime
    revoked: bool


class Federation:
    """The coordinator's side of a federation.

    Args:
        folder: Its folder.
        settings: What `federation.yaml` says.
    """

    def __init__(self, folder: Path, settings: FederationSettings) -> None:
        self.folder, self.settings = folder, settings
        self._authority = folder / "authority"

    @classmethod
    def create(
        cls, folder: Path, settings: FederationSettings, listen: str, sites: Sequence[str], *, archive: bool
    ) -> Federation:
        """Makes a federation with a kit for its server and each of its sites; all of it, or nothing.

        Args:
            folder: The folder to make.
            settings: What its kits have in common.
            listen: Where its server listens, `HOST:PORT`.
            sites: Names of its sites.
            archive: Whether the kits of sites are archives, and no folders.

        Raises:
            ConfigurationError: The folder is there, and not empty.
        """
        with new_folder(folder) as made:
            own = cls(made, settings)
            authority = Authority.create(settings.name)
            write_atomically(made / FEDERATION, [as_document(settings.model_dump())])
            write_files(own._authority, {"authority.pem": authority.issued.certificate})
            write_atomically(own._authority / "authority.key", [authority.issued.key], mode=0o600)
            own._write_server(authority, listen)
            own._admit({name: own._write_site(authority, name, archive=archive) for name in sites})
        return cls(folder, settings)

    @classmethod
    def read(cls, folder: Path) -> Federation:
        """Reads a federation's folder.

        Raises:
            ConfigurationError: It is none, or what it says is wrong.
        """
        if not (folder / FEDERATION).is_file():
            message = f"{folder.absolute()} is the folder of no federation: there is no {FEDERATION} in it"
            raise refused("--federation", message, "not_found")
        settings, problems = validate(FederationSettings, read_source(folder / FEDERATION, []))
        if settings is None:
            raise ConfigurationError(problems)
        return cls(folder, settings)

    @property
    def enrolled(self) -> list[Enrolled]:
        """All who have ever had a certificate, the server first."""
        tokens = self._tokens()
        return [
            Enrolled(
                name,
                validities_of(self._authority / _ISSUED / f"{name}.pem")[0][1],
                name not in tokens and name != SERVER,
            )
            for name in sorted(self._known(), key=lambda name: (name != SERVER, name))
        ]

    def _known(self) -> list[str]:
        """Returns the names of all who have ever had a certificate."""
        return [path.stem for path in (self._authority / _ISSUED).glob("*.pem")]

    def add(self, site: str, *, archive: bool) -> Path:
        """Makes a kit for one more site, or for one that was revoked; returns where it lies.

        Raises:
            ConfigurationError: The site is there already, or one whose name differs in capitals alone; or its
                kit is a folder here, and an archive was asked for.
        """
        with self._taking_turns():
            if site in self._tokens():
                message = f"{site!r} is a site already; a new kit for it: fedstrata federation renew {site}"
                raise refused("SITE", message, "exists")
            if near := [
                each for each in self._known() if each.casefold() == site.casefold() and each != site
            ]:
                message = (
                    f"{site!r} differs from {near[0]!r} in capitals alone, which not every disk tells apart"
                )
                raise refused("SITE", f"{message}; choose another", "duplicate")
            self._admit({site: self._write_site(self._read_authority(), site, archive=archive)})
        return self.place_of(site)

    def renew(self, member: str, *, archive: bool) -> Path:
        """Makes a new certificate, key and token for a site, or the server's certificate; the old token ends.

        Returns:
            Where they lie.

        Raises:
            ConfigurationError: There is no such site, or it was revoked; or its kit is a folder here, and an
                archive was asked for.
        """
        with self._taking_turns():
            if member == SERVER:
                self._write_server(self._read_authority())
                return self.folder / SERVER
            self.require_member(member)
            token = self._write_site(self._read_authority(), member, archive=archive, renewed=True)
            self._admit({member: token})
        return self.place_of(member)

    def revoke(self, site: str) -> None:
        """Lets a site no longer join; the server ends its session when it sees its file of tokens changed.

        Raises:
            ConfigurationError: There is no such site, or it is revoked already.
        """
        with self._taking_turns():
            self._require_site(site)
            tokens = self._tokens()
            del tokens[site]
            self._write_tokens(tokens)

    def place_of(self, site: str) -> Path:
        """Returns where a site's kit lies."""
        archive = self.folder / "sites" / f"{site}.zip"
        return archive if archive.exists() else self.folder / "sites" / site

    def _taking_turns(self) -> AbstractContextManager[None]:
        return taking_turns(self.folder / ".lock")

    def _read_authority(self) -> Authority:
        return Authority.read(self._authority / "authority.pem", self._authority / "authority.key")

    def require_member(self, name: str, *, archive: bool = False) -> None:
        """Checks that a name is the server's, or that of a site that may join, which can be renewed.

        Args:
            name: The name.
            archive: Whether a site's kit is to be an archive.

        Raises:
            ConfigurationError: There is no such site, or it was revoked; or its kit is a folder here, and an
                archive was asked for.
        """
        if name != SERVER:
            self._require_site(name)
            if archive:
                self._require_no_folder(name)

    def _require_no_folder(self, site: str) -> None:
        """Checks that no folder would stay beside an archive, with what no longer holds."""
        place = self.folder / "sites"
        if (place / site).exists() and not (place / f"{site}.zip").exists():
            message = f"{place / site} is a folder already; leave --zip out, or move that folder away first"
            raise refused("--zip", message, "exists")

    def _require_site(self, site: str) -> None:
        tokens = self._tokens()
        if site in tokens:
            return
        revoked = site != SERVER and (self._authority / _ISSUED / f"{site}.pem").exists()
        why = "was revoked; let it in again with: fedstrata federation add" if revoked else "is no site here"
        near = "" if revoked else did_you_mean(site, tokens, before="; ")
        message = f"{site!r} {why}{near}"
        raise refused("SITE", message, "revoked" if revoked else "unknown_name")

    def _tokens(self) -> dict[str, str]:
        return read_tokens(self.folder / SERVER / "tokens")

    def _admit(self, tokens: Mapping[str, str]) -> None:
        path = self.folder / SERVER / "tokens"
        self._write_tokens({**(self._tokens() if path.exists() else {}), **tokens})

    def _write_tokens(self, tokens: Mapping[str, str]) -> None:
        lines = [_WHO_MAY_JOIN, *(f"{site} {token}" for site, token in tokens.items())]
        write_files(self.folder / SERVER, {"tokens": "".join(f"{line}\n" for line in lines).encode()})

    def _write_server(self, authority: Authority, listen: str | None = None) -> None:
        """Writes the server's kit; all but its certificate only once, when it is said where it listens."""
        issued = authority.server(self.settings.server.rpartition(":")[0], self.settings.days)
        found = self._credentials(SERVER, authority, issued)
        if listen is not None:
            kit = KitSettings(federation=self.settings.name, listen=listen)
            found |= _described(kit) | _templates(("run.yaml",), SERVER, self.settings)
        write_files(self.folder / SERVER, found)

    def _write_site(self, authority: Authority, site: str, *, archive: bool, renewed: bool = False) -> str:
        """Writes a site's kit, of which a renewal keeps what is the site's own; returns its token."""
        token, place = secrets.token_hex(_TOKEN_BYTES), self.folder / "sites"
        if archive:
            self._require_no_folder(site)
        kit = KitSettings(federation=self.settings.name, client=site, server=self.settings.server)
        found = self._credentials(site, authority, authority.site(site, self.settings.days))
        found |= {"token": f"{token}\n".encode(), **_described(kit)}
        if not renewed:
            found |= _templates(("site.yaml", POLICY), site, self.settings)
        if archive:
            place.mkdir(exist_ok=True)
            write_archive(place / f"{site}.zip", found)
        else:
            (place / f"{site}.zip").unlink(missing_ok=True)  # of before, with a token that no longer holds
            kept = {name for name in found if (place / site / name).exists()} - CREDENTIALS
            write_files(place / site, {name: found[name] for name in found.keys() - kept})
        return token

    def _credentials(self, name: str, authority: Authority, issued: Issued) -> dict[str, bytes]:
        write_files(self._authority / _ISSUED, {f"{name}.pem": issued.certificate})
        return {
            "certificate.pem": issued.certificate,
            "key.pem": issued.key,
            "authority.pem": authority.issued.certificate,
        }


def _described(kit: KitSettings) -> dict[str, bytes]:
    return {SETTINGS: as_document(kit.model_dump(exclude_none=True))}


def _templates(names: Sequence[str], member: str, settings: FederationSettings) -> dict[str, bytes]:
    """Returns the files of a kit that its owner changes, and the page that says how it is used."""
    kind = SERVER if member == SERVER else "site"
    known = {"federation": settings.name, "client": member, "server": settings.server}
    sources = {"README.md": f"{kind}.md", **{name: name for name in names}}
    folder = files("fedstrata.transport") / "kit_files"
    return {
        name: Template((folder / source).read_text(encoding="utf-8"))
        .substitute(known, version=version("fedstrata"))
        .encode()
        for name, source in sources.items()
    }
