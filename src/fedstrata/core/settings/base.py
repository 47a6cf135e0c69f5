"""What every part of the configuration is built from: the strict base class and common kinds of values."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fedstrata.core.errors import SettingError, SettingErrors

Fraction = Annotated[float, Field(gt=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Part = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A share that may be none and is never all."""
Count = Annotated[int, Field(ge=1)]


def _distinct(names: list[str]) -> list[str]:
    """Returns names in their order in the alphabet: those of classes have no other."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise SettingError(f"names {twice[0]!r} twice", "duplicate")
    return sorted(names)


Classes = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)] | Literal["auto"]
"""All types or labels that are learnt; or those that documents have."""


class Settings(BaseModel):
    """Base of every part of the configuration: strict, finite, frozen, unknown keys refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if misfits := list(self._misfits()):
            raise SettingErrors(misfits)
        return self

    def _misfits(self) -> Iterator[SettingError]:
        """Yields why values do not go together that are right each by itself."""
        yield from ()


def idle_settings(
    settings: Settings, choice: str, owners: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """Returns the settings that belong to other choices than the one that was made, and were set.

    Args:
        settings: A section.
        choice: What was chosen in it.
        owners: The choices that each of its settings belongs to.
    """
    fields = type(settings).model_fields
    return {
        name: choices
        for name, choices in owners.items()
        if choice not in choices and getattr(settings, name) != fields[name].default
    }
