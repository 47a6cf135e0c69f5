"""What stands in place of the figures of a report, whose drawing is nearly all of a report's time."""

from __future__ import annotations

from typing import Any

import pytest
from markupsafe import Markup

FIGURES = ("curves", "points", "bars", "dots", "ranges", "stacks", "heat_map", "swatch")


def named(key: Any, title: Any = None, *_: Any, **__: Any) -> Markup:
    """An empty figure, with its title where it has one."""
    name = title if isinstance(title, str) else ""
    return Markup('<svg aria-label="{}"><title>{}</title></svg>').format(name, name)


def draw_only(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Draws no figures but those; the others have their names alone."""
    for name in {*FIGURES} - {*kinds}:
        monkeypatch.setattr(f"fedstrata.record.report.plots.{name}", named)
