"""Simulated drop-out: who is lost, what it costs, and when a round is abandoned."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import binom
from support import RunTiny, assert_same_tensors

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.federation import FederationSettings
from fedstrata.core.types import State
from fedstrata.display.run import Display
from fedstrata.engine.book import Attendance
from fedstrata.engine.checkpoint import Checkpoints
from fedstrata.engine.sites import drop_outs
from fedstrata.methods import METHODS

LOCAL_HEAD = "method={name: layer_skipping, top: 1, head: local}"
FEW = "data.synthetic.notes=6"
BRIEF = (FEW, "federation.floors=false")


def test_drop_outs_get_the_plan_and_send_nothing(run_once: RunTiny) -> None:
    run = run_once("federation={dropout: 0.4, rounds: 4, evaluate_every: 4, floors: false}", FEW)
    lost = {(event["round"], event["client"]) for event in run.of("client_failed")}
    worked = {(event["round"], event["client"]) for event in run.of("client")}
    assert lost
    assert not lost & worked
    assert {event["error"] for event in run.of("client_failed")} == {"DroppedOut"}
    for event in run.of("round"):
        for client, sent in event["exchanges"].items():
            assert sent["bytes_down"] > 0
            assert (sent["bytes_up"] == 0) == (client in event["failed"])
    whole = len(lost) + len(worked)
    assert whole == 4 * 3
    assert sum(run.summary["failures"]["clients"].values()) == len(lost)


def test_a_round_that_drop_outs_leave_too_small_changes_nothing(run_tiny: RunTiny, tmp_path: Path) -> None:
    overrides = ["seed=1", "federation.dropout=0.4", "federation.min_clients=3", "federation.rounds=3", FEW]
    states: dict[int, State] = {}

    def listen(event: str, facts: Any) -> None:
        if event == "round":
            states[facts["round"]] = Checkpoints(tmp_path / "run/checkpoints").load(facts["round"])[1]

    run = run_tiny(*overrides, "federation.evaluate_every=3", listen=listen)
    abandoned = [event["round"] for event in run.of("round") if event["abandoned"]]
    assert abandoned == [2]
    assert run.summary["failures"]["abandoned_rounds"] == len(abandoned)
    for event in run.of("round"):
        number = event["round"]
        up = sum(sent["bytes_up"] for sent in event["exchanges"].values())
        assert (up == 0) == (number in abandoned) == bool(event["failed"])
        assert all(sent["bytes_down"] > 0 for sent in event["exchanges"].values())
        if number in abandoned:
            assert event["loss"] is None
            if number > 1:
                assert_same_tensors(states[number].tensors, states[number - 1].tensors)
        elif number > 1:
            assert any(
                not torch.equal(tensor, states[number - 1].tensors[name])
                for name, tensor in states[number].tensors.items()
            )


def test_every_client_may_drop_out_of_a_round(run_once: RunTiny) -> None:
    run = run_once("federation.dropout=0.999999", "federation.rounds=1", *BRIEF)
    assert run.of("round")[0]["failed"] == ["site-1", "site-2", "site-3"]
    assert run.of("round")[0]["abandoned"]
    sent = run.summary["communication"]
    assert sent["bytes_up"] == 0 < sent["bytes_down"]
    assert sent["bytes_up_per_client_round"] == 0
    assert run.summary["time"]["seconds_per_client_round"] is None


def test_pooled_training_loses_nobody(run_tiny: RunTiny, run_once: RunTiny) -> None:
    overrides = ["method={name: centralized}", "federation.rounds=1"]
    plain = run_once(*overrides)
    run = run_tiny(*overrides, "federation.dropout=0.9", "federation.min_clients=3", out="with")
    assert_same_tensors(plain.state.tensors, run.state.tensors)
    assert run.summary["failures"] == {"clients": None, "abandoned_rounds": None}


def run_of(chance: float, seed: int) -> Any:
    federation = FederationSettings(dropout=chance)
    return SimpleNamespace(
        method=METHODS["fedavg"](), settings=SimpleNamespace(federation=federation), seed=Seed(seed)
    )


@given(st.integers(1, 6), st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 9))
def test_a_greater_chance_takes_more_clients_and_each_by_itself(
    count: int, one: float, other: float, seed: int
) -> None:
    clients = [f"site {number}" for number in range(count)]
    low, high = (run_of(chance, seed) for chance in sorted((one, other)))
    assert drop_outs(low, 1, clients) <= drop_outs(high, 1, clients)
    assert not drop_outs(run_of(0.0, seed), 1, clients)
    alone = {client for client in clients if drop_outs(high, 1, [client])}
    assert drop_outs(high, 1, clients) == alone


@pytest.mark.parametrize(
    "chance", [pytest.param(0.05, marks=pytest.mark.slow), 0.3, pytest.param(0.8, marks=pytest.mark.slow)]
)
def test_clients_drop_out_as_often_as_asked(chance: float) -> None:
    clients = [f"site-{number}" for number in range(100)]
    rounds = [drop_outs(run_of(chance, 0), number, clients) for number in range(50)]
    low, high = binom.interval(0.9999, 5000, chance)
    assert low <= sum(map(len, rounds)) <= high
    low, high = binom.interval(1 - 1e-6, 50, chance)
    assert all(low <= sum(client in lost for lost in rounds) <= high for client in clients)


@given(
    st.integers(1, 12),
    st.sets(st.integers(0, 11)),
    st.sets(st.integers(0, 11)),
    st.none() | st.integers(1, 12),
)
def test_attendance_counts_those_who_are_left(
    clients: int, dropped: set[int], failed: set[int], least: int | None
) -> None:
    names = [str(number) for number in range(clients)]
    gone = frozenset(names[number] for number in dropped if number < clients)
    attendance = Attendance(names, gone, least)
    attendance.lost.update({names[number]: "OSError" for number in failed if number < clients})
    left = [name for name in names if name not in gone and name not in attendance.lost]
    if least is None:
        assert attendance.suffices == (bool(left) and set(attendance.lost) <= gone)
    else:
        assert attendance.suffices == (len(left) >= least)


def test_drop_outs_are_counted_and_not_shown_one_by_one(run_tiny: RunTiny) -> None:
    out = StringIO()
    display = Display(Console(file=out, width=200))
    run_tiny("federation.dropout=0.5", "federation.min_clients=3", FEW, listen=display)
    assert "of 3 clients" in out.getvalue()
    assert "DroppedOut" not in out.getvalue()


def test_with_nobody_lost_the_settings_change_nothing(run_once: RunTiny) -> None:
    plain = run_once(LOCAL_HEAD, *BRIEF)
    guarded = run_once(LOCAL_HEAD, *BRIEF, "federation={rounds: 2, min_clients: 2, dropout: 0.0}")
    assert_same_tensors(plain.state.tensors, guarded.state.tensors)
    assert plain.rounds_but_for_machine() == guarded.rounds_but_for_machine()
    assert plain.summary["metrics"] == guarded.summary["metrics"]


def test_resumed_is_uninterrupted_with_drop_outs_and_a_corrupt_client(
    run_tiny: RunTiny, run_once: RunTiny
) -> None:
    corrupt = "federation.corrupt={share: 0.3, kind: gaussian}"
    overrides = [LOCAL_HEAD, "seed=1", "federation.dropout=0.5", "federation.min_clients=2", corrupt, *BRIEF]
    whole = run_once(*overrides)
    assert any(event["failed"] and not event["abandoned"] for event in whole.of("round"))

    def listen(event: str, facts: Any) -> None:
        if event == "client" and facts["round"] > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tiny(*overrides, out="broken", listen=listen)
    resumed = run_tiny(out="broken", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert resumed.rounds_but_for_machine() == whole.rounds_but_for_machine()
    assert resumed.summary["metrics"] == whole.summary["metrics"]
    assert resumed.summary["failures"] == whole.summary["failures"]
