"""What a site says of itself in its own startup kit; no job can say or see it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.base import Count, Positive, Settings
from fedstrata.core.settings.source import read_source, validate

SITE = "fedstrata.yaml"
"""The file, in the folder `local` of a site's kit."""


class SiteSettings(Settings):
    """What `fedstrata join` takes as options; relative paths begin at the kit."""

    configuration: str = Field(
        description="The site's own configuration: its documents, its device, its cache."
    )
    home: str = Field(
        default="fedstrata-client", description="The folder for what this client keeps between rounds."
    )
    identity: str | None = Field(
        default=None, description="This site's identity (fedstrata keys new), for secure aggregation."
    )
    lock: str | None = Field(default=None, description="Whom this site sums with (fedstrata keys lock).")
    policy: str | None = Field(
        default=None, description="What this site allows, YAML; a run that asks for more is refused."
    )
    allow_without: list[str] = Field(
        default=[],
        description="Sites of which the server may learn a single update: a masked sum without them is "
        "accepted over a model that was summed with them before.",
    )
    runs: Count = Field(
        default=1,
        description="How many runs its people have accepted, one after the other; raised by one for each new "
        "run, on which the people of the federation agree.",
    )
    deadline: Positive = Field(
        default=600.0, description="Seconds to wait for an answer before the server is given up."
    )
    reconnect: Positive = Field(
        default=600.0, description="Seconds for the server to come back after a connection broke."
    )
    keepalive: Positive = Field(default=5.0, description="Seconds between signs of life of a connection.")

    @classmethod
    def read(cls, kit: Path) -> SiteSettings:
        """Reads what the site of a kit says.

        Raises:
            ConfigurationError: It cannot be read, or says what there is not; all such problems at once.
        """
        source = read_source(kit / "local" / SITE, [])
        found, problems = validate(cls, source)
        if found is None:
            raise ConfigurationError(problems)
        return found
