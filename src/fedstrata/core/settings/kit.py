"""What `kit.yaml` and `federation.yaml` say: names and addresses of a federation's server and sites."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, StringConstraints

from fedstrata.core.settings.base import Count, Settings

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""Of what names a folder, stands in a certificate, and in a line of a file of tokens."""
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


class KitSettings(Settings):
    """A kit: a site's names its client and where it calls; the server's, where it listens."""

    federation: Name = Field(description="The name of the federation.")
    client: Name | None = Field(default=None, description="The site that the kit is for; none: the server.")
    server: str | None = Field(default=None, description="Where the site calls the server, `HOST:PORT`.")
    listen: str | None = Field(default=None, description="Where the server listens, `HOST:PORT`.")

    def _misfits(self) -> Iterator[str]:
        site, server = self.client is not None, self.server is not None
        if site != server or server == (self.listen is not None):
            yield "a site's kit has client and server, the server's has listen, and no kit has all three"


class FederationSettings(Settings):
    """What the kits of a federation have in common."""

    name: Name
    server: str = Field(description="Where sites call the server, `HOST:PORT`.")
    days: Count = Field(description="Days for which a certificate holds.")
