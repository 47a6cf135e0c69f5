"""Runs with secure aggregation: who drops out when, what a refused sum costs, and what leaves a client."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from deaths import SECURE, fail_in, killed_at, sums
from rich.console import Console
from support import TINY, RunTiny, assert_same_tensors, executed, refused

from fedstrata.client import secure_turns
from fedstrata.client.store import ClientStore, client_folder
from fedstrata.core.errors import ClientsLostError, ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Update
from fedstrata.display.run import Display
from fedstrata.engine.check import check_settings
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.secure_mean import FOLDER, SecureAggregation
from fedstrata.methods import METHODS
from fedstrata.privacy.federation_lock import read_lock
from fedstrata.privacy.identity import Identity
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.unmasking import SumUnmasking
from fedstrata.record.report import report_page
from fedstrata.wire import frame

ONE = "federation.rounds=1"
EXCHANGES = ("keys", "shares", "mask", "sign", "unmask")
"""What a client answers with in each of the exchanges."""


@pytest.mark.slow
def test_a_client_that_is_lost_counts_if_its_update_is_summed_by_then(
    run_tiny: RunTiny, run_once: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the mean is that of who is left, whenever the other was lost."""
    means = []
    for exchange in EXCHANGES:
        with monkeypatch.context() as patched:
            fail_in(patched, exchange, "site-2")
            run = run_tiny(*SECURE, ONE, out=exchange)
        means.append(run.state.tensors)
        (found,), summed = sums(run.of("round")), exchange in ("sign", "unmask")
        assert found["survivors"] == ["site-1", *["site-2"] * summed, "site-3", "site-4"]
        lost = [(event["client"], event["error"]) for event in run.of("client_failed")]
        assert lost == ([] if summed else [("site-2", "OSError")])
    whole = run_once(*SECURE, ONE).state.tensors
    assert_same_tensors(means[0], means[1])
    assert_same_tensors(means[0], means[2])
    assert_same_tensors(means[3], whole)
    assert_same_tensors(means[4], whole)
    assert not torch.equal(*(next(iter(own.values())) for own in (means[0], whole)))


