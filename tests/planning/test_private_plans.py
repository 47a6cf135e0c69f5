"""Plans of runs with differential privacy: held to what the runs then do, and to the accountant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from support import TINY, RunTiny, assert_same_tensors

from fedstrata.core.documents import Document
from fedstrata.core.settings.source import read_source
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.planning.estimate import Estimate
from fedstrata.planning.measurements import Rehearsed, RoundCost, Timed, Turn
from fedstrata.planning.plan import RunPlan, make_plan
from fedstrata.planning.privacy import HOPELESS, noise_ratio
from fedstrata.planning.rehearsal import PRIVATE_STEPS, rehearse
from fedstrata.planning.survey import survey
from fedstrata.privacy.accounting import Mechanism, epsilon_of
from fedstrata.privacy.groups import epsilon_of_group

FEW_UNITS = "unit: document, units: {site-1: 12, site-2: 12, site-3: 12}, delta: 0.001, expected_batch: 4"
PRIVATE = (
    "data.synthetic.notes=12",
    "task.max_length=32",
    "task.types=[problem, test, treatment, drug]",
    f"privacy={{mechanism: local, epsilon: 8, steps: 3, windows: 2, {FEW_UNITS}}}",
)

JOINT = f"privacy={{mechanism: joint, secure_aggregation: true, sigma: 2, {FEW_UNITS}}}"


MANY_UNITS = "privacy.units={site-1: 99, site-2: 99, site-3: 99}"


@cache
def plan_private(*overrides: str) -> RunPlan:
    return make_plan(read_source(None, [*TINY, *PRIVATE, *overrides]), seconds=0.0)


@cache
def experiment_of(*overrides: str) -> Experiment:
    """Prepares a run whose noise need not be looked for."""
    known = ("privacy.epsilon=null", "privacy.sigma=1.0")
    return prepare(read_source(None, [*TINY, *PRIVATE, *known, *overrides]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("method={name: fedavg}", "privacy.noise=seeded"),
        ("privacy.unit=window", MANY_UNITS, "federation.sample=0.67"),
        ("method={name: local_only}",),
        ("method={name: centralized}",),
        ("method={name: fedper}", "federation.sample=0.67"),
        (
            "privacy.secure_aggregation=true",
            "privacy.range=1000",
            "privacy.ring=24",
            "method={name: fedavg}",
        ),
    ],
    ids=str,
)
def test_a_private_run_is_planned_as_it_then_runs(run_tiny: RunTiny, overrides: tuple[str, ...]) -> None:
    overrides = (*overrides, "federation.rounds=3")
    plan, run = plan_private(*overrides), run_tiny(*PRIVATE, *overrides)
    measured, privacy = run.summary["communication"], plan.privacy
    assert privacy is not None
    if measured["bytes_up"] is not None:  # no loss travels, but a weight, of maybe fewer digits
        assert plan.communication["bytes_up"] == pytest.approx(measured["bytes_up"], rel=1e-4)
        assert plan.communication["bytes_down"] == measured["bytes_down"]
    told = run.summary["secure_aggregation"]
    assert plan.secure_aggregation == (told and {way: told[way] for way in ("bytes_up", "bytes_down")})
    assert privacy.sigma == run.summary["privacy"]["sigma"]
    spent = {name: own.epsilon for name, own in privacy.clients.items()}
    assert spent == run.summary["privacy"]["clients"]
    if "privacy.noise=seeded" in overrides:  # whoever knows the seed can subtract the noise
        assert privacy.epsilon is None
        assert set(spent.values()) == {None}
    else:
        assert privacy.epsilon is not None
        assert max(value or 0.0 for value in spent.values()) < privacy.epsilon <= 8.0
    held = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    cached = sum(event["bytes"] for event in run.of("cache"))  # removed at the end
    without_report = plan.disk["bytes"] - plan.disk["report_bytes"]
    assert without_report == pytest.approx(held + cached, rel=0.1, abs=20_000)
    assert plan.disk["caches_bytes"] == pytest.approx(cached, rel=0.1)
    releases = [*run.folder.glob("clients/*/release*"), *run.folder.glob("clients/*/site.sqlite")]
    assert plan.disk["releases_bytes"] == pytest.approx(
        sum(path.stat().st_size for path in releases), rel=0.05
    )


def test_steps_passes_and_tokens_are_those_of_units_and_not_of_epochs() -> None:
    """As many steps as are set, in each every unit by its chance, and of it no more rows than are allowed."""
    experiment = experiment_of("privacy.steps=7")
    for workload in survey(experiment).workloads:
        assert workload.steps == 7
        assert workload.units == len(experiment.clients[workload.id].train)
        assert workload.round_passes == pytest.approx(7 * 4 / 12 * workload.units)
        assert max(workload.batches) <= 2 * 32  # two windows of 32 tokens
        mean = sum(workload.batches) / len(workload.batches)
        assert workload.round_tokens == pytest.approx(workload.round_passes * mean)


def test_units_of_one_row_share_passes_where_the_run_lets_them() -> None:
    experiment = experiment_of("privacy.unit=window", MANY_UNITS, "privacy.expected_batch=33")
    for workload in survey(experiment).workloads:
        assert workload.units == workload.examples
        assert workload.round_passes < 3 * 33 / 99 * workload.units / 2
        assert max(workload.batches) > 32


def test_the_rehearsal_draws_every_unit_from_the_seed_and_nothing_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def secret() -> None:
        raise AssertionError("a rehearsal's noise is drawn from the seed")

    experiment = experiment_of()
    before = experiment.model.snapshot(experiment.model.layout.all)
    random_state = torch.get_rng_state()
    surveyed = survey(experiment)
    monkeypatch.setattr("fedstrata.privacy.randomness.SecureRandomness", secret)
    measured = rehearse(experiment, surveyed.samples, seconds=0.0, place=tmp_path)
    assert surveyed.samples.units is not None
    largest, typical = map(len, surveyed.samples.units)
    for turn in measured.turns:
        assert len(turn.steps) == PRIVATE_STEPS
        expected = largest if turn.client == "site-1" else typical
        assert {step.passes for step in turn.steps} == {expected}
    assert not list(tmp_path.iterdir())
    assert experiment.privacy.settings.noise == "secure"
    assert torch.equal(torch.get_rng_state(), random_state)
    assert_same_tensors(before, experiment.model.tensors(experiment.model.layout.all))


def test_time_is_that_of_steps_passes_and_tokens() -> None:
    experiment = experiment_of("privacy.steps=7")
    surveyed = survey(experiment)
    steps = [Timed(tokens, 0.5 + 0.25 * passes + 0.01 * tokens, passes) for tokens, passes in
             [(100, 1), (120, 4), (300, 6), (40, 2)]]  # fmt: skip
    turns = [Turn(1, "site-1", steps, 1.0), Turn(1, "site-2", steps, 1.0), Turn(2, "site-2", steps, 2.0)]
    costs = [RoundCost(1.0, 1.0, 0.0, 0.0)] * 2
    measured = Rehearsed(turns=turns, rounds=costs, noise_seconds=0.125)
    estimate = Estimate(experiment, surveyed, measured)
    for workload in surveyed.workloads:
        steps_take = 7 * (0.5 + 0.125) + 0.25 * workload.round_passes + 0.01 * workload.round_tokens
        assert estimate.turn_seconds(workload) == pytest.approx(2.0 + steps_take)


@pytest.mark.parametrize(
    ("noise", "steps", "hopeless"),
    [
        (1.05, 1500, {1_000: False, 10_000: True, 10_000_000: True}),
        (0.049, 300, {10_000: False, 100_000: False, 1_000_000: True}),
        (0.049, 10 * 300, {1_000_000: False}),
    ],
    ids=["40 patients", "400 patients", "ten such sites"],
)
def test_noise_is_hopeless_where_the_design_has_it(
    noise: float, steps: int, hopeless: dict[int, bool]
) -> None:
    assert {count: noise_ratio(noise, count, steps) > HOPELESS for count in hopeless} == hopeless


def test_without_noise_there_is_no_epsilon() -> None:
    plan = plan_private(f"privacy={{mechanism: local, sigma: 0.0, steps: 3, {FEW_UNITS}}}")
    assert plan.privacy is not None
    assert plan.privacy.epsilon is None
    assert {own.epsilon for own in plan.privacy.clients.values()} == {None}
    assert any("nothing is protected" in warning for warning in plan.warnings)
    assert not any("hopeless" in warning for warning in plan.warnings)


def plan_of(folder: Path, corpus: Sequence[Document], unit: str, *overrides: str) -> RunPlan:
    """Plans a private run of two sites on documents of one's own."""
    write(corpus, folder / unit, "jsonl")
    notes = f"data={{format: jsonl, path: {folder / unit}, types: [problem, test, treatment, drug]}}"
    privacy = f"privacy={{mechanism: local, unit: {unit}, units: {{site-1: 150, site-2: 150}}, sigma: 1.5, "
    return plan_private(notes, privacy + "delta: 0.001, expected_batch: 2, steps: 3}", *overrides)


