"""The errors fedstrata raises on purpose, and the exit status each one means.

A message names the value, what is allowed and where the value was set. It never contains the text of a note.
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DROPPED_OUT = "DroppedOut"
"""Stands in the record, where an error's name would, for a client that `federation.dropout` took."""


class TrainedOnWarning(UserWarning):
    """A model is used or scored on documents that it was trained on; the message has their number."""


class FedstrataError(Exception):
    """Something failed while running; the message says what and what can be done.

    Args:
        args: The message.
        code: What is wrong, as programs tell it (`fedstrata.core.error_codes`); that of the class if none.

    Attributes:
        code: As given.
    """

    exit_status = 1
    code = "failed"

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets any of them be raised in another process, whatever its `__init__` takes."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class TrainingError(FedstrataError):
    """Training failed, a client's or as a whole, for example because a loss is no longer a number."""

    code = "training_failed"


class ClientsLostError(FedstrataError):
    """Too few clients of a round can deliver; the message says which failed, why, and how to go on."""

    code = "clients_lost"


class FrameError(FedstrataError):
    """A frame is cut short, malformed, or does not hold what was agreed."""

    code = "malformed_frame"


class BudgetSpentError(FedstrataError):
    """A client has spent all the privacy that its noise allows for."""

    code = "budget_spent"


class BudgetRefusedError(BudgetSpentError):
    """A site's budget over all runs does not allow something, or cannot be read.

    The server hears the message, so it says nothing of the budget.
    """

    code = "budget_refused"


class NotReleasedError(FedstrataError):
    """A method would send, under differential privacy, what no private training has released."""

    code = "not_released"


class NothingReleasedError(NotReleasedError):
    """A method would send tensors of a turn in which no private training has released any."""

    code = "nothing_released"


class PolicyRefusedError(FedstrataError):
    """A site's policy does not allow what a plan asks for.

    The server hears the message, so it says nothing of the policy.
    """

    code = "policy_refused"


class StepLostError(FedstrataError):
    """The server of a split model no longer has what the backward pass of a step needs; run it again."""

    code = "step_lost"


class SessionLostError(FedstrataError):
    """The server of a split model no longer has the keys and values of a session; open it again."""

    code = "session_lost"


class SessionTooLargeError(FedstrataError):
    """One session of a split model alone needs more memory than the server gives all of them."""

    code = "session_too_large"


class LineError(FedstrataError):
    """Client and server of a conversation can no longer reach each other, or one waits in vain."""

    code = "line_lost"


class SessionOverError(LineError):
    """The other side no longer knows the session of a line: what was under way is lost, another may begin."""

    code = "session_over"


class RefusedError(FedstrataError):
    """One side of a conversation does not accept the other: who it is, or what it holds."""

    exit_status = 2
    code = "refused"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
        path: Dotted path of the setting, for example `method.top`.
        message: What is wrong: the value, and what is allowed.
        origin: Where the value was set, for example `demo.yaml, line 12`; empty if nowhere in particular.
        code: What is wrong, as programs tell it (`fedstrata.core.error_codes`).
    """

    path: str
    message: str
    origin: str = ""
    code: str = field(kw_only=True)

    def __str__(self) -> str:
        where = f", from {self.origin}" if self.origin else ""
        shown = f"{self.message}  [{self.code}{where}]"
        return f"{self.path}: {shown}" if self.path else shown


def did_you_mean(name: str, allowed: Iterable[str], *, before: str = "") -> str:
    """Returns the question whether the allowed name nearest to this one is meant; empty if none is near.

    Args:
        name: What was given.
        allowed: What could have been.
        before: What comes before the question, if there is one.
    """
    near = difflib.get_close_matches(name, list(allowed), n=1)
    return f"{before}did you mean {near[0]!r}?" if near else ""


def printable(text: str, most: int = 500) -> str:
    """Returns what another machine said as a terminal may show it: no control characters, and not endless."""
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:most])
    return shown if len(text) <= most else f"{shown} ..."


class SettingError(ValueError):
    """A value is wrong: of a setting, as its validator finds it, or of a record or line of a file.

    Args:
        message: What is wrong, and what is allowed.
        code: What is wrong, as programs tell it.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class SettingErrors(ValueError):  # noqa: N818 - several of one section
    """Values of one section do not go together.

    Args:
        errors: All that is wrong, at least one.
    """

    def __init__(self, errors: Sequence[SettingError]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors
        self.code = errors[0].code


class ConfigurationError(FedstrataError):
    """The configuration or its input is wrong; nothing was started.

    Args:
        problems: Every problem that was found, never only the first.

    Attributes:
        code: That of the first problem.
    """

    exit_status = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__(
            "\n".join([f"{head} in the configuration:", *(f"  - {item}" for item in self.problems)]),
            code=self.problems[0].code if self.problems else None,
        )


class PolicyError(ConfigurationError):
    """A run asks for more than a site's policy allows."""


def refuse_by_policy(problems: Iterable[Problem]) -> None:
    """Raises what of a run a site's policy does not allow, if anything.

    Raises:
        PolicyError: Something is not allowed.
    """
    if wrong := list(problems):
        raise PolicyError(wrong)


def refused(setting: str, message: str, code: str) -> ConfigurationError:
    """Returns the error for one wrong setting, option or file.

    Args:
        setting: Its dotted path or its name; empty if it has none.
        message: What is wrong: the value, and what is allowed.
        code: What is wrong, for programs (`fedstrata.core.error_codes`).
    """
    return ConfigurationError([Problem(setting, message, code=code)])


def refuse(problems: Sequence[Problem]) -> None:
    """Raises what is wrong with a configuration, if anything is.

    Raises:
        ConfigurationError: Something is.
    """
    if problems:
        raise ConfigurationError(problems)


class DataError(FedstrataError):
    """An input file does not hold what its format says.

    Args:
        path: The file.
        message: What was found there, without quoting the text of a note.
        line: The line number, counted from 1, where there is one.
        expected: What the format allows in this place.
        code: As for any of our errors.
    """

    exit_status = 2
    code = "malformed_data"

    def __init__(
        self,
        path: Path | str,
        message: str,
        *,
        line: int | None = None,
        expected: str = "",
        code: str | None = None,
    ) -> None:
        self.path, self.line, self.expected = Path(path), line, expected
        where = f"{path}, line {line}" if line is not None else f"{path}"
        tail = f" (expected {expected})" if expected else ""
        super().__init__(f"{where}: {message}{tail}", code=code)

    @property
    def each(self) -> tuple[DataError, ...]:
        """The errors of all files."""
        return (self,)


class ManyDataError(DataError):
    """Several input files do not hold what their format says.

    Args:
        errors: What is wrong with each, at least one.
    """

    def __init__(self, errors: Sequence[DataError]) -> None:
        first = errors[0]
        super().__init__(first.path, "", line=first.line, expected=first.expected, code=first.code)
        self._errors = tuple(errors)
        self.args = ("\n".join([f"{len(errors)} files are wrong:", *(f"  - {error}" for error in errors)]),)

    @property
    def each(self) -> tuple[DataError, ...]:
        """The errors of all files."""
        return self._errors


def require_sound(errors: Sequence[DataError]) -> None:
    """Raises what is wrong with some files, if anything is.

    Raises:
        DataError: Something is; `ManyDataError` where more than one file is wrong.
    """
    if errors:
        raise errors[0] if len(errors) == 1 else ManyDataError(errors)
