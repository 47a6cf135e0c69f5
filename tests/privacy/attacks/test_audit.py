"""What an attack's scores say about a claim, and what they would have said were it false."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedstrata.core.seeding import Seed
from fedstrata.privacy.attacks.audit import (
    FALSE_BY_HALF,
    SHARES,
    Audit,
    Claim,
    Guesses,
    audit,
    correct,
    planned_guesses,
    split_errors,
)
from fedstrata.privacy.attacks.bounds import (
    Errors,
    Guessed,
    clopper_pearson,
    gaussian_signal,
    one_run,
    one_run_gaussian,
)
from fedstrata.privacy.attacks.power import Expected, Power, power

SEED = Seed(0).child("test")
CLAIM = Claim(1.0, 1e-5)
NAMES = ("clopper_pearson", "one_run", "one_run_gaussian")


def coins(canaries: int, number: int = 0) -> NDArray[np.bool_]:
    return np.random.default_rng(number).random(canaries) < 0.5


def bounds_of(found: Audit) -> list[float]:
    return [getattr(found, name).epsilon for name in NAMES]


def expected(found: Power) -> list[Expected]:
    return [getattr(found, name) for name in NAMES]


@st.composite
def scored(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.bool_], Guesses]:
    """Some scores, many of them equal, who was in, and how many guesses."""
    count = draw(st.integers(2, 30))
    scores = draw(st.lists(st.integers(-3, 3).map(float), min_size=count, max_size=count))
    included = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    high = draw(st.integers(0, count))
    return np.array(scores), np.array(included), Guesses(high, draw(st.integers(0, count - high)))


# Counting.


@given(scored(), st.integers(0, 9))
def test_the_highest_are_guessed_in_and_the_lowest_out(
    drawn: tuple[NDArray[np.float64], NDArray[np.bool_], Guesses], number: int
) -> None:
    scores, included, guesses = drawn
    seed = Seed(number)
    ties = seed.numpy().permutation(len(scores))
    order = sorted(range(len(scores)), key=lambda each: (scores[each], ties[each]))
    right = sum(bool(included[each]) for each in order[len(order) - guesses.included :])
    right += sum(not included[each] for each in order[: guesses.excluded])
    assert correct(scores, included, guesses, seed) == right
    assert correct(3 * scores + 1, included, guesses, seed) == right  # only their order counts
    if len(set(scores)) == len(scores):  # in and out are alike
        turned = Guesses(guesses.excluded, guesses.included)
        assert correct(-scores, ~included, turned, seed) == right


@given(scored(), st.integers(0, 9), st.integers(0, 29))
def test_a_better_score_is_never_a_worse_guess(
    drawn: tuple[NDArray[np.float64], NDArray[np.bool_], Guesses], number: int, which: int
) -> None:
    scores, included, guesses = drawn
    better = scores.copy()
    which %= len(scores)
    better[which] += 2.5 if included[which] else -2.5
    before, after = (correct(each, included, guesses, Seed(number)) for each in (scores, better))
    assert before <= after <= guesses.count


def test_equal_scores_show_nothing_however_they_are_ordered() -> None:
    """A sort that kept the order would find all that were in side by side."""
    for included in (np.arange(1000) < 500, np.arange(1000) >= 500):
        assert bounds_of(audit(np.zeros(1000), included, CLAIM, SEED)) == [0.0, 0.0, 0.0]


def test_the_threshold_is_chosen_in_one_half_and_its_errors_counted_in_the_other() -> None:
    included = coins(400)
    scores = included + np.random.default_rng(1).normal(size=400)
    found = split_errors(scores, included, CLAIM, SEED)
    order = SEED.numpy().permutation(400)
    first, second = order[:200], order[200:]

    def count(threshold: float, half: NDArray[np.int64]) -> Errors:
        inside, outside = scores[half][included[half]], scores[half][~included[half]]
        return Errors(
            len(inside), len(outside), int((inside < threshold).sum()), int((outside >= threshold).sum())
        )

    def shown(threshold: float) -> float:
        return clopper_pearson(count(threshold, first), CLAIM.delta, CLAIM.confidence)

    different = np.unique(scores[first])
    assert found == count(max((different[1:] + different[:-1]) / 2, key=shown), second)
    # Who was in the half that is counted has no part in the choice.
    turned = included.copy()
    turned[second] = ~turned[second]
    assert split_errors(scores, turned, CLAIM, SEED) == Errors(
        found.excluded, found.included, found.excluded - found.mistaken, found.included - found.missed
    )


@pytest.mark.parametrize("canaries", [2, 3, 7, 50, 1000])
@pytest.mark.parametrize("estimator", [one_run, one_run_gaussian])
def test_guesses_are_planned_for_what_shows_most(canaries: int, estimator: type) -> None:
    planned = planned_guesses(estimator, canaries, CLAIM)
    assert 1 <= planned.included == planned.excluded
    assert planned.count <= canaries
    if canaries < 1000:
        return
    signal = gaussian_signal(FALSE_BY_HALF * CLAIM.epsilon, CLAIM.delta)
    generator, medians = np.random.default_rng(0), {}
    for share in SHARES:
        guesses = Guesses(int(share * canaries / 2), int(share * canaries / 2))
        rights = []
        for number in range(40):
            included = coins(canaries, number)
            scores = generator.normal(size=canaries) + signal * included
            rights.append(correct(scores, included, guesses, SEED))
        guess = Guessed(canaries, guesses.count, int(np.median(rights)))
        medians[guesses] = estimator(guess, CLAIM.delta, CLAIM.confidence)
    assert medians[planned] > max(medians.values()) - 0.1


# An audit.


@pytest.mark.parametrize("canaries", [150, 500, 1000])
def test_a_run_that_hides_nothing_is_found_out(canaries: int) -> None:
    included = coins(canaries)
    found = audit(included + np.linspace(0, 0.5, canaries), included, CLAIM, SEED)
    assert min(bounds_of(found)) > 2.0
    for name in NAMES:
        bound = getattr(found, name)
        assert bound.epsilon == bound.most
    assert found.one_run.most < log(planned_guesses(one_run, canaries, CLAIM).count / -log(0.05))
    assert (found.canaries, found.included, found.claim) == (canaries, included.sum(), CLAIM)


def test_an_audit_is_the_same_again() -> None:
    included = coins(200)
    scores = np.round(included + np.random.default_rng(1).normal(size=200))
    assert audit(scores, included, CLAIM, SEED) == audit(scores, included, CLAIM, SEED)


# Its power.


def test_power_is_what_audits_of_such_runs_find() -> None:
    """Its short cut over how many guesses are right gives what auditing each run does."""
    claim, trials, canaries = Claim(4.0, 1e-5), 30, 200
    found = power(canaries, claim, SEED, trials=trials)
    generator = SEED.child("scores").numpy()
    included = generator.random((trials, canaries)) < 0.5
    scores = generator.normal(size=(trials, canaries)) + gaussian_signal(8.0, 1e-5) * included
    seeds = [SEED.child("audits", index) for index in range(trials)]
    for name, each in zip(NAMES, expected(found), strict=True):
        if name == "clopper_pearson":
            values = [
                clopper_pearson(split_errors(own, who, claim, seed), 1e-5, 0.95)
                for own, who, seed in zip(scores, included, seeds, strict=True)
            ]
        else:
            estimator = {"one_run": one_run, "one_run_gaussian": one_run_gaussian}[name]
            guesses = planned_guesses(estimator, canaries, claim)
            values = [
                estimator(Guessed(canaries, guesses.count, correct(own, who, guesses, seed)), 1e-5, 0.95)
                for own, who, seed in zip(scores, included, seeds, strict=True)
            ]
        assert each.median == pytest.approx(np.quantile(values, 0.5, method="lower"))
        assert each.low == pytest.approx(np.quantile(values, 0.1, method="lower"))
        assert each.found == np.mean(np.array(values) > claim.epsilon)
    assert found.epsilon == 8.0


def test_power_grows_with_canaries_and_with_what_is_true() -> None:
    few, many = (power(canaries, Claim(4.0, 1e-5), SEED, trials=60) for canaries in (100, 1000))
    worse = power(1000, Claim(4.0, 1e-5), SEED, trials=60, times=4.0)
    for one, other, last in zip(expected(few), expected(many), expected(worse), strict=True):
        assert one.low <= one.median < other.median < last.median <= last.most
        assert one.most < other.most == last.most
    assert many.one_run_gaussian.found > 0.7
    assert many == power(1000, Claim(4.0, 1e-5), SEED, trials=60)


@pytest.mark.parametrize("claim", [CLAIM, Claim(4.0, 1e-5), Claim(0.5, 0.05, 0.8)])
def test_a_true_claim_is_refuted_as_seldom_as_promised(claim: Claim) -> None:
    for each in expected(power(300, claim, SEED, times=1.0, trials=200)):
        assert each.found <= 1 - claim.confidence + 0.04


IN_OR_OUT = np.array([True, False, True, False])


@pytest.mark.parametrize(
    "call",
    [
        *(
            partial(Claim, *own)
            for own in ((0.0, 0.1), (np.inf, 0.1), (1.0, 0.0), (1.0, 1.0), (1.0, 0.1, 1.0))
        ),
        *(
            partial(audit, np.zeros(scores), np.zeros(included, dtype=bool), CLAIM, SEED)
            for scores, included in ((3, 2), ((2, 2), (2, 2)), (1, 1), (0, 0))
        ),
        partial(audit, np.array([1.0, np.nan, np.inf, 0.0]), IN_OR_OUT, CLAIM, SEED),
        partial(correct, np.zeros(4), IN_OR_OUT, Guesses(3, 2), SEED),
        partial(power, 1, CLAIM, SEED),
        *(partial(power, 9, CLAIM, SEED, **own) for own in ({"trials": 0}, {"times": 0.0}, {"share": 1.1})),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"wanted|2 of 4|5 guesses"):
        call()
