"""Runs with joint noise: what the sum is and what noise is in it, what it costs, and what sites refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import private_client
import pytest
import torch
from support import TINY, Finished, RunTiny, assert_same_tensors, refused

from fedstrata.client.releases import Release
from fedstrata.core.errors import BudgetSpentError, ClientsLostError, ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.engine import masked_sums, secure_mean
from fedstrata.engine.prepare import prepare
from fedstrata.engine.secure_mean import SecureAggregation
from fedstrata.privacy import joint_terms
from fedstrata.privacy.ledger_verification import LEDGER, read_ledger
from fedstrata.privacy.mechanism import Privacy
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.messages import NoiseTerms
from fedstrata.privacy.secure_sum.refusals import TooFewSites, WrongSum
from fedstrata.privacy.skellam import SkellamMechanism, epsilon_of
from fedstrata.record.log import read_events

JOINT = (
    *private_client.JOINT,
    "privacy.units.site-4=8",
    "method={name: layer_skipping, top: 1}",
    "data.synthetic.sites=4",
    "federation.min_clients=1",
    "threads=1",
)
LOCAL = (*JOINT, "privacy.mechanism=local", "privacy.secure_aggregation=false", "privacy.steps=1")
PLAIN_STEP = ("training.optimizer=sgd", "training.learning_rate=1.0", "federation.rounds=1")
QUIET, FEDAVG = "privacy.sigma=0", "method={name: fedavg}"
THREE = ("data.synthetic.sites=3", "privacy.units={site-1: 8, site-2: 8, site-3: 8}")


def difference(one: Finished, other: Finished) -> torch.Tensor:
    """Of all numbers of two models, float64."""
    assert one.state.tensors.keys() == other.state.tensors.keys()
    pairs = [(one.state.tensors[name], other.state.tensors[name]) for name in one.state.tensors]
    return torch.cat([(first.double() - second.double()).flatten() for first, second in pairs])


def failing(monkeypatch: pytest.MonkeyPatch, exchange: str, *sites: str) -> None:
    answer = getattr(SumClient, exchange)

    def fails(client: SumClient, *said: Any) -> Any:
        if client._site in sites:
            raise OSError(28, "No space left on device")
        return answer(client, *said)

    monkeypatch.setattr(SumClient, exchange, fails)


def test_without_noise_a_round_is_a_step_with_the_mean_of_clipped_gradients(
    run_tiny: RunTiny, run_once: RunTiny
) -> None:
    """Of clients that each take the step by themselves the mean is the same, up to what rounding declares."""
    own = (*THREE, *PLAIN_STEP, QUIET)
    joint, local = run_tiny(*JOINT, *own), run_once(*LOCAL, *own)
    (event,) = joint.of("round")
    declared = float(event["secure_aggregation"]["error"])
    float32 = 4 * 2.0**-23 * max(float(tensor.abs().max()) for tensor in local.state.tensors.values())
    start = prepare(read_source(None, [*TINY, *JOINT])).model.snapshot(local.state.tensors)
    moved = max(float((start[name] - tensor).abs().max()) for name, tensor in local.state.tensors.items())
    assert float(difference(joint, local).abs().max()) <= declared + float32 < 1e-4 * moved
    assert event["privacy"]["clipped"] == local.of("round")[0]["privacy"]["clipped"]
    assert joint.summary["privacy"]["epsilon"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sites", "lost", "colluders", "carriers"),
    [(4, (), None, 2), (6, ("site-2",), 1, 3), (4, (), 0, 3), (4, ("site-2",), 1, 2)],
)
def test_the_sum_has_the_noise_that_is_claimed(
    run_tiny: RunTiny,
    run_once: RunTiny,
    monkeypatch: pytest.MonkeyPatch,
    sites: int,
    lost: tuple[str, ...],
    colluders: int | None,
    carriers: int,
) -> None:
    """Each brings 1 / (t - c) of the variance: t = 3 of a roster of three or four, and 4 of one of five."""
    units = ", ".join(f"site-{number}: 8" for number in range(1, sites + 1))
    size = (f"data.synthetic.sites={sites}", f"privacy.units={{{units}}}")
    more = [] if colluders is None else [f"privacy.colluders={colluders}"]
    overrides = [*JOINT, *PLAIN_STEP, *size, *more]
    if lost:
        failing(monkeypatch, "keys", *lost)
    noised, quiet = run_tiny(*overrides, out="noised"), run_tiny(*overrides, QUIET, out="quiet")
    left = sites - len(lost)
    deviation = math.sqrt(left / carriers) / (left * 2)
    found = difference(noised, quiet)
    assert len(found) > 5_000
    assert float(found.std()) == pytest.approx(deviation, rel=0.05)
    assert abs(float(found.mean())) < 5 * deviation / math.sqrt(len(found))


def test_what_was_spent_is_that_of_skellam_noise_over_the_rounds(run_tiny: RunTiny) -> None:
    run = run_tiny(*JOINT, "privacy.noise=secure")
    begun = run.of("run")[0]
    noise = prepare(read_source(None, [*TINY, *JOINT])).privacy.joint
    sensitivity = noise.rounding.sensitivity
    for number, event in enumerate(run.of("round"), start=1):
        by_hand = epsilon_of([SkellamMechanism(1.0, sensitivity, 0.25, number)], 0.01, noise.distance(number))
        assert {own["epsilon"] for own in event["privacy"]["clients"].values()} == {by_hand}
        assert event["loss"] is None
    assert run.summary["privacy"]["epsilon"] == by_hand
    assert begun["privacy"]["joint"]["carriers"] == 2
    lines = read_ledger(run.folder / "clients" / "site-1" / LEDGER)
    sent = [line for line in lines if line["what"] == "update"]
    assert [line["protection"] for line in sent] == ["secure aggregation; joint differential privacy"] * 2
    assert sent[-1]["epsilon"] == by_hand


@pytest.mark.slow
def test_noise_for_an_epsilon_is_enough_for_all_turns_that_are_allowed() -> None:
    asked = [*TINY, *JOINT, "privacy.sigma=null", "privacy.epsilon=2"]
    privacy = prepare(read_source(None, asked)).privacy
    assert privacy.turns == 4
    spent = privacy.nominal_epsilon("site-1", privacy.turns)
    assert 1.9 < spent <= 2.0


@pytest.mark.slow
def test_a_round_whose_sum_is_never_unmasked_has_spent_as_much(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing(monkeypatch, "unmask", "site-1", "site-2")
    with pytest.raises(ClientsLostError):
        run_tiny(*JOINT, "privacy.spare_turns=0")
    events = read_events(tmp_path / "run" / "record.jsonl")
    spent = [event for event in events if event["event"] == "privacy"]
    assert spent
    assert {own["turns"] for event in spent for own in event["clients"].values()} == {1}
    assert not [event for event in events if event["event"] == "round"], "the run has stopped"


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_what_the_optimiser_keeps(
    run_tiny: RunTiny, run_once: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdamW, whose second step depends on the first; the killed round is drawn again and counts twice."""
    whole = run_once(*JOINT)
    commit: Callable[..., Any] = SecureAggregation.save

    def ends(sums: SecureAggregation, number: int) -> None:
        if number == 2:
            raise Killed
        commit(sums, number)

    with monkeypatch.context() as patched:
        patched.setattr(SecureAggregation, "save", ends)
        with pytest.raises(Killed):
            run_tiny(*JOINT)
    resumed = run_tiny(resume=True)
    assert_same_tensors(resumed.state.tensors, whole.state.tensors)


