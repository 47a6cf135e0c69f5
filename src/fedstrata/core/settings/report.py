"""The settings of what a run says of its data."""

from typing import Literal

from pydantic import Field

from fedstrata.core.settings.base import Settings

SMALL = 5
"""Counts from 1 to below this are small: they may point at single people."""


class ReportSettings(Settings):
    """What a run's record and report say of the data."""

    small_counts: Literal["auto", "hide", "show"] = Field(
        default="auto",
        description="Write counts of documents, patients and annotations below 5 as they are (`show`) or "
        "as `< 5` (`hide`). `auto` hides them when clients run on separate machines and shows them in a "
        "simulation.",
    )

    def hides(self, *, served: bool) -> bool:
        """Whether small counts are hidden.

        Args:
            served: Whether clients are processes of their own.
        """
        return served if self.small_counts == "auto" else self.small_counts == "hide"


def shown(count: int, *, hide: bool) -> int | None:
    """Returns a count as it may be written: none where it is small and hidden.

    >>> shown(3, hide=True), shown(3, hide=False), shown(0, hide=True), shown(5, hide=True)
    (None, 3, 0, 5)
    """
    return None if hide and 0 < count < SMALL else count
