"""What the rows of a budget's tables can hold, checked as they are read: the file may have been changed.

What is none of it would be composed to no figure, or to a wrong one, so that the budget counts as damaged:
errors are those of a file that SQLite cannot read.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedstrata.core.errors import printable
from fedstrata.core.settings.privacy import MOST_STEPS
from fedstrata.privacy.budgets.events import SKELLAM

_Turns = Annotated[int, Field(ge=0, lt=2**31)]
_Size = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


def _number(text: str) -> str:
    if not 0.0 < float(text) < math.inf:
        raise ValueError("it must be a number above 0")
    return text


def _probability(text: str) -> str:
    if not 0.0 < float(text) < 1.0:
        raise ValueError("it must be between 0 and 1")
    return text


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class AccountRow(_Row):
    """A row of `accounts`, by its columns; see `accounts.Account` and `events.MechanismEvent`."""

    id: str
    run: str
    client: str
    opened: str
    cohort: bytes
    reserved: _Turns
    begun: _Turns
    committed: _Turns
    ended: Annotated[int, Field(ge=0, le=1)]
    kind: Literal["gaussian", "skellam"]
    sigma: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    rate: Annotated[float, Field(gt=0.0, le=1.0)]
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)]
    l2: _Size
    l1: _Size
    numbers: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.committed > self.begun:
            raise ValueError("more turns committed than begun")
        if self.kind == SKELLAM and not (0.0 < self.l2 <= self.l1 and self.numbers):
            raise ValueError("skellam noise without 0 < l2 <= l1, or of no numbers")
        return self


class MemberRow(_Row):
    """A row of `members`: a unit and a cohort that it is in."""

    cohort: bytes
    unit: bytes


class TermRows(_Row):
    """All rows of `terms`, by name, as texts; see `budget.Terms`."""

    unit: Literal["patient", "document"]
    delta: Annotated[str, AfterValidator(_probability)]
    key: str
    named_by: Literal["site", "name"]
    epsilon: Annotated[str, AfterValidator(_number)]


RowType = TypeVar("RowType", bound=_Row)


def checked(kind: type[RowType], row: Mapping[str, Any], what: str) -> RowType:
    """Returns a row.

    Args:
        kind: What it has to be.
        row: What was read.
        what: Names it, in an error.

    Raises:
        sqlite3.DataError: It is not that; the message says why.
    """
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[0]
        column = f"{found['loc'][0]} {found['input']!r:.60}: " if found["loc"] else ""
        raise sqlite3.DataError(printable(f"{what} has {column}{found['msg']}", 200)) from None
