"""Runs with a budget over all runs: who is refused, what counts after a crash, and what a server hears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from private_client import JOINT, PRIVATE
from processes import fedstrata, read_until
from remote_run import CLIENTS, Clients, served
from support import TINY, Call, RunTiny, executed, problems_of, refused, write_lines

from fedstrata.core.errors import ConfigurationError, FrameError
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source, read_source
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare, prepare_server
from fedstrata.engine.remote.shared_settings import shared_settings, with_shared
from fedstrata.planning.plan import make_plan
from fedstrata.privacy.budgets.accounts import Account
from fedstrata.privacy.budgets.budget import read_budget
from fedstrata.privacy.budgets.events import GAUSSIAN, SKELLAM, MechanismEvent, composed
from fedstrata.privacy.budgets.pseudonyms import PseudonymKey

TURN = MechanismEvent(GAUSSIAN, 1.0, 0.25, 3)
"""What `PRIVATE` releases in a turn."""
DELTA = 0.001


def cost(turns: int) -> float:
    return composed([replace(TURN, steps=3 * turns)], DELTA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    PseudonymKey.create(tmp_path / "budget.key")
    return tmp_path / "budget.db"


def budgeted(path: Path, turns: float, *, disjoint: bool = True) -> tuple[str, ...]:
    """Overrides of a run of 2 rounds and a spare turn, under a cap of so many turns."""
    cap, whether = 1.0001 * cost(int(turns)), str(disjoint).lower()
    own = f"privacy.budget={{path: {path}, epsilon: {cap}, delta: {DELTA}, disjoint_sites: {whether}}}"
    return (*PRIVATE, "privacy.noise=secure", "privacy.spare_turns=1", own, "federation.floors=false")


def accounts(path: Path) -> list[Account]:
    return list(read_budget(path)[1].accounts.values())


@pytest.mark.slow
def test_runs_compose_until_one_would_pass_the_cap_which_does_not_start(
    run_tiny: RunTiny, path: Path, tmp_path: Path
) -> None:
    """Whether clients are in one process or in several; a plan says so too."""
    own = budgeted(path, 6)
    one, two = (
        run_tiny(*own, f"workers={count}", "threads=1", out=out) for out, count in (("one", 1), ("two", 2))
    )
    spent = [run.of("privacy")[-1]["budget"]["clients"] for run in (one, two)]
    for turns, clients in zip((2, 4), spent, strict=True):
        assert [each["spent"] for each in clients.values()] == pytest.approx(3 * [cost(turns)])
    assert cost(4) < 2 * cost(2)
    plan = make_plan(read_source(None, [*TINY, *own, "federation.rounds=1"]), seconds=0.0)
    assert plan.privacy is not None
    budget = plan.privacy.clients["site-1"].budget
    assert budget is not None
    assert (budget.spent, budget.after) == (pytest.approx(cost(4)), pytest.approx(cost(6)))
    beyond = {"at": "privacy.budget.epsilon", "values": ["'site-1'", "3 turns", "3 steps"]}
    with refused(ConfigurationError, "budget_refused", **beyond):
        run_tiny(*own, out="three")
    with refused(ConfigurationError, "budget_refused", **beyond):
        make_plan(read_source(None, [*TINY, *own]), seconds=0.0)
    assert not (tmp_path / "three").exists()
    assert len(accounts(path)) == 6
    assert all(each.ended and each.charged == each.begun == each.committed == 2 for each in accounts(path))
    statement = (two.folder / "privacy.md").read_text()
    assert "## The budget over all runs" in statement
    assert "no patient is at two sites" in statement


@pytest.mark.slow
def test_a_run_that_was_stopped_keeps_all_it_had_reserved_until_it_has_gone_on_to_its_end(
    run_tiny: RunTiny, path: Path, tmp_path: Path
) -> None:
    own = budgeted(path, 5)

    def listen(event: str, facts: Mapping[str, Any]) -> None:
        if event == "client" and facts["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tiny(*own, out="part", listen=listen)
    assert sorted(each.charged for each in accounts(path)) == [3, 3, 3]
    with refused(ConfigurationError, "budget_refused", at="privacy.budget.epsilon"):
        run_tiny(*own, out="other")
    run_tiny(out="part", resume=True)
    assert sorted(each.charged for each in accounts(path)) == [2, 2, 2]
    run_tiny(*own, out="other")


@pytest.mark.slow
def test_a_run_without_its_budget_does_not_go_on(run_tiny: RunTiny, path: Path) -> None:
    run_tiny(*budgeted(path, 9), "federation.rounds=1")
    with refused(ConfigurationError, "changed", at="privacy.budget"):
        run_tiny("privacy.budget=null", "federation.rounds=2", resume=True)
    path.unlink()
    run_tiny("federation.rounds=2", resume=True)  # a lost one is begun with what the run itself knows
    assert {each.begun for each in accounts(path)} == {2}


def test_a_run_of_no_rounds_spends_nothing(run_tiny: RunTiny, path: Path) -> None:
    run = run_tiny(*budgeted(path, 1), "federation.rounds=0")
    assert {own["spent"] for own in run.of("privacy")[-1]["budget"]["clients"].values()} == {0.0}


def patients(folder: Path, sites: Sequence[str] = ("north", "south")) -> tuple[str, ...]:
    """Notes of patients who have the same names at these sites."""
    span = {"start": 0, "end": 7, "label": "drug"}
    notes = [
        {"id": f"{site}-{number}", "site": site, "text": "Aspirin was given.", "spans": [span]}
        | {"metadata": {"patient": f"patient {number}", "split": "train" if number else "test"}}
        for site in sites
        for number in range(5)
    ]
    return (
        f"data={{format: jsonl, path: {write_lines(folder / 'notes.jsonl', notes)}}}",
        "task.types=[drug]",
        "privacy.unit=patient",
        f"privacy.units={{{', '.join(f'{site}: 8' for site in sites)}}}",
    )


def test_equal_names_at_two_sites_are_one_patient_unless_sites_are_disjoint(
    tmp_path: Path, path: Path
) -> None:
    data = patients(tmp_path)
    together = [*TINY[3:], *budgeted(path, 3, disjoint=False), *data]
    values = ["patient", "'north'"]
    with refused(ConfigurationError, "budget_refused", at="privacy.budget.epsilon", values=values):
        executed(tmp_path / "one", together)
    executed(tmp_path / "one", [*TINY[3:], *budgeted(path, 3), *data])
    with refused(ConfigurationError, "conflict", at="privacy.budget.disjoint_sites"):
        executed(tmp_path / "two", together)
    other = path.with_name("other.db")
    PseudonymKey.create(path.with_name("other.key"))
    executed(tmp_path / "two", [*TINY[3:], *budgeted(other, 6, disjoint=False), *data])
    assert composed([replace(TURN, steps=12)], DELTA) == pytest.approx(cost(4))
    pooled = [*TINY[3:], *budgeted(other, 9, disjoint=False), *data, "method={name: centralized}"]
    values = ["patients of 'pooled'"]
    with refused(ConfigurationError, "duplicate", at="privacy.budget.disjoint_sites", values=values):
        executed(tmp_path / "three", pooled)
    for written in (path, other):
        assert b"patient 1" not in written.read_bytes()


def test_runs_with_joint_noise_compose_with_those_of_noise_at_clients(run_tiny: RunTiny, path: Path) -> None:
    """Spent is that of Skellam steps, begun and committed by each site; then of both kinds."""
    own = (*budgeted(path, 9)[2:], "federation.rounds=1")
    run = run_tiny(*JOINT, *own, "privacy.budget.epsilon=50", out="one")
    assert {(each.turn.kind, each.turn.steps, each.turn.rate) for each in accounts(path)} == {
        (SKELLAM, 1, 0.25)
    }
    assert [(each.begun, each.committed, each.ended) for each in accounts(path)] == 3 * [(1, 1, True)]
    (one,) = {own["spent"] for own in run.of("privacy")[-1]["budget"]["clients"].values()}
    turn = accounts(path)[0].turn
    assert one == composed([turn], DELTA)
    run = run_tiny(*budgeted(path, 9), "federation.rounds=1", "privacy.budget.epsilon=50", out="two")
    (two,) = {own["spent"] for own in run.of("privacy")[-1]["budget"]["clients"].values()}
    assert two == composed([turn, TURN], DELTA) > max(one, cost(1))
    with refused(ConfigurationError, "budget_refused", at="privacy.budget.epsilon", values=["'site-1'"]):
        run_tiny(*JOINT, *own, f"privacy.budget.epsilon={two}", out="three")


def test_nobody_at_two_clients_has_joint_noise_twice(path: Path) -> None:
    data = patients(path.parent, ("north", "south", "east"))
    run = [*TINY[3:], *JOINT, *budgeted(path, 9, disjoint=False)[2:], *data]
    values = ["patients of 'north'", "'east'"]
    with refused(ConfigurationError, "duplicate", at="privacy.mechanism", values=values):
        executed(path.parent / "one", run)
    executed(path.parent / "two", [*run, "privacy.budget.disjoint_sites=true", "privacy.budget.epsilon=99"])


@pytest.mark.parametrize(
    ("override", "at", "code", "values"),
    [
        ("privacy.noise=seeded", "privacy", "unbounded", ["'seeded'"]),
        ("privacy.sigma=0", "privacy", "unbounded", ["sigma 0"]),
        ("privacy.unit=window", "privacy", "unbounded", ["window"]),
        ("privacy.budget.delta=0.2", "privacy", "out_of_range", ["budget.delta", "1/8"]),
        ("privacy.budget.path=own.key", "privacy.budget", "wrong_form", ["path", ".key"]),
        ("privacy={mechanism: none}", "privacy", "unbounded", ["'none'"]),
        ("privacy={mechanism: central, sigma: 1, delta: 0.1}", "privacy", "unbounded", ["'central'"]),
    ],
)
def test_what_a_budget_cannot_bound_is_refused(
    path: Path, override: str, at: str, code: str, values: list[object]
) -> None:
    settings = budgeted(path, 6)
    source = read_source(None, [*TINY, *settings, override])
    source.values["privacy"].setdefault("budget", {"path": str(path), "epsilon": 1.0, "delta": 0.001})
    with refused(ConfigurationError, code, at=at, values=values):
        prepare(source)


def test_what_is_wrong_with_its_files_is_told_with_all_else(tmp_path: Path, path: Path) -> None:
    key = path.with_name("budget.key")
    key.unlink()
    with pytest.raises(ConfigurationError) as caught:
        prepare(read_source(None, [*TINY, *budgeted(path, 6), "training.epochs=2"]))
    assert problems_of(caught.value) == [
        ("training.epochs", "no_effect"),
        ("privacy.budget.path", "not_found"),
    ]
    assert f"fedstrata keys new {key} --pseudonyms" in str(caught.value)
    key.write_text("something")
    for mode, code in ((0o600, "wrong_form"), (0o644, "not_secret")):
        key.chmod(mode)
        with refused(ConfigurationError, code, at="privacy.budget.path", values=[key]):
            prepare(read_source(None, [*TINY, *budgeted(path, 6)]))


def test_a_budget_is_a_sites_own_and_no_servers(path: Path, tmp_path: Path) -> None:
    own = budgeted(path, 6)
    for more in ((), ("privacy.budget=unlimited",)):
        with refused(ConfigurationError, "not_supported", at="privacy.budget"):
            prepare_server(read_source(None, [*TINY, *own, *more]), CLIENTS)
    told = shared_settings(prepare_server(read_source(None, [*TINY, *own[:-2]]), CLIENTS))
    budget = {"path": "budget.db", "epsilon": 1.0, "delta": 0.001}
    for said in (budget, "unlimited"):
        site = {"data": {"format": "synthetic", "types": ["drug"]}, "privacy": {"budget": said}}
        settings: RunSettings = check_settings(with_shared(Source(site, {}), told)).settings
        assert settings.privacy.budget is not None
        assert settings.privacy.steps == 3
    for lie in (budget, "unlimited"):
        told["settings"]["privacy"]["budget"] = lie
        with refused(FrameError, "site_decides", values=["privacy.budget"]):
            with_shared(Source({}, {}), told)


@pytest.mark.slow
def test_a_served_site_refuses_by_its_own_budget_and_says_no_more_than_that(
    tmp_path: Path, clients: Clients
) -> None:
    """Each site keeps its own; here all three name one, as one site would in three runs."""
    PseudonymKey.create(tmp_path / "budget.key")
    path = tmp_path / "budget.db"
    *run, own, _ = budgeted(path, 3)
    site = (*run, "threads=1")
    served(tmp_path / "one", clients, *site, own=[own])
    assert [(each.begun, each.committed, each.ended) for each in accounts(path)] == 3 * [(2, 2, True)]
    assert "budget" in (tmp_path / "one" / "site-1.txt").read_text().split()
    with pytest.raises(Exception, match="BudgetRefusedError") as caught:
        served(tmp_path / "two", clients, *site, own=[own])
    for told in (str(caught.value), (tmp_path / "two" / "run" / "record.jsonl").read_text()):
        assert "spent" not in told
        assert "budget.db" not in told
        assert f"{cost(2):.5g}" not in told
    said = [out.read_text() for out in (tmp_path / "two").glob("site-*.txt")]
    assert any("budget_refused" in each for each in said), "whichever came first; its people hear why"
    assert len(accounts(path)) == 3


@pytest.mark.slow
def test_a_run_that_is_killed_has_spent_all_it_reserved(
    run_tiny: RunTiny, tmp_path: Path, path: Path
) -> None:
    """`fedstrata run` in a process of its own, killed when a round is committed, and gone on with."""
    settings = [*TINY, *budgeted(path, 9), "federation.rounds=4"]
    (tmp_path / "own.yaml").write_text("name: own\n")
    process = fedstrata("run", "--out", tmp_path / "run", "own.yaml", *settings, folder=tmp_path)
    read_until(process, "round 1:")
    process.kill()
    process.communicate()
    assert {each.charged for each in accounts(path)} == {5}
    assert not any(each.ended for each in accounts(path))
    run_tiny(resume=True)
    assert all(each.ended and 4 <= each.begun <= 5 for each in accounts(path))


@pytest.mark.slow
def test_every_run_of_a_comparison_counts_the_tuning_ones_too(call: Call, tmp_path: Path) -> None:
    PseudonymKey.create(tmp_path / "budget.key")
    (tmp_path / "own.yaml").write_text("name: own\n")
    own = [*TINY, *budgeted(tmp_path / "budget.db", 9), "sweep.seeds=[0, 1]"]
    tune = "sweep.tune={setting: training.learning_rate, values: [0.01, 0.02]}"
    told = call("compare", "own.yaml", *own, tune, "--out", "all", "--jobs", 2)
    assert told.status == 0, told.err
    assert len(accounts(tmp_path / "budget.db")) == 3 * 3