@pytest.mark.slow
def test_epsilon_by_window_is_told_by_patient(tmp_path: Path) -> None:
    corpus = generate(seed=1, sites=2, notes=12, notes_per_patient=3)
    plan = plan_of(tmp_path, corpus, "window", "task.max_length=64")
    assert plan.privacy is not None
    patients = plan.privacy.patients
    assert patients is not None
    assert patients.of == "patient"
    assert patients.counted == min(20, patients.units)
    assert patients.epsilon is not None and plan.privacy.epsilon is not None
    assert patients.epsilon > 2 * plan.privacy.epsilon
    (warning,) = [each for each in plan.warnings if "privacy.unit" in each and "'window'" in each]
    assert f"up to {patients.units}" in warning
    assert "Use unit 'patient'" in warning


@pytest.mark.slow
def test_documents_stand_for_patients_where_none_is_named(tmp_path: Path) -> None:
    corpus = [replace(note, metadata={}) for note in generate(seed=1, sites=2, notes=12)]
    by_window, by_document = (plan_of(tmp_path, corpus, unit).privacy for unit in ("window", "document"))
    assert by_window is not None and by_window.patients is not None
    assert by_window.patients.of == "document"
    assert by_document is not None and by_document.patients is None


@pytest.mark.parametrize(
    ("units", "epsilon"),
    [(1, 4.0), (2, 8.4), *(pytest.param(*own, marks=pytest.mark.slow) for own in ((3, 13.2), (5, 24.0)))],
)
def test_the_epsilon_of_a_patient_of_several_windows(units: int, epsilon: float) -> None:
    """Figures of the prototype (q .01, 1000 steps, sigma .736): far more than so many times that of one."""
    found = epsilon_of_group(Mechanism(0.736, 0.01, 1000), units, 1e-5)
    assert found == pytest.approx(epsilon, rel=0.02)


