"""What a client has of its site's budget in a run: an account, found again by a token in its folder."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import astuple, dataclass
from pathlib import Path

from fedstrata.core.errors import BudgetRefusedError
from fedstrata.core.files import private_folder, write_atomically
from fedstrata.privacy.budgets import budget
from fedstrata.privacy.budgets.events import GAUSSIAN, SKELLAM, MechanismEvent
from fedstrata.privacy.mechanism import Privacy

TOKEN = "budget-account"  # noqa: S105 - a name
"""The file in a client's folder; with the noise of a turn it names the account."""


def turn_of(privacy: Privacy, client: str) -> MechanismEvent:
    """Returns what a turn of a client releases of each of its units."""
    assert privacy.rates is not None  # noqa: S101 - a mechanism has them
    steps = privacy.sigma, privacy.rates[client], privacy.steps
    if (joint := privacy.joint) is None:
        return MechanismEvent(GAUSSIAN, *steps)
    most = joint.rounding.sensitivity
    return MechanismEvent(SKELLAM, *steps, most.l2, most.l1, joint.sharing.sites * joint.rounding.numbers)


def account_id(folder: Path, turn: MechanismEvent, *, make: bool = False) -> str:
    """Returns the id of a client's account; with other noise it is another one.

    Args:
        folder: The client's.
        turn: What its turns release.
        make: Whether to write a token where there is none, durably.

    Raises:
        BudgetRefusedError: There is none, and none is to be made: nothing was reserved.
    """
    path = folder / TOKEN
    if make and not has_account(folder):
        private_folder(folder)
        write_atomically(path, [secrets.token_hex(16).encode()])
    if not has_account(folder):
        message = "nothing is reserved in this site's budget of privacy; no turn begins"
        raise BudgetRefusedError(message, code="not_reserved")
    facts = (path.read_text(encoding="ascii"), *astuple(turn))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def has_account(folder: Path) -> bool:
    """Whether a client has asked its site's budget for a run.

    Args:
        folder: The client's.
    """
    return (folder / TOKEN).exists()


@dataclass(frozen=True, slots=True)
class TurnAccount:
    """Where a turn is taken down that a site's budget pays for.

    Attributes:
        path: The budget.
        id: The account.
    """

    path: Path
    id: str

    @classmethod
    def of(cls, privacy: Privacy, client: str, folder: Path) -> TurnAccount | None:
        """Returns that of a client; none without a budget.

        Raises:
            BudgetRefusedError: Nothing was reserved.
        """
        if (own := privacy.settings.bounded_by) is None:
            return None
        return cls(Path(own.path), account_id(folder, turn_of(privacy, client)))

    def begin(self) -> None:
        """Takes down that the turn begins (`fedstrata.privacy.budgets.budget.begin`)."""
        budget.begin(self.path, self.id)

    def commit(self) -> None:
        """Takes down that its update may be sent (`fedstrata.privacy.budgets.budget.commit`)."""
        budget.commit(self.path, self.id)
