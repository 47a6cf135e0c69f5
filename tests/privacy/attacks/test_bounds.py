"""Lower bounds of epsilon, from how well somebody guessed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import comb, exp, expm1, inf, isclose, log
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.privacy.attacks.bounds import (
    Errors,
    Guessed,
    clopper_pearson,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_signal,
    one_run,
    one_run_gaussian,
    one_run_probability,
)

NORMAL = NormalDist()
DELTAS = st.sampled_from([1e-9, 1e-5, 1e-3, 0.05])
CONFIDENCES = st.sampled_from([0.5, 0.8, 0.95, 0.999])
ONE_RUN = pytest.mark.parametrize("bound", [one_run, one_run_gaussian])


@st.composite
def guessed(draw: st.DrawFn) -> Guessed:
    canaries = draw(st.integers(1, 120))
    guesses = draw(st.integers(0, canaries))
    return Guessed(canaries, guesses, draw(st.integers(0, guesses)))


@st.composite
def errors(draw: st.DrawFn) -> Errors:
    included, excluded = draw(st.integers(0, 120)), draw(st.integers(0, 120))
    return Errors(included, excluded, draw(st.integers(0, included)), draw(st.integers(0, excluded)))


def tail(trials: int, probability: float, least: int) -> float:
    """Of a binomial, by summing up."""
    return sum(
        comb(trials, each) * probability**each * (1 - probability) ** (trials - each)
        for each in range(max(least, 0), trials + 1)
    )


def crossing(above: Callable[[float], bool], high: float = 40.0) -> float:
    """Where something stops being so, by halving; 0 if it never was."""
    low = 0.0
    if not above(low):
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return low


# Naive references.


def naive_probability(guess: Guessed, epsilon: float, delta: float) -> float:
    """Theorem 5.2 as it is written, i from 1 to m."""
    rate = exp(epsilon) / (1 + exp(epsilon))

    def f(count: int) -> float:
        return tail(guess.guesses, rate, count)

    many, right = guess.canaries, guess.correct
    steepest = max((f(right - each) - f(right)) / each for each in range(1, many + 1))
    return min(f(right) + 2 * many * delta * max(steepest, 0.0), 1.0)


def naive_refuted(guess: Guessed, signal: float, confidence: float) -> bool:
    """Algorithm 3 as it is written, two lists from the number of right guesses down to none."""
    many, count, right = guess.canaries, guess.guesses, guess.correct
    r, h = [0.0] * (right + 1), [0.0] * (right + 1)
    r[right], h[right] = (1 - confidence) * right / many, (1 - confidence) * (count - right) / many
    for each in range(right - 1, -1, -1):
        above = min(r[each + 1], 1 - 1e-16)
        inverse = NORMAL.cdf(NORMAL.inv_cdf(above) - signal) if above > 0 else 0.0
        h[each] = max(h[each + 1], inverse)
        r[each] = r[each + 1] + each / (count - each) * (h[each] - h[each + 1])
    return r[0] + h[0] > count / many


def naive_at_most(wrong: int, trials: int, left: float) -> float:
    """The rate at which so few errors or fewer have just this probability, by halving."""
    if wrong == trials:
        return 1.0
    return crossing(lambda rate: 1 - tail(trials, rate, wrong + 1) > left, 1.0)


@given(guessed(), st.floats(0, 6), DELTAS)
def test_the_probability_is_that_of_the_theorem(guess: Guessed, epsilon: float, delta: float) -> None:
    found = one_run_probability(guess, epsilon, delta)
    assert found == pytest.approx(naive_probability(guess, epsilon, delta), rel=1e-9, abs=1e-12)


@given(guessed(), DELTAS, CONFIDENCES)
def test_a_bound_is_where_the_probability_comes_to_what_confidence_leaves(
    guess: Guessed, delta: float, confidence: float
) -> None:
    bound = one_run(guess, delta, confidence)
    assert bound == 0.0 or isclose(
        one_run_probability(guess, bound, delta), 1 - confidence, rel_tol=1e-5, abs_tol=1e-9
    )
    assert bound > 0.0 or one_run_probability(guess, 0.0, delta) >= 1 - confidence


@given(guessed(), DELTAS, CONFIDENCES)
def test_the_gaussian_bound_is_that_of_the_algorithm(guess: Guessed, delta: float, confidence: float) -> None:
    signal = crossing(lambda each: naive_refuted(guess, each, confidence))
    found = one_run_gaussian(guess, delta, confidence)
    assert found == pytest.approx(gaussian_epsilon(signal, delta), rel=1e-5, abs=1e-5)


@given(errors(), DELTAS, CONFIDENCES)
def test_clopper_pearson_is_the_claim_at_the_worst_rates(
    wrong: Errors, delta: float, confidence: float
) -> None:
    left = (1 - confidence) / 2
    miss = naive_at_most(wrong.missed, wrong.included, left)
    mistake = naive_at_most(wrong.mistaken, wrong.excluded, left)
    ratios = [(1 - miss - delta) / mistake, (1 - mistake - delta) / miss]
    expected = max([0.0, *(log(each) for each in ratios if each > 0)])
    assert clopper_pearson(wrong, delta, confidence) == pytest.approx(expected, abs=1e-6)


@given(st.floats(0, 8), st.sampled_from([1e-6, 1e-3, 0.1]))
def test_a_gaussian_mechanism_has_its_delta(epsilon: float, delta: float) -> None:
    signal = gaussian_signal(epsilon, delta)
    at = np.linspace(-12, 12 + signal, 200_001)
    inside, outside = np.exp(-((at - signal) ** 2) / 2), np.exp(-(at**2) / 2)
    mass = np.maximum(inside - exp(epsilon) * outside, 0).sum() * (at[1] - at[0]) / np.sqrt(2 * np.pi)
    assert mass == pytest.approx(delta, rel=1e-3)
    assert gaussian_delta(epsilon, signal) == pytest.approx(delta, rel=1e-6)
    assert gaussian_epsilon(signal, delta) == pytest.approx(epsilon, abs=1e-6)


# Worked values.


def test_the_worked_example_of_the_paper() -> None:
    """Steinke, Nasr and Jagielski, appendix D: 75 of 100 guesses about 1000 canaries."""
    assert round(one_run(Guessed(1000, 100, 75), 1e-4, 0.95), 3) == 0.673


def test_the_noise_of_epsilon_one() -> None:
    """Balle and Wang: 3.7306 where the classical formula wants 4.84."""
    assert round(1 / gaussian_signal(1.0, 1e-5), 4) == 3.7306


@pytest.mark.parametrize(
    ("guess", "confidence", "delta", "epsilon", "gaussian"),
    [
        (Guessed(20, 8, 8), 0.9, 1e-2, 0.43147774, 1.13331942),
        (Guessed(20, 8, 8), 0.95, 1e-5, 0.78840105, 1.57594206),
        (Guessed(200, 60, 51), 0.9, 1e-2, 0.0, 1.10077773),
        (Guessed(200, 60, 51), 0.999, 1e-5, 0.65761997, 0.94543117),
        (Guessed(1000, 400, 301), 0.999, 1e-5, 0.73884554, 0.97638661),
        (Guessed(1000, 400, 301), 0.95, 1e-5, 0.91624254, 1.56012683),
        (Guessed(1000, 300, 160), 0.95, 1e-5, 0.0, 0.0),
    ],
)
def test_bounds_of_one_run_are_those_of_jax_privacy(
    guess: Guessed, confidence: float, delta: float, epsilon: float, gaussian: float
) -> None:
    """What version 2.0.0 finds of the same counts."""
    assert one_run(guess, delta, confidence) == pytest.approx(epsilon, abs=1e-5, rel=1e-5)
    assert one_run_gaussian(guess, delta, confidence) == pytest.approx(gaussian, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize(
    ("errors", "confidence", "delta", "epsilon"),
    [
        (Errors(10, 10, 0, 1), 0.9, 1e-2, 0.83365781),
        (Errors(10, 10, 0, 1), 0.999, 1e-5, 0.0),
        (Errors(104, 96, 40, 3), 0.95, 1e-5, 1.75957833),
        (Errors(500, 500, 120, 30), 0.999, 1e-5, 1.90645733),
        (Errors(500, 480, 450, 2), 0.9, 1e-2, 1.66093495),
    ],
)
def test_bounds_of_errors_are_those_of_jax_privacy(
    errors: Errors, confidence: float, delta: float, epsilon: float
) -> None:
    assert clopper_pearson(errors, delta, confidence) == pytest.approx(epsilon, abs=1e-5)


def test_by_hand() -> None:
    # No error in 50 at 97.5 %: rates of at most 1 - .025^(1/50) = .0711 and so log(.9289 / .0711).
    assert round(clopper_pearson(Errors(50, 50, 0, 0), 0.0, 0.95), 3) == 2.570
    # 24 right of 24, q^24 = .05: q = .8827, log(q / (1 - q)).
    assert round(one_run(Guessed(24, 24, 24), 0.0, 0.95), 3) == 2.018
    # A coin that falls five times as guessed has probability 1/32 at epsilon 0: below .05, not below .03.
    assert one_run(Guessed(5, 5, 5), 0.0, 0.95) > 0.0 == one_run(Guessed(5, 5, 5), 0.0, 0.97)


# Invariants.


@ONE_RUN
@given(guess=guessed(), delta=DELTAS, confidence=CONFIDENCES)
def test_half_right_shows_nothing(
    bound: Callable[..., float], guess: Guessed, delta: float, confidence: float
) -> None:
    chance = Guessed(guess.canaries, guess.guesses, guess.guesses // 2)
    assert bound(chance, delta, max(confidence, 0.8)) == 0.0


@ONE_RUN
@given(guess=guessed(), delta=DELTAS, confidence=CONFIDENCES)
def test_more_right_guesses_show_more_and_more_confidence_shows_less(
    bound: Callable[..., float], guess: Guessed, delta: float, confidence: float
) -> None:
    found = bound(guess, delta, confidence)
    assert bound(guess, delta, (1 + confidence) / 2) <= found + 1e-6
    assert bound(guess, 2 * delta, confidence) <= found + 1e-6
    if guess.correct < guess.guesses:
        assert bound(Guessed(guess.canaries, guess.guesses, guess.correct + 1), delta, confidence) >= found
        assert bound(Guessed(guess.canaries, guess.guesses, guess.guesses), delta, confidence) < inf


@given(guessed(), DELTAS, CONFIDENCES)
def test_no_more_than_guesses_can_show(guess: Guessed, delta: float, confidence: float) -> None:
    count, left = guess.guesses, 1 - confidence
    most = max(-log(expm1(-log(left) / count)), 0.0) if count else 0.0
    assert one_run(guess, delta, confidence) <= most + 1e-6
    assert one_run(Guessed(guess.canaries, count, count), 0.0, confidence) == pytest.approx(most, abs=1e-6)
    assert most <= max(log(max(count, 1) / -log(left)), 0.0)


@given(errors(), DELTAS, CONFIDENCES)
def test_fewer_errors_show_more_and_none_shows_what_canaries_can(
    wrong: Errors, delta: float, confidence: float
) -> None:
    found = clopper_pearson(wrong, delta, confidence)
    spared = clopper_pearson(Errors(wrong.included, wrong.excluded, 0, 0), delta, confidence)
    rest = -log((1 - confidence) / 2)
    assert found <= spared <= max(log(max(wrong.included, wrong.excluded, 1) / rest), 0.0) + 1e-9
    assert clopper_pearson(wrong, delta, (1 + confidence) / 2) <= found + 1e-9
    turned = Errors(wrong.excluded, wrong.included, wrong.mistaken, wrong.missed)
    assert clopper_pearson(turned, delta, confidence) == found


def test_it_goes_as_far_as_thousands_of_canaries() -> None:
    for bound in (one_run, one_run_gaussian):
        assert log(20_000 / 4) < bound(Guessed(20_000, 20_000, 20_000), 1e-9, 0.95) < 40
        assert bound(Guessed(20_000, 20_000, 10_000), 1e-9, 0.95) == 0.0


# Coverage.


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("guesses", [5, 40, 100])
def test_randomised_response_is_refuted_as_seldom_as_promised(epsilon: float, guesses: int) -> None:
    """It gets away with most, and how often each count comes is known: no simulation."""
    rate = exp(epsilon) / (1 + exp(epsilon))
    wrong = [
        comb(guesses, count) * rate**count * (1 - rate) ** (guesses - count)
        for count in range(guesses + 1)
        if one_run(Guessed(guesses, guesses, count), 0.0, 0.95) > epsilon + 1e-6
    ]
    assert sum(wrong) <= 0.05
    if guesses == 100:
        assert sum(wrong) > 0.02  # nor more seldom, so that nothing is given away


def test_a_mechanism_that_shows_everything_with_probability_delta_is_not_refuted() -> None:
    """It is (0, delta)-private, and once in ten runs all guesses are right."""
    assert one_run(Guessed(100, 100, 100), 0.1, 0.95) == 0.0
    assert one_run(Guessed(100, 100, 100), 0.0, 0.95) > 3.0
    # Which is what takes canaries for independent trials cannot know.
    assert clopper_pearson(Errors(50, 50, 0, 0), 0.1, 0.95) > 2.0


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_rates_of_independent_canaries_are_covered(epsilon: float) -> None:
    """The best threshold for this delta, known beforehand, so that the claim is met with equality."""
    delta, generator = 0.01, np.random.default_rng(0)
    signal = gaussian_signal(epsilon, delta)
    threshold = epsilon / signal + signal / 2
    rates = [NORMAL.cdf(threshold - signal), 1 - NORMAL.cdf(threshold)]
    drawn = generator.binomial(400, rates, size=(2000, 2))
    wrong = [
        clopper_pearson(Errors(400, 400, int(missed), int(mistaken)), delta, 0.95) > epsilon
        for missed, mistaken in drawn
    ]
    assert np.mean(wrong) <= 0.05


# What is refused.


@pytest.mark.parametrize(("delta", "confidence"), [(-0.1, 0.9), (1.0, 0.9), (0.1, 0.0), (0.1, 1.0)])
def test_a_claim_that_cannot_be_is_refused(delta: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="wanted"):
        clopper_pearson(Errors(1, 1, 0, 0), delta, confidence)
    for bound in (one_run, one_run_gaussian):
        with pytest.raises(ValueError, match="wanted"):
            bound(Guessed(1, 1, 1), delta, confidence)


@pytest.mark.parametrize(
    "call",
    [
        *(partial(Guessed, *counts) for counts in ((0, 0, 0), (5, 6, 0), (5, 4, 5), (5, 4, -1))),
        *(partial(Errors, *counts) for counts in ((5, 5, 6, 0), (5, 5, 0, 6), (5, 5, -1, 0), (-1, 5, 0, 0))),
        partial(one_run_gaussian, Guessed(1, 1, 1), 0.0, 0.9),
        partial(one_run_probability, Guessed(1, 1, 1), -1.0, 0.1),
        *(partial(gaussian_signal, *wrong) for wrong in ((1.0, 0.0), (-1.0, 0.1))),
        *(partial(gaussian_epsilon, *wrong) for wrong in ((1.0, 0.0), (-1.0, 0.1))),
    ],
)
def test_numbers_that_cannot_be_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"wanted|guesses"):
        call()