@pytest.mark.parametrize("rate", [1.0, pytest.param(0.9999, marks=pytest.mark.slow)])
def test_several_units_in_every_step_are_one_gaussian(rate: float) -> None:
    """Known in closed form: the sum moves by as many clipping norms."""
    several = epsilon_of_group(Mechanism(6.0, rate, 5), 3, 1e-5)
    assert several == pytest.approx(epsilon_of([Mechanism(2.0, 1.0, 5)], 1e-5), rel=0.02 if rate < 1 else 0)


def test_a_plan_says_how_joint_noise_is_shared_and_what_is_on_the_mean() -> None:
    made = plan_private(JOINT)
    assert made.privacy is not None
    assert made.privacy.joint is not None
    assert (made.privacy.joint["carriers"], made.privacy.joint["cost"]) == (3, 1.0)
    assert made.privacy.noise_on_mean == pytest.approx(2 / (3 * 4), rel=0.02)
    assert made.privacy.epsilon is not None
    assert any("all of them" in warning for warning in made.warnings)
    assert any("hopeless" in warning for warning in made.warnings)


@pytest.mark.slow
def test_what_a_sum_with_joint_noise_sends_is_planned(run_once: RunTiny) -> None:
    plan, run = plan_private(JOINT, "federation.rounds=2"), run_once(*PRIVATE, JOINT, "federation.rounds=2")
    told, measured = run.summary["secure_aggregation"], run.summary["communication"]
    assert plan.secure_aggregation == {way: told[way] for way in ("bytes_up", "bytes_down")}
    assert {way: plan.communication[way] for way in ("bytes_up", "bytes_down")} == {
        way: measured[way] for way in ("bytes_up", "bytes_down")
    }
