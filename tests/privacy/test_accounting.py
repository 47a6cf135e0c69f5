"""The accountant against closed forms, against two other accountants, and against a rule that is wrong."""

import math
from collections.abc import Callable
from functools import partial

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from scipy.optimize import brentq
from scipy.stats import norm
from support import fewer_examples

from fedstrata.privacy import accounting
from fedstrata.privacy.accounting import Mechanism, epsilon_curve, epsilon_of, sigma_for

DELTA = 1e-5
NO_DELTA = (0.0, 1.0, -1.0, math.nan)
KNOWN = {(0.01, 1000): 0.736, (0.05, 200): 1.096, (0.1, 50): 1.148, (1.0, 20): 4.854}
"""Sigma at epsilon 4 by (rate, steps), from Opacus' PRV, which rounds up."""

CASES = [
    *(Mechanism(KNOWN[rate, steps], rate, steps) for rate, steps in ((0.01, 1000), (1.0, 20))),
    Mechanism(0.6, 0.02, 500),
]
SLOW_CASES = [
    *(Mechanism(KNOWN[rate, steps], rate, steps) for rate, steps in ((0.05, 200), (0.1, 50))),
    Mechanism(2.2, 0.01, 3000),
    Mechanism(8.0, 0.5, 300),
]


def gaussian(sigma: float, steps: int, delta: float) -> float:
    """Epsilon of Gaussians that see every unit (Balle and Wang 2018, theorem 8, for steps of one)."""
    deviation = sigma / math.sqrt(steps)

    def gap(epsilon: float) -> float:
        half = 0.5 / deviation
        loss = epsilon * deviation
        spent = norm.cdf(half - loss) - math.exp(epsilon + norm.logcdf(-half - loss))
        return float(spent) - delta

    return 0.0 if gap(0.0) <= 0 else float(brentq(gap, 0.0, 1e4, xtol=1e-12))


@pytest.mark.parametrize(("sigma", "steps"), [(4.854, 20), (1.0, 1), (0.5, 3), (30.0, 1000), (200.0, 10)])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_at_rate_1_it_is_the_closed_form(sigma: float, steps: int, delta: float) -> None:
    true = gaussian(sigma, steps, delta)
    assert true <= epsilon_of([Mechanism(sigma, 1.0, steps)], delta) <= true * (1 + 2e-4) + 1e-9


def test_many_steps_of_almost_everybody_are_the_closed_form_too() -> None:
    """The same through as many convolutions as there are steps, down to the least delta that is promised."""
    for delta in (1e-5, 1e-10):
        found = epsilon_of([Mechanism(4.854, 1 - 1e-12, 20)], delta)
        assert found == pytest.approx(gaussian(4.854, 20, delta), rel=2e-4)


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:Optimal order:UserWarning")
@pytest.mark.parametrize(
    "mechanism", [*CASES, *(pytest.param(own, marks=pytest.mark.slow) for own in SLOW_CASES)], ids=str
)
def test_prv_agrees_and_rdp_is_not_below(mechanism: Mechanism) -> None:
    found = epsilon_of([mechanism], DELTA)
    other = PRVAccountant()
    other.history = [(mechanism.sigma, mechanism.rate, mechanism.steps)]
    assert other.get_epsilon(DELTA, eps_error=0.005 * found) == pytest.approx(found, rel=0.01)
    looser = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    looser.compose(
        dp_accounting.PoissonSampledDpEvent(mechanism.rate, dp_accounting.GaussianDpEvent(mechanism.sigma)),
        mechanism.steps,
    )
    assert found <= looser.get_epsilon(DELTA) <= 1.6 * found


def test_coarse_grids_are_above_a_fine_one_and_settled_close_to_it() -> None:
    mechanism = Mechanism(0.736, 0.01, 1000)
    fine = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, 3e-4)
    event = dp_accounting.PoissonSampledDpEvent(
        mechanism.rate, dp_accounting.GaussianDpEvent(mechanism.sigma)
    )
    expected = fine.compose(event, mechanism.steps).get_epsilon(DELTA)
    assert expected <= epsilon_of([mechanism], DELTA) <= expected * (1 + 2e-4)


