"""What `kit.yaml` and `federation.yaml` say: names and addresses of a federation's server and sites."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, StringConstraints

from fedstrata.core.errors import SettingError
from fedstrata.core.settings.base import Count, Settings

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""Of what names a folder, stands in a certificate, and in a line of a file of tokens."""
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
MOST_DAYS = 3650
"""For which a certificate holds, and its authority's."""
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_PATTERN = rf"{_LABEL}(\.{_LABEL})*"
_LONGEST_HOST = 253
"""Characters of a name, as name servers have it."""


class KitSettings(Settings):
    """A kit: a site's names its client and where it calls; the server's, where it listens."""

    federation: Name = Field(description="Name of the federation.")
    client: Name | None = Field(default=None, description="Site of the kit; not set in the server's kit.")
    server: str | None = Field(default=None, description="Address of the server, `HOST:PORT`.")
    listen: str | None = Field(default=None, description="Address that the server listens on, `HOST:PORT`.")

    def _misfits(self) -> Iterator[SettingError]:
        site, server = self.client is not None, self.server is not None
        if site != server or server == (self.listen is not None):
            yield SettingError(
                "a site's kit has client and server, the server's has listen, and no kit has all three",
                "conflict",
            )


class FederationSettings(Settings):
    """What the kits of a federation have in common."""

    name: Name
    server: str = Field(description="Address of the server, `HOST:PORT`.")
    days: Count = Field(le=MOST_DAYS, description="Validity of certificates in days.")

    def _misfits(self) -> Iterator[SettingError]:
        if fault := address_fault(self.server):
            yield SettingError(f"server {fault}", "wrong_form")


def address_fault(address: str) -> str:
    """Says why sites cannot call an address, or its host cannot stand in a certificate; empty if they can."""
    host, _, port = address.rpartition(":")
    if is_port(port) and int(port) and _can_be_called(host):
        return ""
    allowed = "HOST:PORT, a name in ASCII or a number ([::1] of IPv6) that sites call, a port up to 65535"
    return f"must be {allowed}, not {address!r:.80}"


def is_port(text: str) -> bool:
    """Whether a text is the number of a port; 0 stands for any that is free."""
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and int(text) < 2**16


def _can_be_called(host: str) -> bool:
    try:
        number = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return len(host) <= _LONGEST_HOST and re.fullmatch(_HOST_PATTERN, host) is not None
    return not number.is_unspecified and (number.version == 6) == (host != host.strip("[]"))
