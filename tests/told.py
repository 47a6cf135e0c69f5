"""What commands tell of what is wrong: by where it is, its code and the values in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from support import refused

from fedstrata.core.errors import FedstrataError


def assert_told(
    text: str, code: str, *, at: str = "", values: Sequence[object] = (), origin: str | None = None
) -> None:
    """Holds that a command told of a problem with these values, on one line; `at` may be any place."""
    end = r"(?:, from .*)?" if origin is None else f", from {re.escape(origin)}"
    lines = [line for line in text.splitlines() if re.search(rf"  \[{code}{end}\]$", line)]
    found = [line for line in lines if not at or line.startswith(f"  - {at}: ")]
    assert any(all(str(value) in line for value in values) for line in found), (at, code, values, text)


def assert_refused(
    error: BaseException | None,
    kind: type[FedstrataError] | tuple[type[FedstrataError], ...],
    code: str,
    *,
    at: str | None = None,
    values: Sequence[object] = (),
) -> None:
    """Holds that an error that a command has ended with is of a kind, and has a code: `support.refused`."""
    assert isinstance(error, kind)
    with refused(type(error), code, at=at, values=values):
        raise error
