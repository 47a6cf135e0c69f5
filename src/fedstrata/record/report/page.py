"""What the pages share: the templates and how numbers are written."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.filesize import decimal

MEGABYTE = 1e6
ABSENT = "-"
"""What stands for a number there is none of."""


def render(template: str, **values: Any) -> str:
    """Returns a page; every value is escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedstrata.record.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "score": _score,
        "percent": _percent,
        "size": _size,
        "duration": _duration,
        "plural": _plural,
        "moment": _moment,
    }
    return environment


def _score(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4f}"


def _size(value: float | None) -> str:
    return ABSENT if value is None else decimal(round(value))


def _duration(seconds: float | None) -> str:
    """Returns seconds as people say them: `0.4 s`, `42 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return ABSENT
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _percent(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1f} %"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _moment(time: str) -> str:
    """Returns an ISO 8601 time to the second, as people write it."""
    return time[:19].replace("T", " ")