@pytest.mark.parametrize(
    ("rate", "steps"), [pytest.param(*own, marks=pytest.mark.slow if own[1] > 20 else ()) for own in KNOWN]
)
def test_sigma_is_the_least_thousandth_that_keeps_epsilon(rate: float, steps: int) -> None:
    sigma = sigma_for(4.0, DELTA, rate, steps)
    assert sigma == round(sigma, 3)
    assert epsilon_of([Mechanism(sigma, rate, steps)], DELTA) <= 4.0
    assert epsilon_of([Mechanism(sigma - 0.001, rate, steps)], DELTA) > 4.0
    assert sigma <= KNOWN[rate, steps], "never more noise than the rounded figures"
    assert sigma == pytest.approx(KNOWN[rate, steps], rel=0.005)


def test_sigma_where_almost_no_noise_would_do() -> None:
    assert sigma_for(1.0, 0.02, 0.01, 1) == 0.001, "delta alone covers a unit that is never seen"
    assert sigma_for(1e6, DELTA, 1.0, 1) == pytest.approx(0.001)
    assert sigma_for(1e-3, DELTA, 1.0, 1) == pytest.approx(
        brentq(lambda sigma: gaussian(sigma, 1, DELTA) - 1e-3, 10, 1e5), rel=2e-4
    )


def test_the_product_of_client_and_batch_rates_is_rejected_by_the_closed_form() -> None:
    """A client that a tenth of 200 rounds asked for 20 full batches: the server knows which those were."""
    true = gaussian(4.854, 20, DELTA)
    claimed = epsilon_of([Mechanism(4.854, 0.1 * 1.0, 200)], DELTA)
    assert claimed < 0.4 * true, "what the product of the rates would claim"
    assert epsilon_of([Mechanism(4.854, 1.0, 20)], DELTA) >= true


@pytest.mark.slow
@fewer_examples(12)
@given(
    sigma=st.floats(0.5, 20),
    rate=st.floats(0.01, 0.9),
    steps=st.integers(1, 200),
    exponent=st.floats(-8, -4),
    factor=st.floats(1.02, 2),
)
def test_more_noise_costs_less_and_more_of_anything_else_more(
    sigma: float, rate: float, steps: int, exponent: float, factor: float
) -> None:
    delta = 10.0**exponent
    spent = epsilon_of([Mechanism(sigma, rate, steps)], delta)
    slack = 3e-4 * spent + 1e-12  # two grids, each a little above the truth
    assert epsilon_of([Mechanism(sigma * factor, rate, steps)], delta) <= spent + slack
    assert epsilon_of([Mechanism(sigma, rate / factor, steps)], delta) <= spent + slack
    assert epsilon_of([Mechanism(sigma, rate, int(steps / factor))], delta) <= spent + slack
    assert epsilon_of([Mechanism(sigma, rate, steps)], delta * factor) <= spent + slack


def test_a_resumed_run_is_more_steps() -> None:
    once = epsilon_of([Mechanism(1.0, 0.02, 300)], DELTA)
    parts = [Mechanism(1.0, 0.02, steps) for steps in (100, 1, 150, 0, 49)]
    assert epsilon_of(parts, DELTA) == once
    assert epsilon_of(parts[::-1], DELTA) == once
    assert epsilon_of([*parts, Mechanism(1.0, 0.02, 100)], DELTA) > once


