"""The budget over runs that a site has by default: what it bounds, and that no server can turn it off."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
from private_client import JOINT, PRIVATE
from remote_run import CLIENTS
from support import TINY, refused, silent

from fedstrata.client.accounts import TurnAccount
from fedstrata.client.store import home_of
from fedstrata.client.turn import Done, Order
from fedstrata.core.errors import BudgetRefusedError, ConfigurationError
from fedstrata.core.settings.policy import SitePolicy
from fedstrata.core.settings.source import Source, read_source
from fedstrata.core.types import Plan
from fedstrata.engine.budgets import BUDGET, with_budget
from fedstrata.engine.prepare import Experiment, prepare_client, prepare_server
from fedstrata.engine.remote.joining import RemoteClient, join_run
from fedstrata.engine.remote.shared_settings import shared_settings
from fedstrata.privacy.budgets.budget import read_budget
from fedstrata.privacy.budgets.pseudonyms import PseudonymKey
from fedstrata.record.client_events import line_of
from fedstrata.wire import frame

SECURE = tuple(each.replace("noise: seeded", "noise: secure") for each in PRIVATE)
RUNS = tuple(f"{number:016x}" for number in range(1, 9))


@cache
def experiment_of(*overrides: str) -> Experiment:
    return prepare_client(read_source(None, [*TINY, *SECURE, *overrides]), "site-1")


class SiteOf:
    """A site with its home, in as many runs as its people accept."""

    def __init__(self, home: Path, *overrides: str, policy: SitePolicy | None = None) -> None:
        self.home, self.heard = home, list[tuple[str, Mapping[str, Any]]]()
        own = with_budget(experiment_of(*overrides), "site-1", home, policy or SitePolicy(), self.listen)
        self.experiment = own
        self.client = RemoteClient(own, "site-1", home, self.listen, runs=len(RUNS))

    def listen(self, event: str, facts: Mapping[str, Any]) -> None:
        self.heard.append((event, facts))

    @property
    def holds(self) -> Mapping[str, Any]:
        (facts,) = [facts for event, facts in self.heard if event == "budget_over_runs"]
        return facts

    def turns(self, run: str) -> int:
        """Takes all turns that a run with this id asks for; returns how many updates it let out."""
        self.client.enter({"run": run})
        place, method = self.client._workplace, self.experiment.method
        plan = frame.encode(Plan(method.start(self.experiment.model).tensors))
        sent = 0
        for number in range(1, 3):
            order = Order("site-1", number, "train", 1, plan)
            sent += isinstance(place.compute(order, self.client._site), Done)
        return sent


@pytest.mark.claim("budgets#default-budget")
def test_a_server_with_other_run_ids_gets_no_more_than_one_run(tmp_path: Path) -> None:
    site = SiteOf(tmp_path / "home")
    assert site.turns(RUNS[0]) == 2
    for run in RUNS[1:]:
        with pytest.raises(BudgetRefusedError):
            site.turns(run)
    (account,) = read_budget(tmp_path / "home" / BUDGET)[1].accounts.values()
    assert account.begun == 2
    modes = [(tmp_path / "home" / name).stat().st_mode & 0o777 for name in (BUDGET, "budget.key")]
    assert modes == [0o600, 0o600]


class NotReachableError(Exception):
    """The server cannot be reached."""


def test_whoever_joins_has_it(tmp_path: Path) -> None:
    """By what a server says of a run, as `fedstrata join` does."""
    joined = list[RemoteClient]()
    told = shared_settings(prepare_server(read_source(None, [*TINY, *SECURE]), CLIENTS))

    def session_of(remote: RemoteClient) -> NoReturn:
        joined.append(remote)
        raise NotReachableError

    data = {"format": "synthetic", "synthetic": {"sites": 3, "notes": 12}, "types": ["drug"]}
    own = {"data": data, "model": dict(told["settings"]["model"])}
    with pytest.raises(NotReachableError):
        join_run(Source(own, {}), "site-1", lambda _: told, session_of, tmp_path, lambda *_: None)
    (remote,) = joined
    budget = remote._workplace.privacy.settings.bounded_by
    assert budget is not None
    assert Path(budget.path) == tmp_path / BUDGET


def test_another_process_of_the_site_has_the_same_budget_and_no_larger_one(tmp_path: Path) -> None:
    first = SiteOf(tmp_path)
    first.turns(RUNS[0])
    more = SiteOf(tmp_path, "privacy.sigma=0.6", "privacy.delta=0.001")
    assert more.holds == first.holds
    with pytest.raises(BudgetRefusedError):
        more.turns(RUNS[1])
    assert read_budget(tmp_path / BUDGET)[0]["epsilon"] == repr(first.holds["epsilon"])


def test_the_cap_is_that_of_the_run_or_of_a_stricter_policy(tmp_path: Path) -> None:
    run = SiteOf(tmp_path / "run", "privacy.sigma=null", "privacy.epsilon=6")
    assert (run.holds["epsilon"], run.holds["delta"]) == (6.0, 0.01)
    assert run.turns(RUNS[0]) == 2, "the run itself has room"
    by_sigma = SiteOf(tmp_path / "sigma")
    assert by_sigma.holds["epsilon"] == pytest.approx(by_sigma.experiment.privacy.epsilon("site-1", 4))
    strict = SiteOf(tmp_path / "policy", policy=SitePolicy(epsilon=0.5, delta=0.001))
    assert (strict.holds["epsilon"], strict.holds["delta"]) == (0.5, 0.001)
    with pytest.raises(BudgetRefusedError):
        strict.turns(RUNS[0])


@pytest.mark.claim("security_review#uncounted")
@pytest.mark.parametrize("asked", ["privacy.unit=window", "privacy.sigma=0"])
def test_no_server_gets_what_no_budget_can_count(asked: str, tmp_path: Path) -> None:
    """After a run that has used the budget up, and before any."""
    experiment = experiment_of(asked, "privacy.units.site-1=99")
    for spent in (False, True):
        if spent:
            SiteOf(tmp_path).turns(RUNS[0])
        with refused(ConfigurationError, "unbounded", at=asked.partition("=")[0]):
            with_budget(experiment, "site-1", tmp_path, SitePolicy(), silent)


@pytest.mark.parametrize(
    "own",
    [
        ("privacy.budget=unlimited",),
        ("privacy.noise=seeded",),
        ("privacy.unit=window", "privacy.budget=unlimited"),
        ("privacy={mechanism: none}",),
    ],
)
def test_it_is_off_by_a_word_of_the_sites_own(own: tuple[str, ...], tmp_path: Path) -> None:
    heard: list[tuple[str, Mapping[str, Any]]] = []
    experiment = experiment_of("privacy.units.site-1=99", *own)
    home = tmp_path / "home"
    same = with_budget(experiment, "site-1", home, SitePolicy(), lambda *told: heard.append(told))
    assert same is experiment
    assert [facts["epsilon"] for _, facts in heard] == [None] * (own != ("privacy={mechanism: none}",))
    assert not home.exists()
    assert TurnAccount.of(experiment.privacy, "site-1", tmp_path) is None


def test_a_site_keeps_the_budget_that_its_own_file_names(tmp_path: Path) -> None:
    PseudonymKey.create(tmp_path / "own.key")
    budget = f"privacy.budget={{path: {tmp_path / 'own.db'}, epsilon: 50, delta: 0.01}}"
    site = SiteOf(tmp_path / "home", budget)
    assert site.holds["epsilon"] == 50.0
    assert [site.turns(run) for run in RUNS[:2]] == [2, 2]
    assert not (tmp_path / "home" / BUDGET).exists()


def test_joint_noise_has_room_for_its_own_run(tmp_path: Path) -> None:
    settings = [*TINY, *(each.replace("noise: seeded", "noise: secure") for each in JOINT)]
    experiment = prepare_client(read_source(None, settings), "site-1")
    own = with_budget(experiment, "site-1", tmp_path, SitePolicy(), silent)
    assert own.privacy.settings.bounded_by is not None
    assert own.privacy.settings.bounded_by.epsilon >= (own.privacy.epsilon("site-1", own.privacy.turns) or 0)


def test_people_are_told_which_of_the_two_holds(tmp_path: Path) -> None:
    off = SiteOf(tmp_path / "off", "privacy.budget=unlimited")
    on = SiteOf(tmp_path / "on")
    lines = [line_of(*each) for site in (on, off) for each in site.heard if each[0] == "budget_over_runs"]
    assert all(lines)
    assert lines[0] != lines[1]
    assert str(tmp_path / "on" / BUDGET) in lines[0]
    assert home_of(tmp_path, None) == tmp_path
