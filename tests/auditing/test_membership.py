"""Membership audits of whole tiny runs: who is found, what is refused, and what is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import TINY, Call, RunTiny, problems_of, refused
from told import assert_told

from fedstrata.auditing import audit_report
from fedstrata.auditing.canary_runs import attacked_run, shadow_losses
from fedstrata.auditing.membership import Membership, Target, audit_membership, with_canaries
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare
from fedstrata.privacy.accounting import Mechanism, epsilon_of
from fedstrata.privacy.attacks.canaries import make_canaries
from fedstrata.privacy.budgets.budget import read_budget
from fedstrata.privacy.budgets.pseudonyms import PseudonymKey

NER = "task={name: ner, types: [problem, test, treatment, drug], max_length: 64, stride: 8}"
TEXTS = "data={format: synthetic, synthetic: {sites: 3, notes: 12}}"
PATIENTS = 72
SMALL = ("data.synthetic.sites=1", "data.synthetic.notes=6", "federation.rounds=1")
"""One client and one round: a run of a second."""
OVERFITTED = (*SMALL, "method={name: fedavg}", "training.epochs=12")
SGD = "training={optimizer: sgd, learning_rate: 0.1}"


def private(sigma: float, unit: str = "patient", units: int = PATIENTS, sites: int = 3) -> str:
    declared = "{" + ", ".join(f"site-{number}: {units}" for number in range(1, sites + 1)) + "}"
    return (
        f"privacy={{mechanism: local, unit: {unit}, units: {declared}, delta: 0.001, sigma: {sigma}, "
        "expected_batch: 24, steps: 6, noise: seeded}"
    )


FEDAVG, LM = "method={name: fedavg}", "task={name: lm}"
SUMMED = "privacy={secure_aggregation: true}"
CENTRAL = "privacy={mechanism: central, sigma: 1.0, delta: 0.1}"
JOINT = (private(1.0), "privacy.mechanism=joint", "privacy.secure_aggregation=true", "privacy.steps=null")


def audited(*overrides: str, canaries: int = 180, **target: Any) -> Membership:
    source = read_source(None, [*TINY, NER, *overrides])
    return audit_membership(source, Target(canaries, 4, **target), lambda event, facts: None)


@pytest.mark.slow
def test_the_last_model_alone_shows_who_was_learnt_by_heart() -> None:
    found = audited(*OVERFITTED, canaries=24, shadows=4, score="lira")
    auc = {name: own.auc for name, own in found.shown.rates.items() if own}
    assert auc["lira"].low > 0.8
    assert auc["threshold"].low > 0.6
    assert audit_report.bound_of(found).epsilon > 1.0
    assert found.decisive == found.shown.audits["lira"]
    assert audit_report.facts_of(found)["refuted"] is None


@pytest.mark.slow  # without noise the same is fast
def test_a_shadow_run_is_the_run_but_for_coins_and_for_what_clients_draw() -> None:
    """Of the same coins and draws it is the run itself, though another was made with the model before."""
    experiment = prepare(
        read_source(None, [*TINY, NER, *SMALL, private(0.5, sites=1), "privacy.steps=2", SGD])
    )
    made = (experiment.task, experiment.model.tokenizer, ["site-1"], 20, 4)
    canaries = make_canaries(*made, experiment.seed.child("canaries"))
    inside = with_canaries(experiment, canaries)
    run = attacked_run(inside, canaries, lambda event, facts: None, experiment.privacy)
    other = shadow_losses(inside, canaries, Seed(9))
    assert (run.first != run.final).all()
    assert shadow_losses(inside, canaries, experiment.seed).tolist() == run.final.tolist()
    assert (other != run.final).all()
    turned = replace(canaries, included=~canaries.included)
    assert (shadow_losses(with_canaries(experiment, turned), turned, experiment.seed) != run.final).any()


def test_scores_of_the_last_model_are_its_losses() -> None:
    own = (*OVERFITTED, "training.epochs=2")
    experiment = prepare(read_source(None, [*TINY, NER, *own]))
    found = audited(*own, canaries=12)
    seed = experiment.seed.child("membership", "canaries")
    canaries = make_canaries(experiment.task, experiment.model.tokenizer, ["site-1"], 12, 4, seed)
    final = shadow_losses(with_canaries(experiment, canaries), canaries, experiment.seed)
    assert found.shown.scores["threshold"].tolist() == (-final).tolist()
    assert (found.epsilon, found.power, found.unit) == (None, None, "")
    assert "lira" not in found.shown.scores


@pytest.mark.claim("security_review#local-epsilon")
@pytest.mark.slow
def test_noise_that_is_forgotten_is_found_by_the_audit_that_finds_nothing_with_it() -> None:
    """The whole of it: more is found without the noise, and the claim stays what it was."""
    found = audited(SGD, private(3.0), falsified="none")
    assert (found.falsified.sigma, found.falsified.epsilon) == (0.0, None)
    with_noise, without = (
        {name: own.one_run_gaussian.epsilon for name, own in shown.audits.items()}
        for shown in (found.shown, found.falsified.shown)
    )
    assert max(with_noise.values()) <= found.epsilon < without["updates"]
    assert without["updates"] > with_noise["updates"] + 0.5
    facts = audit_report.facts_of(found)
    assert facts["falsified"]["refuted"]["updates"]
    assert not facts["refuted"]
    assert facts["falsified"]["bounds"].keys() == facts["bounds"].keys() == {*audit_report.SEES} - {"lira"}


@pytest.mark.slow
def test_half_the_truth_is_the_noise_of_twice_the_epsilon() -> None:
    found = audited(*SMALL, SGD, private(1.5, sites=1), falsified="half", canaries=30)
    assert found.power.epsilon == 2 * found.decisive.claim.epsilon
    spent = Mechanism(found.falsified.sigma, 24 / PATIENTS, 6)
    assert found.epsilon == pytest.approx(epsilon_of([Mechanism(1.5, 24 / PATIENTS, 6)], 0.001))
    assert epsilon_of([spent], 0.001) == pytest.approx(2 * found.epsilon, rel=0.01)
    assert found.falsified.epsilon == 2 * found.epsilon
    claims = {own.claim for shown in (found.shown, found.falsified.shown) for own in shown.audits.values()}
    assert claims == {found.decisive.claim}, "the claim is that of the noise as it is configured"


@pytest.mark.claim("security_review#local-epsilon")
@pytest.mark.slow
def test_at_epsilon_1_no_score_refutes() -> None:
    budget = private(1.0, sites=1).replace("sigma: 1.0", "epsilon: 1, spare_turns: 0")
    found = audited(*SMALL, SGD, budget, shadows=8, canaries=60)
    assert found.epsilon == pytest.approx(1.0, abs=0.01)
    assert all(own.one_run_gaussian.epsilon <= 1.0 for own in found.shown.audits.values())
    assert len(found.shown.audits) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (TEXTS, "task={name: lm, max_length: 32}", private(0.0)),
        ("method={name: fedlora}", private(0.0, "document")),
        *(
            pytest.param(overrides, marks=pytest.mark.slow)
            for overrides in (
                (TEXTS, "task={name: classify, max_length: 64}"),
                ("method={name: centralized}", private(0.0)),
                (private(0.0, "window", 200),),
                ("method={name: droppeft, rates: 0.3}",),
            )
        ),
    ],
    ids=["lm", "lora", "classify", "pooled", "windows", "dropped blocks"],
)
def test_it_works_on(overrides: tuple[str, ...]) -> None:
    found = audited(*overrides, canaries=60)
    assert found.updates > 0
    assert all(own.std() > 0 for own in found.shown.scores.values())


@pytest.mark.slow
def test_an_audit_is_the_same_again_and_its_coins_another_with_another_seed() -> None:
    one, again, other = (audited(private(1.0), seed, canaries=30) for seed in ("seed=1", "seed=1", "seed=2"))
    assert audit_report.rows_of(one) is not None
    assert one.shown.scores["updates"].tolist() == again.shown.scores["updates"].tolist()
    assert one.included.tolist() == again.included.tolist() != other.included.tolist()


@pytest.mark.slow
def test_canaries_are_units_that_their_client_declares() -> None:
    with refused(ConfigurationError, "out_of_range", at="privacy.units", values=["'site-2'", 72]):
        audited(private(1.0), canaries=90, clients=("site-2",))
    found = audited(private(1.0), canaries=90, clients=("site-2",), raise_units=True)
    assert found.factor == 2
    assert found.clients == ("site-2",)
    assert found.updates == 2
    plain = audited(private(1.0), canaries=60)
    assert found.epsilon == plain.epsilon, "both were raised, so that chances are the same"
    with refused(ConfigurationError, "out_of_range", at="privacy.delta", values=["1/2160"]):
        audited(private(1.0), canaries=2100, clients=("site-2",), raise_units=True)


@pytest.mark.parametrize(
    ("overrides", "path", "code", "values"),
    [
        (("task={name: relations}", TEXTS), "task.name", "not_supported", ["'relations'"]),
        (("method={name: fl_llama}",), "method.name", "divides_model", ["fl_llama"]),
        ((FEDAVG, CENTRAL), "privacy.mechanism", "not_supported", ["'central'"]),
        ((FEDAVG, SUMMED), "privacy.secure_aggregation", "not_supported", []),
        ((FEDAVG, *JOINT), "privacy.secure_aggregation", "not_supported", ["'joint'"]),
        ((TEXTS, LM, private(1.0, "window")), "privacy.unit", "not_supported", ["'window'", "task lm"]),
    ],
)
def test_what_canaries_say_nothing_of_is_refused_by_name(
    overrides: tuple[str, ...], path: str, code: str, values: list[str]
) -> None:
    with refused(ConfigurationError, code, at=path, values=values):
        audited(*overrides, canaries=10)


def test_what_options_ask_in_vain_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        audited(*SMALL, canaries=10, score="lira", falsified="half", clients=("north",))
    assert problems_of(caught.value) == [
        ("--client", "unknown_name"),
        ("--score", "missing"),
        ("--falsified", "no_effect"),
    ]
    with refused(ConfigurationError, "out_of_range", at="--shadows", values=["0", "'lira'", "4", "not 3"]):
        audited(*SMALL, canaries=10, score="lira", shadows=3)
    with refused(ConfigurationError, "no_effect", at="--falsified", values=["'none'"]):
        audited(*SMALL, private(0.0, sites=1), canaries=10, falsified="none")


def test_who_sends_nothing_has_no_audit() -> None:
    with refused(ConfigurationError, "nothing_sent", at="method.name", values=["local_only"]):
        audited("method={name: local_only}", canaries=10)


def test_an_audit_spends_of_a_budget_as_a_run_does_and_ends_there(tmp_path: Path) -> None:
    """The real patients are in it: what it reserved and did not begin is free again."""
    PseudonymKey.create(tmp_path / "budget.key")
    path = tmp_path / "budget.db"
    budget = f"privacy.budget={{path: {path}, epsilon: 100, delta: 0.001, disjoint_sites: true}}"
    own = (private(1.0), "privacy.noise=secure", "privacy.spare_turns=1", "privacy.steps=2", budget)
    audited(*own, "federation.rounds=1", canaries=30)
    _, book = read_budget(path)
    assert [(each.client, each.reserved, each.begun) for each in book.accounts.values()] == [
        (f"site-{number}", 2, 1) for number in (1, 2, 3)
    ]
    assert all(each.ended and each.charged == each.committed == 1 for each in book.accounts.values())
    assert len(book.cohorts) > 15, "canaries that are trained on, and patients"
    with refused(ConfigurationError, "conflict", at="--falsified", values=["'none'", "privacy.budget"]):
        audited(*own, canaries=30, falsified="none")
    with refused(ConfigurationError, "budget_refused", at="privacy.budget.epsilon", values=["'site-1'"]):
        audited(*own, "privacy.budget.epsilon=0.1", canaries=30)


@pytest.mark.slow
def test_the_command_says_and_writes_what_was_found(call: Call, tmp_path: Path, run_tiny: RunTiny) -> None:
    run = run_tiny(NER, private(1.0), "federation.rounds=1")
    options = ("--canaries", "30", "--shadows", "4", "--score", "lira", "--falsified", "half")
    done = call("attack", "membership", run.folder, *options, "--out", "found")
    assert done.status == 0, done.err
    assert "shadow run 4 of 4 " in done.out
    told = json.loads((tmp_path / "found/membership.json").read_text())
    assert told["canaries"] == 30 == len(told["of_each"]["included"]) == len(told["of_each"]["updates"])
    assert told["claim"]["delta"] == 0.001
    assert told["decides"]["bound"] == "one_run_gaussian"
    assert told["power"]["epsilon"] == pytest.approx(2 * told["claim"]["epsilon"])
    page = (tmp_path / "found/membership.md").read_text()
    assert page.index("| lira | one_run_gaussian |") < page.index("| updates | one_run_gaussian |")
    assert told["falsified"]["epsilon"] == told["power"]["epsilon"]
    assert told["rates"]["lira"]["found"].keys() == {"0.01", "0.1"}
    assert told["falsified"]["rates"].keys() == {*audit_report.SEES}
    as_json = call("attack", "membership", run.folder, *options, "--json", "--out", "again")
    again = json.loads(as_json.out)
    assert [again[name] for name in ("bounds", "rates", "falsified")] == [
        told[name] for name in ("bounds", "rates", "falsified")
    ]
    nothing = call("attack", "membership", tmp_path)
    assert nothing.status == 2
    assert_told(nothing.err, "not_found", values=[tmp_path, "config.yaml"])