def test_turns_beyond_what_the_noise_allows_are_refused(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    required = Release._require_room
    monkeypatch.setattr(Release, "_require_room", lambda own, _: required(own, [own._noise] * 4))
    with refused(BudgetSpentError, "budget_spent", values=["4 turns", "for 4"]):
        run_tiny(*JOINT, "federation.min_clients=null")


@pytest.mark.parametrize(
    ("changed", "code", "values"),
    [
        pytest.param({"sigma": 0.5}, "not_agreed", ["sigma 0.5 (here 1)"], marks=pytest.mark.slow),
        ({"scale": 1.0}, "not_agreed", ["scale 1 (here"]),
        ({"colluders": 0, "clip": 9.0}, "not_agreed", ["clip 9 (here 1), colluders 0 (here 1)"]),
        (None, "conflict", []),
    ],
)
def test_no_site_takes_its_noise_from_the_server(
    run_tiny: RunTiny,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, float] | None,
    code: str,
    values: list[str],
) -> None:
    def weaker(privacy: Privacy) -> NoiseTerms | None:
        terms = joint_terms.noise_terms(privacy)
        return terms.model_copy(update=changed) if terms is not None and changed is not None else None

    monkeypatch.setattr(secure_mean, "noise_terms", weaker)
    with refused(ClientsLostError, "clients_lost", values=values) as caught:
        run_tiny(*JOINT, "federation.min_clients=null")
    cause = caught.value.__cause__
    assert isinstance(cause, WrongSum)
    assert cause.code == code


