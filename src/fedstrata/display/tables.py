"""Lines and tables as the verbs print them. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table


def say(console: Console, message: str) -> None:
    """Prints one line as it is: nothing in it is markup, and none of it is coloured or broken."""
    console.print(message, highlight=False, markup=False, soft_wrap=True)


def new_table(
    title: str,
    headings: Iterable[str],
    *,
    overflow: Literal["ellipsis", "fold"] = "ellipsis",
    box: Box | None = None,
) -> Table:
    """Returns a table without rows: names at the left, what stands under all other headings at the right.

    Args:
        title: Its title.
        headings: The heading of each column; a line break in one is kept.
        overflow: What becomes of a word that is wider than its column.
        box: Which lines are drawn; rich's usual ones if none.
    """
    from rich.box import HEAVY_HEAD  # noqa: PLC0415 - heavy
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=Text(title), box=box or HEAVY_HEAD)
    for number, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if number else "left", overflow=overflow)
    return table
