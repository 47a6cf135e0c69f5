"""What the pages share: the templates and how numbers are written."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedstrata.record.words import (
    ABSENT,
    count,
    duration,
    energy,
    epsilon,
    limited_to,
    plural,
    score,
    size,
    visible,
)

MEGABYTE = 1e6
_TIMES = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}


def time_unit(seconds: float) -> tuple[str, float]:
    """Returns the unit of an axis that ends here, and its seconds.

    >>> time_unit(90.0), time_unit(300.0), time_unit(9000.0)
    (('seconds', 1.0), ('minutes', 60.0), ('hours', 3600.0))
    """
    name = "seconds" if seconds < 120.0 else "minutes" if seconds < 7200.0 else "hours"
    return name, _TIMES[name]


def render(template: str, **values: Any) -> str:
    """Returns a page; every value is escaped."""
    return visible(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedstrata.record.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["limited_to"] = limited_to
    environment.filters |= {
        "score": score,
        "percent": _percent,
        "size": size,
        "duration": duration,
        "energy": energy,
        "epsilon": epsilon,
        "plural": plural,
        "count": count,
        "broken": _broken,
        "moment": _moment,
    }
    return environment


def _percent(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1f} %"


def _moment(time: str) -> str:
    """Returns an ISO 8601 time to the second, as people write it."""
    return time[:19].replace("T", " ")


def _broken(name: str) -> Markup:
    """Returns a name that may be broken behind its underscores."""
    return Markup("_<wbr>").join(name.split("_"))