def test_different_mechanisms_are_composed_and_not_added() -> None:
    sites = [Mechanism(1.2, 0.05, 100), Mechanism(0.9, 0.01, 200), Mechanism(20.0, 1.0, 3)]
    together, alone = epsilon_of(sites, DELTA), [epsilon_of([each], DELTA) for each in sites]
    assert max(alone) < together < sum(alone)
    reference = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, 1e-3)
    for each in sites:
        gauss = dp_accounting.GaussianDpEvent(each.sigma)
        reference.compose(dp_accounting.PoissonSampledDpEvent(each.rate, gauss), each.steps)
    assert together == pytest.approx(reference.get_epsilon(DELTA), rel=5e-4)
    assert epsilon_of([Mechanism(3.0, 1.0, 4), Mechanism(6.0, 1.0, 9)], DELTA) == pytest.approx(
        gaussian(1 / math.sqrt(4 / 9 + 9 / 36), 1, DELTA), rel=2e-4
    )


def test_a_curve_ends_at_the_figure_and_has_that_of_every_round() -> None:
    each = [Mechanism(1.0, 0.02, 30)]
    rounds = [each, [], *[each] * 23]
    before = accounting._steps.cache_info().misses
    curve = epsilon_curve(rounds, DELTA)
    worked_out = accounting._steps.cache_info().misses - before
    assert worked_out <= accounting._GRIDS + 1, "those of all steps on each grid, and those of a round"
    assert len(curve) == 25
    assert curve[1] == curve[0]
    assert curve == sorted(curve)
    assert curve[-1] == epsilon_of([one for mechanisms in rounds for one in mechanisms], DELTA)
    for index in (0, 9):
        so_far = [one for mechanisms in rounds[: index + 1] for one in mechanisms]
        assert curve[index] == pytest.approx(epsilon_of(so_far, DELTA), rel=3e-4)


def test_curves_of_sites_of_rounds_that_differ_and_of_nothing() -> None:
    rounds = [[Mechanism(2.0, 0.1, 5), Mechanism(1.5, 0.05, 5)], [Mechanism(8.0, 1.0, 2)]]
    curve = epsilon_curve(rounds, DELTA)
    assert curve[0] == pytest.approx(epsilon_of(rounds[0], DELTA), rel=1e-3)
    assert curve[1] == epsilon_of([*rounds[0], *rounds[1]], DELTA)
    unprotected = [Mechanism(0.0, 0.1, 1)]
    first = epsilon_of(rounds[0], DELTA)
    assert epsilon_curve([rounds[0], unprotected, []], DELTA) == [first, math.inf, math.inf]
    assert epsilon_curve([], DELTA) == []
    assert epsilon_curve([[], []], DELTA) == [0.0, 0.0]


def test_no_noise_is_no_privacy_and_nothing_released_costs_nothing() -> None:
    assert epsilon_of([Mechanism(0.0, 0.1, 1)], DELTA) == math.inf
    assert epsilon_of([Mechanism(5.0, 0.1, 1), Mechanism(0.0, 1.0, 1)], DELTA) == math.inf
    assert epsilon_of([Mechanism(1e-5, 0.1, 1)], DELTA) == math.inf
    assert epsilon_of([], DELTA) == 0.0
    assert epsilon_of([Mechanism(0.0, 0.1, 0), Mechanism(0.0, 0.0, 7)], DELTA) == 0.0
    assert 1e4 < epsilon_of([Mechanism(0.01, 0.1, 2)], DELTA) < math.inf


@pytest.mark.parametrize(
    "call",
    [
        *(partial(Mechanism, sigma, 0.1, 1) for sigma in (-1.0, math.nan, math.inf)),
        *(partial(Mechanism, 1.0, *own) for own in ((1.1, 1), (0.1, -1))),
        *(partial(epsilon_of, [Mechanism(1.0, 0.1, 1)], delta) for delta in NO_DELTA),
        *(partial(epsilon_curve, [], delta) for delta in NO_DELTA),
        *(partial(sigma_for, 1.0, delta, 0.1, 1) for delta in NO_DELTA),
        *(partial(sigma_for, epsilon, DELTA, 0.1, 1) for epsilon in (0.0, math.inf)),
        *(partial(sigma_for, 1.0, DELTA, *own) for own in ((0.0, 1), (0.1, 0))),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"are needed|delta|no noise"):
        call()
