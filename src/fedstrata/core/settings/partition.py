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
        description="A client is a site; or documents are dealt: at random (`iid`), with skewed labels "
        "(`dirichlet`, and `dirichlet_equal` for clients of equal size) or sizes (`quantity`), by a budget "
        "of words (`tokens`), or by their dominant type or speciality (`speciality`).",
    )
    clients: Count | None = Field(
        default=None, description="Number of clients; the number of sites when by site."
    )
    alpha: Positive = Field(
        default=1.0,
        description="Concentration of `dirichlet`, `dirichlet_equal` (times each label's share) and "
        "`quantity`: smaller is more skewed.",
    )
    lean: Fraction = Field(
        default=0.8, description="Chance that a document goes to the client of its kind (`speciality`)."
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