def test_a_round_that_needs_everybody_ends_the_run_as_it_does_without(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in(monkeypatch, "shares", "site-2")
    with refused(ClientsLostError, "clients_lost", values=["site-2: OSError"]):
        run_tiny(*SECURE, ONE, "federation.min_clients=null")


@pytest.mark.slow
def test_drop_outs_cost_keys_and_a_plan_and_too_many_of_them_the_round(
    run_tiny: RunTiny, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_tiny(*SECURE, "federation.dropout=0.3", "federation.rounds=5", "federation.evaluate_every=5")
    counts = [len(found["survivors"]) for found in sums(run.of("round"))]
    assert 0 in counts
    assert {3, 4} & set(counts)
    for event, found in zip(run.of("round"), sums(run.of("round")), strict=True):
        assert event["abandoned"] == (not found["survivors"]) == (found["refused"] == "TooFewSites")
        if found["survivors"]:
            assert {*found["survivors"], *event["failed"]} == set(event["exchanges"])
        for client, sent in event["exchanges"].items():
            assert (sent["bytes_up"] > 20_000) == (client not in event["failed"])
            assert sent["bytes_up"] > 0, "its keys and shares"
    facts = run.summary["secure_aggregation"]
    assert facts["rounds"] == sum(map(bool, counts))
    assert facts["refused"] == {"TooFewSites": counts.count(0)}
    assert facts["fewest_survivors"] == min(filter(None, counts))
    page = report_page([run.folder])
    assert "<h2>Secure aggregation</h2>" in page
    assert page.count("TooFewSites") >= counts.count(0)
    Display(Console(width=200)).show(run.summary, run.folder, personal=False)
    assert f"secure aggregation: {facts['fewest_survivors']} clients" in capsys.readouterr().out


@pytest.mark.claim("secure_aggregation#never-abandoned")
@pytest.mark.slow
def test_a_sum_of_which_shares_have_left_stops_the_run_until_it_can_be_finished(
    run_tiny: RunTiny, run_once: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other sum takes its place, or two could be subtracted from each other."""
    whole = run_once(*SECURE)
    with monkeypatch.context() as patched:
        fail_in(patched, "unmask", "site-1", "site-2", handler="train")
        with pytest.raises(ClientsLostError):
            run_tiny(*SECURE)
    resumed = run_tiny(resume=True)
    assert [found["survivors"] for found in sums(resumed.of("round"))] == [
        found["survivors"] for found in sums(whole.of("round"))
    ]
    assert [event["abandoned"] for event in resumed.of("round")] == [False, False]
    assert_same_tensors(resumed.state.tensors, whole.state.tensors)
    assert not [*(resumed.folder / FOLDER).glob("*-train-*")]


def test_of_a_refused_round_no_client_keeps_anything(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in(monkeypatch, "sign", "site-1", "site-2", round_=1)
    run = run_tiny(*SECURE, "method.head=local")
    assert [found["refused"] for found in sums(run.of("round"))] == ["TooFewSignatures", None]
    assert [event["abandoned"] for event in run.of("round")] == [True, False]
    for client in ("site-1", "site-2", "site-3", "site-4"):
        folder = client_folder(run.folder, client)
        assert ClientStore(folder, 1).version is None
        assert ClientStore(folder, 2).version is not None


@pytest.mark.parametrize(
    ("where", "name", "call"),
    [
        pytest.param(SumUnmasking, "prove", 2, marks=pytest.mark.slow),  # no share of round 2 has left
        (SecureAggregation, "save", 2),  # all shares have, and are there
        pytest.param(SumClient, "unmask", 7, marks=pytest.mark.slow),  # two shares have
    ],
)
def test_a_killed_run_begins_a_sum_anew_or_finishes_it_or_makes_it_again(
    run_tiny: RunTiny, run_once: RunTiny, where: type, name: str, call: int
) -> None:
    whole = run_once(*SECURE)
    with killed_at(where, name, call):
        run_tiny(*SECURE)
    resumed = run_tiny(resume=True)
    assert [found.get("refused") for found in sums(resumed.of("round"))] == [None, None]
    assert_same_tensors(resumed.state.tensors, whole.state.tensors)


@pytest.mark.slow
def test_a_sum_that_is_finished_after_a_kill_is_of_those_who_began_it(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of those who are there then; and what they keep to themselves of the round stays."""
    method = (*SECURE, ONE, "method.head=local", "federation.evaluate_every=2")
    whole = run_tiny(*method, out="whole")
    with killed_at(SecureAggregation, "save"):
        run_tiny(*method)
    clients = LocalEngine.clients
    most = max((event["examples"], event["client"]) for event in whole.of("client"))[1]
    with monkeypatch.context() as patched:
        left = [client for client in whole.of("run")[0]["clients"] if client != most]
        patched.setattr(LocalEngine, "clients", lambda engine: [c for c in clients(engine) if c in left])
        resumed = run_tiny(resume=True)
    assert sums(resumed.of("round"))[0]["survivors"] == [*sorted([*left, most])]
    assert_same_tensors(resumed.state.tensors, whole.state.tensors)
    for client in (*left, most):
        stores = [ClientStore(client_folder(run.folder, client), 1) for run in (whole, resumed)]
        assert stores[0].version
        assert_same_tensors(*(store.read().tensors for store in stores))


def test_a_damaged_sum_on_the_disk_is_made_again_with_the_same_clients(
    run_tiny: RunTiny, run_once: RunTiny, tmp_path: Path
) -> None:
    whole = run_once(*SECURE, ONE)
    with killed_at(SecureAggregation, "save"):
        run_tiny(*SECURE, ONE)
    (stored,) = (tmp_path / "run" / FOLDER).glob("*/masked-sum.safetensors")
    stored.write_bytes(stored.read_bytes()[:-1])
    resumed = run_tiny(resume=True)
    assert [found["refused"] for found in sums(resumed.of("round"))] == [None]
    assert_same_tensors(resumed.state.tensors, whole.state.tensors)


def test_a_run_cannot_go_on_without_what_it_began_with(run_once: RunTiny) -> None:
    changed = ["privacy.secure_aggregation=false", "federation.rounds=2"]
    with refused(ConfigurationError, "changed", at="privacy.secure_aggregation", values=["false", "true"]):
        executed(run_once(*SECURE, ONE).folder, changed, resume=True)


def test_nothing_of_one_client_leaves_it_in_the_clear(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent is uniform in the ring, with no number beside it; the mean loss comes of the sum."""
    trained: list[Update] = []
    sent: list[Update] = []
    masked = secure_turns.SecureTurns._masked

    def taken(*arguments: Any) -> Any:
        own = arguments[-1]  # which is overwritten
        trained.append(frame.decode(frame.split(frame.encode(own).tobytes()), Update))
        tensors = masked(*arguments)
        sent.append(Update({name: tensor.clone() for name, tensor in tensors.items()}))
        return tensors

    monkeypatch.setattr(secure_turns.SecureTurns, "_masked", taken)
    run = run_tiny(*SECURE, ONE)
    assert len(sent) == len(trained) == 4
    assert all("loss" in own.values for own in trained)
    for own, seen in zip(trained, sent, strict=True):
        assert all(tensor.dtype == torch.int32 for tensor in seen.tensors.values())
        for name, tensor in own.tensors.items():
            size = (seen.tensors[name].double() / 2.0**31).abs().mean()
            assert tensor.numel() < 1000 or 0.45 < float(size) < 0.55, "uniform in the ring"
    assert {event["loss"] for event in run.of("client")} == {None}
    losses = [float(own.values["loss"]) for own in trained]  # type: ignore[arg-type]
    weights = [own.weight for own in trained]
    mean = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / sum(weights)
    assert run.of("round")[0]["loss"] == pytest.approx(mean, abs=1e-4)


def test_every_client_has_an_identity_and_a_lock_of_its_own(run_once: RunTiny) -> None:
    run = run_once(*SECURE, ONE)
    publics = {}
    for client in run.folder.glob("clients/*"):
        assert stat.S_IMODE((client / "identity.pem").stat().st_mode) == 0o600
        publics[client.name] = Identity.read(client / "identity.pem").public
    assert len(set(publics.values())) == 4
    assert all(read_lock(client / "federation.lock") == publics for client in run.folder.glob("clients/*"))
    assert stat.S_IMODE((run.folder / FOLDER).stat().st_mode) == 0o700


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_whether_it_can_be_summed_and_else_what_can(name: str) -> None:
    checked = check_settings(read_source(None, [*TINY, *SECURE, f"method={{name: {name}}}"]))
    assert checked.method is not None
    reason = checked.method.not_summed()
    told = [each for each in checked.problems if each.path == "privacy.secure_aggregation"]
    assert [each.code for each in told] == (["not_supported"] if reason else [])
    assert all(name in each.message and reason in each.message for each in told)
    assert not reason or "use " in reason or "leave " in reason


def test_the_protocol_counts_and_the_record_has_it(run_once: RunTiny) -> None:
    run, plain = run_once(*SECURE, ONE), run_once(*SECURE[1:], ONE)
    (found,), facts = sums(run.of("round")), run.summary["secure_aggregation"]
    assert facts["bytes_up"] == found["bytes_up"] > 0
    for way in ("bytes_up", "bytes_down"):
        more = run.summary["communication"][way] - plain.summary["communication"][way]
        assert found[way] <= more <= found[way] + 4 * 3000, "the shares come with the plan"
    assert plain.summary["secure_aggregation"] is None
    (began,) = run.of("run")
    told = {"range": 1.0, "ring": 32, "survivors": None, "scores": "none", "clients": 4, "least": 3}
    assert began["secure_aggregation"] == told
