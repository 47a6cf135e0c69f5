"""The settings by which documents come to clients."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from fedstrata.core.errors import SettingError
from fedstrata.core.settings.base import Count, Fraction, Positive, Settings, idle_settings


class PartitionSettings(Settings):
    """How documents come to clients."""

    by: Literal["site", "iid", "dirichlet", "dirichlet_equal", "quantity", "tokens", "speciality"] = Field(
        default="site",
        description="`site`: each site is a client. Otherwise documents are assigned to clients: at "
        "random (`iid`), with skewed labels (`dirichlet`; `dirichlet_equal` for clients of equal size) or "
        "skewed sizes (`quantity`), by a word budget (`tokens`), or by their dominant entity type or "
        "specialty (`speciality`).",
    )
    clients: Count | None = Field(default=None, description="Number of clients; not set with `site`.")
    alpha: Positive = Field(
        default=1.0,
        description="Concentration parameter of `dirichlet`, `dirichlet_equal` (times the frequency of "
        "each label) and `quantity`; smaller values are more skewed.",
    )
    lean: Fraction = Field(
        default=0.8,
        description="Probability that a document goes to the client of its specialty (`speciality`).",
    )

    def _misfits(self) -> Iterator[SettingError]:
        if self.by != "site" and self.clients is None:
            yield SettingError(
                f"clients must be set (1 or more) when documents are partitioned by {self.by!r}", "missing"
            )
        owners = {"alpha": ("dirichlet", "dirichlet_equal", "quantity"), "lean": ("speciality",)}
        fields = type(self).model_fields
        for name, rules in idle_settings(self, self.by, owners).items():
            value = f"{name}={getattr(self, name):g}"
            yield SettingError(
                f"{value} has no meaning when documents are partitioned by {self.by!r}; it belongs "
                f"to {' or '.join(map(repr, rules))}: leave it out, or at {fields[name].default}",
                "no_effect",
            )
