"""What a run has of the sites' budgets: reserved before anything is computed, and ended with the run.

In a simulation all clients share one file, so a patient at several of them is seen to be, and what they
release of that patient is composed. A client that is a process of its own knows its own file alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstrata.client.accounts import account_id, has_account, turn_of
from fedstrata.client.site import Site
from fedstrata.client.store import client_folder
from fedstrata.client.turn import Workplace
from fedstrata.core.errors import BudgetRefusedError, ConfigurationError, refused
from fedstrata.core.files import private_folder
from fedstrata.core.settings.policy import SitePolicy
from fedstrata.core.settings.privacy import MOST_EPSILON, BudgetSettings
from fedstrata.data.split import units_of
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.privacy import budget_terms
from fedstrata.engine.sites import sites_of
from fedstrata.privacy.budgets import budget
from fedstrata.privacy.budgets.accounts import Request
from fedstrata.privacy.budgets.events import composed
from fedstrata.privacy.budgets.pseudonyms import PseudonymKey, key_of
from fedstrata.privacy.mechanism import Privacy
from fedstrata.record.log import Listener

BUDGET = "budget.db"
"""A file in the home of a site: the budget over its runs, unless its own configuration names another."""


def room_for(experiment: Experiment) -> Mapping[str, tuple[float, float]]:
    """Checks that a run that has not begun would find room in the budget; nothing is reserved.

    Returns:
        What the unit of each client that has spent most has spent, and would have once the run has taken all
        the turns that its noise allows; empty without a budget.

    Raises:
        ConfigurationError: It would not, or the budget cannot be read.
    """
    own = experiment.privacy.settings.bounded_by
    if own is None:
        return {}
    terms, path = budget_terms(own, experiment.privacy.settings.unit, apart=False), Path(own.path)
    requests = _requests(experiment, sites_of(experiment)[1], None, apart=False)
    after = budget.room_for(path, terms, requests, own.epsilon)
    before = budget.spent_by(path, {each.client: each.units for each in requests}, own.delta)
    return {client: (epsilon, after[client]) for client, epsilon in before.items()}


def reserve(
    experiment: Experiment, workplace: Workplace, sites: Sequence[Site], *, apart: bool = False
) -> None:
    """Reserves what a run may spend at its clients, or finds what it has reserved before.

    Args:
        experiment: What is run.
        workplace: Where the clients compute, and keep what is theirs.
        sites: The clients.
        apart: Whether each is a process of its own.

    Raises:
        ConfigurationError: There is no room for it, or the budget cannot be read.
    """
    if (own := experiment.privacy.settings.bounded_by) is None:
        return
    terms = budget_terms(own, experiment.privacy.settings.unit, apart=apart)
    requests = _requests(experiment, sites, workplace, apart=apart)
    budget.reserve(Path(own.path), terms, requests, own.epsilon)


def end(experiment: Experiment, folder: Path, clients: Sequence[str]) -> None:
    """Lets what was reserved and never begun go: the run has come to its end, and begins no turn any more.

    Raises:
        ConfigurationError: The budget cannot be written.
    """
    own = experiment.privacy.settings.bounded_by
    asked = [each for each in clients if has_account(client_folder(folder, each))]
    if own is not None and asked:
        budget.end(Path(own.path), [_account(experiment, folder, client) for client in asked])


def spent(experiment: Experiment, sites: Sequence[Site], *, apart: bool = False) -> dict[str, Any] | None:
    """Returns what of the budget is spent at each client, in all runs, and what is left; none without one.

    Args:
        experiment: What is run.
        sites: The clients.
        apart: Whether each is a process of its own.

    Raises:
        ConfigurationError: The budget cannot be read.
    """
    if (own := experiment.privacy.settings.bounded_by) is None:
        return None
    units = {each.client: each.units for each in _requests(experiment, sites, None, apart=apart)}
    found = budget.spent_by(Path(own.path), units, own.delta)
    return {
        "epsilon": own.epsilon,
        "delta": own.delta,
        "unit": experiment.privacy.settings.unit,
        "disjoint_sites": own.disjoint_sites,
        "clients": {client: told(epsilon, own.epsilon) for client, epsilon in found.items()},
    }


def told(epsilon: float, most: float) -> dict[str, float | None]:
    """Returns what is spent and left of a budget, as a record has it; null where nothing bounds it."""
    bounded = math.isfinite(epsilon)
    return {"spent": epsilon if bounded else None, "left": max(0.0, most - epsilon) if bounded else None}


def with_budget(
    experiment: Experiment, client: str, home: Path, policy: SitePolicy, listen: Listener
) -> Experiment:
    """Returns a site's experiment with the budget over runs that it has unless its own file has another word.

    The cap is what the first run may spend, or the policy's epsilon if that is smaller: no later run raises
    it. The site's people are told what holds.

    Args:
        experiment: What `prepare_client` gave.
        client: The client.
        home: Where it keeps what outlives a run; `budget.db` and its key lie there.
        policy: What the site allows.
        listen: Told which budget holds.

    Raises:
        ConfigurationError: The budget cannot be read, or the server asks for what no budget can count.
    """
    privacy = experiment.privacy
    settings, own = privacy.settings, privacy.settings.bounded_by
    if not settings.by_unit:
        return experiment
    by_default = own is None and settings.budget is None
    if by_default and settings.noise == "secure" and not settings.boundable:
        what = "windows, which are none of another run's" if settings.spends else "a turn without noise"
        message = (
            f"the server asks for {what}, and a budget over runs, which this site has by default, cannot "
            "count that; with privacy.budget: unlimited in this site's configuration it has none"
        )
        setting = "privacy.unit" if settings.spends else "privacy.sigma"
        raise refused(setting, message, "unbounded")
    if by_default and settings.boundable:
        path = home.absolute() / BUDGET
        epsilon, delta = _cap(privacy, client, path, policy)
        own = BudgetSettings(path=str(path), epsilon=epsilon, delta=delta)
        if not key_of(path).exists():
            private_folder(home)
            PseudonymKey.create(key_of(path))
        settings = settings.model_copy(update={"budget": own})
        experiment = replace(experiment, privacy=replace(privacy, settings=settings))
    why = "its noise is seeded, which nothing bounds"
    why = "privacy.budget is unlimited in this site's configuration" if settings.budget else why
    listen("budget_over_runs", own.model_dump() if own is not None else {"epsilon": None, "why": why})
    return experiment


def _cap(privacy: Privacy, client: str, path: Path, policy: SitePolicy) -> tuple[float, float]:
    """Returns the epsilon and the delta of the budget of a site: those that hold already, or the run's."""
    if path.exists() and (terms := budget.read_budget(path)[0]):
        return float(terms["epsilon"]), float(terms["delta"])
    assert privacy.settings.delta is not None  # noqa: S101 - a mechanism has it
    turn, delta = turn_of(privacy, client), min(privacy.settings.delta, policy.delta or 1.0)
    reserved = composed([replace(turn, steps=turn.steps * privacy.turns)], delta)
    most = max(privacy.settings.epsilon or 0.0, reserved)  # no rounding refuses the run itself
    return min(most, policy.epsilon or MOST_EPSILON, MOST_EPSILON), delta


