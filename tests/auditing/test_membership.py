"""Membership audits of whole tiny runs: who is found, what is refused, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import TINY, Call, RunTiny

from fedstrata.auditing import audit_report
from fedstrata.auditing.membership import Membership, Target, audit_membership
from fedstrata.core.errors import ConfigurationError, FedstrataError
from fedstrata.core.settings.source import read_source
from fedstrata.privacy.budgets.budget import read_budget
from fedstrata.privacy.budgets.pseudonyms import PseudonymKey

NER = "task={name: ner, types: [problem, test, treatment, drug], max_length: 64, stride: 8}"
TEXTS = "data={format: synthetic, synthetic: {sites: 3, notes: 12}}"
PATIENTS = 72


def private(sigma: float, unit: str = "patient", units: int = PATIENTS) -> str:
    declared = f"{{site-1: {units}, site-2: {units}, site-3: {units}}}"
    return (
        f"privacy={{mechanism: local, unit: {unit}, units: {declared}, delta: 0.001, sigma: {sigma}, "
        "expected_batch: 24, steps: 6, noise: seeded}"
    )


def audited(*overrides: str, canaries: int = 180, **target: Any) -> Membership:
    source = read_source(None, [*TINY, NER, *overrides])
    return audit_membership(source, Target(canaries, 4, **target), lambda event, facts: None)


def test_who_is_trained_on_without_any_defence_is_found() -> None:
    found = audited("method={name: fedavg}", "training.epochs=5")
    assert audit_report.bound_of(found).epsilon > 1.0
    assert (found.epsilon, found.power, found.unit) == (None, None, "")
    assert found.updates == 6
    assert "claim: none" in "\n".join(audit_report.words_of(found))


@pytest.mark.slow
def test_clipping_alone_hides_nobody_and_much_noise_everybody() -> None:
    sgd = "training={optimizer: sgd, learning_rate: 0.1}"
    clipped, hidden = audited(sgd, private(0.0)), audited(sgd, private(20.0))
    assert audit_report.bound_of(clipped).epsilon > 1.0
    assert clipped.epsilon is None
    assert hidden.epsilon is not None
    assert audit_report.bound_of(hidden).epsilon <= hidden.epsilon
    assert hidden.decisive.claim.epsilon == hidden.epsilon
    assert hidden.power is not None
    assert hidden.power.epsilon == 2 * hidden.epsilon


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
    told = (
        r"privacy.units: 'site-2' declares 72 patients, and with its canaries it may have \d+; .*--raise-uni"
    )
    with pytest.raises(ConfigurationError, match=told):
        audited(private(1.0), canaries=90, clients=("site-2",))
    found = audited(private(1.0), canaries=90, clients=("site-2",), raise_units=True)
    assert found.factor == 2
    assert found.clients == ("site-2",)
    assert found.updates == 2
    plain = audited(private(1.0), canaries=60)
    assert found.epsilon == plain.epsilon, "both were raised, so that chances are the same"
    with pytest.raises(ConfigurationError, match=r"privacy.delta: must be below 1/2160"):
        audited(private(1.0), canaries=2100, clients=("site-2",), raise_units=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("task={name: relations}", TEXTS), "task.name: 'relations' learns relations, which no canary has"),
        (("method={name: fl_llama}",), "method.name: fl_llama divides the model"),
        (
            ("method={name: fedavg}", "privacy={mechanism: central, sigma: 1.0, delta: 0.1}"),
            "privacy.mechanism: 'central' protects clients as a whole",
        ),
        (
            ("method={name: fedavg}", "privacy={secure_aggregation: true}"),
            "privacy.secure_aggregation: hides single updates, by which canaries are told apart",
        ),
        (
            (
                private(1.0),
                "privacy.mechanism=joint",
                "privacy.secure_aggregation=true",
                "privacy.steps=null",
                "method={name: fedavg}",
            ),
            "since 'joint' needs it",
        ),
        (
            (TEXTS, "task={name: lm}", private(1.0, "window", 200)),
            "privacy.unit: 'window' of task lm are windows of several documents",
        ),
    ],
)
def test_what_canaries_say_nothing_of_is_refused_by_name(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        audited(*overrides, canaries=10)
    assert message in str(caught.value)


def test_strangers_hold_no_canaries_and_who_sends_nothing_shows_nothing() -> None:
    with pytest.raises(ConfigurationError, match="--client: 'north' is no client that trains; these are"):
        audited(canaries=10, clients=("north",))
    with pytest.raises(FedstrataError, match="no parameter of the model has left site-1"):
        audited("method={name: local_only}", canaries=10)


def test_an_audit_spends_of_a_budget_as_a_run_does_and_ends_there(tmp_path: Path) -> None:
    """The real patients are in it: what it reserved and did not begin is free again."""
    PseudonymKey.create(tmp_path / "budget.key")
    path = tmp_path / "budget.db"
    budget = f"privacy.budget={{path: {path}, epsilon: 100, delta: 0.001, disjoint_sites: true}}"
    own = (private(1.0), "privacy.noise=secure", "privacy.spare_turns=1", budget)
    audited(*own, "federation.rounds=1", canaries=30)
    _, book = read_budget(path)
    assert [(each.client, each.reserved, each.begun) for each in book.accounts.values()] == [
        (f"site-{number}", 2, 1) for number in (1, 2, 3)
    ]
    assert all(each.ended and each.charged == each.committed == 1 for each in book.accounts.values())
    assert len(book.cohorts) > 15, "canaries that are trained on, and patients"
    with pytest.raises(ConfigurationError, match=r"privacy.budget.epsilon: a patient of 'site-1'"):
        audited(*own, "privacy.budget.epsilon=0.1", canaries=30)


@pytest.mark.slow
def test_the_command_says_and_writes_what_was_found(call: Call, tmp_path: Path, run_tiny: RunTiny) -> None:
    run = run_tiny(NER, private(1.0), "federation.rounds=1")
    done = call("attack", "membership", run.folder, "--canaries", "30", "--out", "found")
    assert done.status == 0, done.err
    told = json.loads((tmp_path / "found/membership.json").read_text())
    assert told["canaries"] == 30 == len(told["of_each"]["included"]) == len(told["of_each"]["updates"])
    assert told["claim"]["delta"] == 0.001
    assert told["decides"]["bound"] == "one_run_gaussian"
    assert told["power"]["epsilon"] == pytest.approx(2 * told["claim"]["epsilon"])
    for line in told["says"]:
        assert line.split()[0] in done.out
    page = (tmp_path / "found/membership.md").read_text()
    assert page.index("| updates | one_run_gaussian |") < page.index("| losses |")
    assert "which does not prove it" in page
    as_json = call("attack", "membership", run.folder, "--canaries", "30", "--json", "--out", "again")
    assert json.loads(as_json.out)["bounds"] == told["bounds"]
    nothing = call("attack", "membership", tmp_path)
    assert nothing.status == 2
    assert "holds no run: there is no config.yaml in it" in nothing.err


@pytest.mark.slow
def test_a_claim_that_is_refuted_is_said_to_be_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the accountant had said too little."""
    monkeypatch.setattr("fedstrata.auditing.canary_runs.AttackedRun.epsilon", 0.1)
    found = audited("training={optimizer: sgd, learning_rate: 0.1}", private(0.01))
    assert audit_report.facts_of(found)["refuted"]
    assert "more than is claimed" in "\n".join(audit_report.words_of(found))