@pytest.mark.slow
def test_a_roster_too_small_for_its_colluders_gets_no_sum(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six sites with three colluders five answer: then t = 4, and a sum of five bears two."""
    failing(monkeypatch, "keys", "site-6")
    units = ", ".join(f"site-{number}: 8" for number in range(1, 7))
    more = ("data.synthetic.sites=6", f"privacy.units={{{units}}}", "privacy.colluders=3")
    run = run_tiny(*JOINT, *more, "federation.rounds=1")
    (event,) = run.of("round")
    assert event["abandoned"]
    assert event["secure_aggregation"]["refused"] == "TooFewSites"
    assert {lost["client"] for lost in run.of("client_failed")} == {"site-6"}
    assert {own["turns"] for own in event["privacy"]["clients"].values()} == {0}
    monkeypatch.setattr(masked_sums, "require_carriers", lambda roster, noise: None)
    values = ["site-1: TooFewSites", "3 colluders"]
    with refused(ClientsLostError, "clients_lost", values=values) as caught:
        run_tiny(*JOINT, *more, "federation.rounds=1", out="deceived")
    assert isinstance(caught.value.__cause__, TooFewSites)


@pytest.mark.parametrize(
    ("overrides", "path", "code", "values"),
    [
        (["privacy.secure_aggregation=false"], "privacy", "conflict", ["secure_aggregation: true"]),
        (["privacy.steps=3"], "privacy", "out_of_range", ["steps", "1", "not 3"]),
        (["privacy.range=2"], "privacy", "no_effect", ["range", "'joint'"]),
        (["privacy.units=null"], "privacy", "missing", ["units"]),
        (["privacy.mechanism=local", "privacy.colluders=1"], "privacy", "no_effect", ["colluders"]),
        (["training.epochs=3"], "training.epochs", "no_effect", ["privacy.mechanism 'joint'"]),
        (["method={name: fedprox}"], "privacy.mechanism", "not_private", ["fedprox", "method.mu"]),
        (["method={name: fedper}"], "privacy.mechanism", "not_private", ["fedper"]),
        (["method={name: fedtlu, update: full}"], "privacy.mechanism", "not_private", ["fedtlu"]),
        (["method={name: flora}"], "privacy.mechanism", "not_private", ["flora"]),
        (["method.top=auto"], "privacy.mechanism", "not_private", ["method.top", "norms"]),
        ([FEDAVG, "method.aggregation=median"], "privacy.secure_aggregation", "not_supported", ["median"]),
        (["privacy.colluders=2"], "privacy.colluders", "out_of_range", ["0 to 1"]),
        (
            ["data.synthetic.sites=2", "privacy.units={site-1: 8, site-2: 8}"],
            "privacy.secure_aggregation",
            "not_enough_data",
            ["3 to 64"],
        ),
        (["privacy.sigma=1000000"], "privacy.mechanism", "out_of_range", ["1e+06", "4 sites"]),
    ],
)
def test_what_does_not_go_with_joint_noise_is_refused(
    overrides: list[str], path: str, code: str, values: list[str]
) -> None:
    with refused(ConfigurationError, code, at=path, values=values):
        prepare(read_source(None, [*TINY, *JOINT, *overrides]))


@pytest.mark.slow  # what others assert of layer_skipping
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(f"{{name: {name}}}", id=name)
        for name in ("fedavg", "fedlora", "ffa_lora", "fedmedlora", "fedadapter")
    ],
)
def test_methods_that_may(run_once: RunTiny, method: str) -> None:
    run = run_once(*JOINT, f"method={method}", "federation.rounds=1")
    assert not run.of("round")[0]["abandoned"]
    start = prepare(read_source(None, [*TINY, *JOINT, f"method={method}"])).model.snapshot(run.state.tensors)
    assert all(not torch.equal(start[name], tensor) for name, tensor in run.state.tensors.items())