class SiteBudget:
    """The budget of a client that is a process of its own.

    Args:
        experiment: What is run.
        workplace: Where the client computes; told where it keeps what, and what to do before a turn.
        site: The client.
        listen: Told of what its people are to know, and the server is not.
    """

    def __init__(self, experiment: Experiment, workplace: Workplace, site: Site, listen: Listener) -> None:
        self._experiment, self._workplace, self._site = experiment, workplace, site
        self._listen, self._reserved = listen, Path()
        workplace.reserve = self._reserve

    def _reserve(self) -> None:
        """Reserves a run before the first of its turns in this process.

        Raises:
            BudgetRefusedError: There is no room; the server hears of that, and of nothing else.
        """
        if (folder := self._workplace.folder) == self._reserved:
            return
        try:
            reserve(self._experiment, self._workplace, [self._site], apart=True)
        except ConfigurationError as error:
            self._listen("budget_refused", {"message": str(error)})
            message = "this site's budget of privacy has no room for this run; nothing was trained"
            raise BudgetRefusedError(message) from error
        self._reserved = folder

    def end(self) -> None:
        """Hears that the run is complete."""
        end(self._experiment, self._workplace.folder, [self._site.id])
        if (facts := spent(self._experiment, [self._site], apart=True)) is not None:
            self._listen("budget", facts)


def _account(experiment: Experiment, folder: Path, client: str) -> str:
    return account_id(client_folder(folder, client), turn_of(experiment.privacy, client))


def _requests(
    experiment: Experiment, sites: Sequence[Site], workplace: Workplace | None, *, apart: bool
) -> list[Request]:
    """Returns what a run asks for at each client; of one that has not begun, nothing is known."""
    privacy, own = experiment.privacy, experiment.privacy.settings.bounded_by
    assert own is not None  # noqa: S101 - asked by whoever calls
    key = PseudonymKey.read(key_of(Path(own.path)))
    by_site = own.disjoint_sites and not apart
    requests = []
    for site in sites:
        turn = turn_of(privacy, site.id)
        place = client_folder(workplace.folder, site.id) if workplace else None
        requests.append(
            Request(
                account_id(place, turn, make=True) if place else f"not begun: {site.id}",
                experiment.settings.name,
                site.id,
                turn,
                privacy.turns,
                _pseudonyms(site, privacy.settings.unit, key, by_site=by_site),
                workplace.releases(site.id).turns_begun if workplace else 0,
            )
        )
    if privacy.joint is not None:
        _require_apart(requests, privacy.settings.unit)
    return requests


def _require_apart(requests: Sequence[Request], unit: str) -> None:
    """Checks that nobody is at two clients whose noise is joint.

    Who is moves a sum by two gradients, and the noise is there once: two accounts, composed as two mechanisms
    that each have noise of their own, would count too little.

    Raises:
        ConfigurationError: Somebody is.
    """
    seen: dict[bytes, str] = {}
    for each in requests:
        if both := [name for name in each.units if name in seen]:
            message = (
                f"{len(both)} {unit}s of {each.client!r} have the name of one of {seen[both[0]]!r}, and "
                "joint noise is there once for both, which a budget does not count; use mechanism 'local', "
                "or name them apart if they are others (privacy.budget.disjoint_sites)"
            )
            raise refused("privacy.mechanism", message, "duplicate")
        seen |= dict.fromkeys(each.units, each.client)


def _pseudonyms(site: Site, unit: str, key: PseudonymKey, *, by_site: bool) -> set[bytes]:
    """Returns the pseudonyms of all units that a client trains on.

    Raises:
        ConfigurationError: Two units have one name, and would be one person in two units.
    """
    names = [name for part in site.parts or [site] for name in units_of(part.documents.train, unit)]
    found = {key.of(unit, *(name if by_site else name[1:])) for name in names}
    if more := len(names) - len(found):
        message = (
            f"{more} {unit}s of {site.id!r} have the name of one of another site whose documents it holds, "
            "and would be one in two units, which one clip does not bound; name them apart"
        )
        raise refused("privacy.budget.disjoint_sites", message, "duplicate")
    return found
