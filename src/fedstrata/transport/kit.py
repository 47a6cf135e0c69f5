"""A kit: the folder with all that a federation's server, or one of its sites, needs to speak with the others.

| file | of a site | of the server |
|---|---|---|
| `kit.yaml` | federation, client, server | federation, listen |
| `certificate.pem`, `key.pem` | its certificate, and the key of it | the same |
| `authority.pem` | who signed the other side's certificate | the same |
| `token`, `tokens` | its own | those of all sites |
| `site.yaml`, `run.yaml` | where its documents are | what is to be trained |
| `policy.yaml` | what the site allows | |
| `site.identity`, `federation.lock` | made at the site, for secure aggregation | |
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from fedstrata.core.errors import ConfigurationError, refused
from fedstrata.core.files import bytes_in, new_folder, write_atomically
from fedstrata.core.settings.kit import KitSettings
from fedstrata.core.settings.source import read_source, validate

SETTINGS, POLICY, IDENTITY, LOCK = "kit.yaml", "policy.yaml", "site.identity", "federation.lock"
SECRETS = frozenset({"key.pem", "token", "tokens"})
"""Files that nobody but their owner may read."""
CREDENTIALS = SECRETS | {SETTINGS, "certificate.pem", "authority.pem"}
"""What a renewal replaces; all else is the owner's once it has the kit."""
OWNERS = frozenset({"site.yaml", "run.yaml", POLICY, "README.md"})
_MOST_BYTES = 2**20
"""Of a file of a kit."""
_COMPRESSED = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_MODE = 0o700
"""Of a kit's folder: a site keeps there what it learns, too."""


@dataclass(frozen=True)
class Kit:
    """A kit that lies in a folder.

    Attributes:
        folder: The folder.
        settings: What `kit.yaml` says.
    """

    folder: Path
    settings: KitSettings

    @classmethod
    def read(cls, folder: Path) -> Kit:
        """Reads a kit.

        Raises:
            ConfigurationError: There is none, or what it says of itself is wrong; all such problems at once.
        """
        source = read_source(folder / SETTINGS, [])
        settings, problems = validate(KitSettings, source)
        if settings is None:
            raise ConfigurationError(problems)
        return cls(folder, settings)

    def file(self, name: str) -> Path | None:
        """Returns a file of the kit; none if it is not there."""
        path = self.folder / name
        return path if path.exists() else None


def is_kit(path: Path) -> bool:
    """Whether a path names a kit: its folder, its `kit.yaml`, or the archive that it came in."""
    return path.name == SETTINGS or path.suffix == ".zip" or (path / SETTINGS).is_file()


def open_kit(path: Path) -> Kit:
    """Returns the kit that a path names; an archive is unpacked beside itself first, once.

    Raises:
        ConfigurationError: It is no kit, or a renewal of one, or the folder that it would be unpacked to is
            there already.
    """
    if path.suffix != ".zip":
        return Kit.read(path.parent if path.name == SETTINGS else path)
    folder = path.with_suffix("")
    if folder.exists():
        message = f"{folder} is there already, so {path.name} is not unpacked again: name {folder}"
        hint = f"of a renewed kit, first: unzip -o {path} -d {folder}"
        raise refused("", f"{message} ({hint})", "exists")
    files = _unpacked(path)
    if POLICY not in files:  # and neither would the folder have an identity and a lock
        message = f"{path} renews a kit, and is none by itself: unzip -o {path} -d FOLDER, that of the kit"
        raise refused("", message, "wrong_kit")
    with new_folder(folder) as made:
        made.chmod(_MODE)
        write_files(made, files)
    return Kit.read(folder)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files of a kit; each appears complete or not at all, and secrets for their owner alone."""
    folder.mkdir(mode=_MODE, parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, [content], mode=0o600 if name in SECRETS else 0o644)


def write_archive(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes files of a kit as a ZIP archive, which its owner alone may read."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | (0o600 if name in SECRETS else 0o644)) << 16
            archive.writestr(entry, content)
    write_atomically(path, [buffer.getbuffer()], mode=0o600)


def _unpacked(path: Path) -> dict[str, bytes]:
    """Returns the files in an archive: those that a kit has, and none besides.

    Raises:
        ConfigurationError: It cannot be read, or holds something else.
    """
    try:
        with zipfile.ZipFile(BytesIO(bytes_in(path))) as archive:
            entries = archive.infolist()
            wrong = next((each for each in entries if each.filename not in CREDENTIALS | OWNERS), None)
            if wrong is not None or SETTINGS not in archive.namelist():
                what = f"it holds {wrong.filename!r:.60}" if wrong else f"there is no {SETTINGS} in it"
                code = "unknown_name" if wrong else "missing"
                raise refused("", f"{path} is no kit: {what}", code)
            if len(entries) > len({each.filename for each in entries}):
                raise refused("", f"{path} is no kit: a file is in it twice", "duplicate")
            if other := next((each for each in entries if each.compress_type not in _COMPRESSED), None):
                how = f"{other.filename} is packed as no kit's files are"
                raise refused("", f"{path} is no kit: {how}", "not_supported")
            return {each.filename: _content(archive, each, path) for each in entries}
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError, zlib.error):
        raise refused("", f"{path} is no ZIP archive that is whole", "damaged") from None


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bytes:
    """Returns a file of an archive, of which no more is unpacked than a kit's may have, whatever it says."""
    with archive.open(entry) as file:
        content = file.read(_MOST_BYTES + 1)
    if max(entry.file_size, len(content)) > _MOST_BYTES:
        message = f"{path} is no kit: {entry.filename} is too large"
        raise refused("", message, "too_large")
    return content
