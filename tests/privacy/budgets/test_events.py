"""What runs have spent together: composed, never added, and never less than what anyone has spent."""

from __future__ import annotations

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from support import fewer_examples

from fedstrata.privacy.accounting import Mechanism, epsilon_of
from fedstrata.privacy.budgets import events
from fedstrata.privacy.budgets.events import (
    GAUSSIAN,
    SKELLAM,
    MechanismEvent,
    composed,
    exceeds,
    largest,
    profile_of,
)
from fedstrata.privacy.skellam import Sensitivity, SkellamMechanism
from fedstrata.privacy.skellam import epsilon_of as skellam_epsilon
from fedstrata.privacy.skellam_noise import distance_of

DELTA = 1e-4


def event(steps: int, sigma: float = 1.0, rate: float = 0.1) -> MechanismEvent:
    return MechanismEvent(GAUSSIAN, sigma, rate, steps)


@pytest.mark.parametrize(("runs", "steps"), [(2, 50), (10, 10), (20, 15)])
def test_so_many_runs_are_one_long_run_and_less_than_their_epsilons_together(runs: int, steps: int) -> None:
    together = composed([event(steps)] * runs, DELTA)
    assert together == pytest.approx(epsilon_of([Mechanism(1.0, 0.1, runs * steps)], DELTA), rel=1e-6)
    alone = composed([event(steps)], DELTA)
    assert alone < together < runs * alone


@pytest.mark.slow
def test_twenty_runs_of_which_no_two_are_alike_compose() -> None:
    """Between what they would be with the least and the most noise, and below their sum."""
    together = composed([event(10, sigma=1.0 + 0.05 * number) for number in range(20)], DELTA)
    most, least = (composed([event(200, sigma=sigma)], DELTA) for sigma in (1.0, 1.95))
    assert least < together < most
    assert together < 20 * composed([event(10, sigma=1.95)], DELTA), "of which none is less than this"


def test_a_mechanism_without_a_rule_is_no_gaussian() -> None:
    with pytest.raises(ValueError, match="laplace"):
        composed([MechanismEvent("laplace", 1.0, 0.1, 5), event(5)], DELTA)


def joint(steps: int, sigma: float = 1.0, rate: float = 0.1) -> MechanismEvent:
    """Of 1000 numbers, drawn by 4 sites."""
    return MechanismEvent(SKELLAM, sigma, rate, steps, 3000.0, 90000.0, 4000)


def test_runs_of_joint_noise_are_one_long_run() -> None:
    mechanism = SkellamMechanism(1.0, Sensitivity(3000.0, 90000.0), 0.1, 100)
    assert composed([joint(50)] * 2, DELTA) == skellam_epsilon([mechanism], DELTA, distance_of(400_000))


def test_the_divergences_of_a_gaussian_are_those_of_dp_accounting() -> None:
    gaussian, rdp = Mechanism(1.2, 0.05, 40), RdpAccountant(list(range(2, 64)))
    rdp.compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.2)), 40)
    assert skellam_epsilon([], DELTA, gaussians=[gaussian]) == pytest.approx(rdp.get_epsilon(DELTA), rel=1e-9)


def test_both_kinds_together_are_no_less_than_the_divergences_say() -> None:
    """Large Skellam noise is as good as Gaussian: half of each is all of one, up to the bound."""
    both = composed([event(50), joint(50)], DELTA)
    assert composed([event(100)], DELTA) < both < 1.001 * composed([joint(100)], DELTA)


STEPS, SIGMAS, RATES = (
    st.sampled_from([1, 20, 200]),
    st.sampled_from([0.7, 3.0]),
    st.sampled_from([0.01, 0.2, 1.0]),
)
RUNS = st.lists(st.tuples(STEPS, SIGMAS, RATES), min_size=1, max_size=2)


@given(RUNS, RUNS)
@fewer_examples(6)
def test_both_kinds_together_are_between_either_alone_and_the_sum_of_epsilons(
    local: list[tuple[int, float, float]], jointly: list[tuple[int, float, float]]
) -> None:
    """The sum is that of epsilons at half of delta each, which is a bound at delta."""
    one, other = [event(*run) for run in local], [joint(*run) for run in jointly]
    both = composed([*one, *other], DELTA)
    assert max(composed(one, DELTA), composed(other, DELTA)) <= both
    assert both <= 1.001 * (composed(one, DELTA / 2) + composed(other, DELTA / 2))


PROFILES = st.dictionaries(
    st.lists(st.tuples(st.sampled_from([0.8, 1.5]), st.integers(0, 2)), max_size=3).map(
        lambda runs: profile_of(event(10 * count, sigma) for sigma, count in runs)
    ),
    st.integers(1, 9),
    max_size=4,
)


@given(PROFILES)
def test_the_largest_is_that_of_whoever_spent_most(profiles: dict[tuple[MechanismEvent, ...], int]) -> None:
    every = [composed(profile, DELTA) for profile in profiles]
    found = largest(profiles, DELTA)
    assert max((own.epsilon for own in found), default=0.0) == max(every, default=0.0)
    assert sum(own.units for own in found) <= sum(profiles.values())
    cap = max(every, default=0.0)
    assert not exceeds(profiles, DELTA, cap)
    assert exceeds(profiles, DELTA, 0.999 * cap - 1e-9) or not profiles or cap == 0.0


def test_of_very_many_different_units_the_figure_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """One could not work out an epsilon for each: neighbours are as if they were in what any of them was."""
    monkeypatch.setattr(events, "MOST_FIGURES", 3)
    profiles = {
        profile_of([event(10 * number, 1.0), event(10 * (8 - number), 1.5)]): 1 for number in range(1, 8)
    }
    found = largest(profiles, DELTA)
    assert len(found) == 3
    assert sum(own.units for own in found) == 7
    most, everything = max(composed(own, DELTA) for own in profiles), [event(70, 1.0), event(70, 1.5)]
    assert most <= found[0].epsilon < composed(everything, DELTA)
