"""`federation.lock`: the sites that a site sums with, and the public half of each one's identity.

A site writes its own from the others' public halves, after comparing fingerprints with their people by
another channel. No message changes it: a server that could would put sites of its own in.

    version: 1
    sites:
      north: ed25519:5866666666666666666666666666666666666666666666666666666666666666  # its fingerprint
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml.error import YAMLError

from fedstrata.core.errors import Problem, did_you_mean, refuse, refused
from fedstrata.core.files import bytes_in, write_atomically
from fedstrata.core.settings.privacy import MOST_KNOWN_SITES
from fedstrata.core.settings.yaml import plain_values, shortened, told
from fedstrata.privacy.identity import KIND, PUBLIC_BYTES, fingerprint, public_text

SITE_PATTERN = r"^[^\x00-\x1f\x7f]{1,128}$"
"""Of a site's name: 1 to 128 characters, none of them a control character."""
_VERSION = 1
_KEYS = ("version", "sites")
_PUBLIC = re.compile(rf"{KIND}[0-9a-f]{{{2 * PUBLIC_BYTES}}}")
_HEAD = (
    "# Whom this site sums with. Written by the site itself; compare every fingerprint by another channel.\n"
)

Lock = Mapping[str, bytes]
"""The public half of each site's identity, (32,) bytes, by the site's name."""


def read_lock(path: Path) -> Lock:
    """Reads a lock.

    Raises:
        ConfigurationError: It cannot be read, or is not what it has to be; with all that is wrong.
    """
    try:
        values = plain_values(bytes_in(path), str(path))
    except (YAMLError, UnicodeDecodeError) as error:
        message, code = (
            (told(error), "not_yaml") if isinstance(error, YAMLError) else ("it is no UTF-8", "not_utf8")
        )
        raise refused("", f"{path}: {message}", code) from None
    if not isinstance(values, dict) or not isinstance(values.get("sites"), dict):
        raise refused("", f"{path} is no federation lock: it has no `sites`", "missing")
    problems = [
        Problem(
            "", f"{path}: {key!r} is not known{did_you_mean(key, _KEYS, before='; ')}", code="unknown_key"
        )
        for key in values
        if key not in _KEYS
    ]
    if type(values.get("version")) is not int or values["version"] != _VERSION:
        found = shortened(values.get("version"))
        problems.append(
            Problem("", f"{path}: version must be {_VERSION}, not {found}", code="unknown_version")
        )
    refuse([*problems, *_problems(values["sites"], str(path))])
    return MappingProxyType(
        {site: bytes.fromhex(public.removeprefix(KIND)) for site, public in values["sites"].items()}
    )


def lock_of(named: Sequence[str]) -> Lock:
    """Returns what a command line says of sites, each as `NAME=PUBLIC`.

    Raises:
        ConfigurationError: A site's name or public half is not what it has to be, or two have the same; with
            all that is wrong.
    """
    pairs = [text.rpartition("=") for text in named]
    problems = [
        Problem("NAME=PUBLIC", f"{shortened(text)} has no name", code="missing")
        for text in named
        if "=" not in text
    ]
    texts = {site: public for site, equals, public in pairs if equals}
    problems += [
        Problem(
            "NAME=PUBLIC", f"site {shortened(site)} is named {count} times; once is enough", code="duplicate"
        )
        for site, count in Counter(site for site, equals, _ in pairs if equals).items()
        if count > 1
    ]
    refuse([*problems, *_problems(texts, "NAME=PUBLIC")])
    return {site: bytes.fromhex(public.removeprefix(KIND)) for site, public in texts.items()}


def write_lock(path: Path, sites: Lock) -> None:
    """Writes a lock; it appears complete or not at all.

    Args:
        path: The file; what was there before is replaced.
        sites: The public half of each, this site's own included.

    Raises:
        ConfigurationError: A site's name or public half is not what it has to be, or two have the same.
    """
    texts = {site: public_text(public) for site, public in sites.items()}
    refuse(_problems(texts, str(path)))
    lines = [f"{_quoted(site)}: {text}  # {fingerprint(sites[site])}" for site, text in sorted(texts.items())]
    text = "".join([_HEAD, f"version: {_VERSION}\nsites:\n", *(f"  {line}\n" for line in lines)])
    write_atomically(path, [text.encode()])


def _quoted(site: str) -> str:
    """Returns a name as YAML reads it back, whatever it is (`off`, `1`, `a: b`)."""
    return "'" + site.replace("'", "''") + "'"


def _problems(sites: Mapping[Any, Any], path: str) -> list[Problem]:
    """Returns all that is wrong with the sites of a lock."""
    told_of: list[tuple[str, str]] = []
    if len(sites) > MOST_KNOWN_SITES:
        return [
            Problem(
                "",
                f"{path} names {len(sites)} sites; at most {MOST_KNOWN_SITES} are read",
                code="out_of_range",
            )
        ]
    holders: dict[str, list[str]] = defaultdict(list)
    for site, public in sites.items():
        if not re.fullmatch(SITE_PATTERN, site):
            message = f"{shortened(site)} is no name of a site: 1 to 128 printable characters"
            told_of.append((message, "wrong_form"))
        if not isinstance(public, str) or not _PUBLIC.fullmatch(public):
            message = (
                f"site {shortened(site)}: {shortened(public)} is no public half of an identity, which has "
                f"{2 * PUBLIC_BYTES} hexadecimal digits after {KIND}"
            )
            told_of.append((message, "no_identity"))
        else:
            holders[public].append(site)
    told_of += [
        (f"sites {', '.join(names)} have the same public half; each makes its own identity", "duplicate")
        for names in holders.values()
        if len(names) > 1
    ]
    return [Problem("", f"{path}: {message}", code=code) for message, code in told_of]
