"""LiRA's score: a likelihood ratio by shadow models."""

from __future__ import annotations

from math import exp, log, pi

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedstrata.core.seeding import Seed
from fedstrata.privacy.attacks.canaries import shadow_coins
from fedstrata.privacy.attacks.lira import LEAST_SHADOWS, OWN_VARIANCE, confidences, likelihood_ratios
from fedstrata.privacy.attacks.rates import rates_of


@st.composite
def shadowed(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Losses with the model that is attacked and with shadow models, and who was in these."""
    canaries = draw(st.integers(1, 5))
    runs = draw(st.sampled_from([LEAST_SHADOWS, 7, OWN_VARIANCE - 1, OWN_VARIANCE, OWN_VARIANCE + 1]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = generator.uniform(0.01, 8.0, size=(1 + runs, canaries))
    return found[0], found[1:], shadow_coins(canaries, runs, Seed(draw(st.integers(0, 99))))


def naive(
    losses: NDArray[np.float64], shadows: NDArray[np.float64], included: NDArray[np.bool_]
) -> list[float]:
    """One canary after the other, by the equations of the paper."""

    def confidence(loss: float) -> float:
        probability = exp(-loss)
        return log(probability / (1.0 - probability))

    def density(value: float, mean: float, variance: float) -> float:
        return -log(2.0 * pi * variance) / 2.0 - (value - mean) ** 2 / (2.0 * variance)

    many = len(shadows) >= OWN_VARIANCE
    logs: list[list[float]] = []
    for chosen in (included, ~included):
        samples = [
            [confidence(shadows[run, canary]) for run in range(len(shadows)) if chosen[run, canary]]
            for canary in range(len(losses))
        ]
        around = [[each - np.mean(own) for each in own] for own in samples]
        pooled = sum(each**2 for own in around for each in own) / sum(len(own) - 1 for own in around)
        variances = [np.var(own, ddof=1) if many else pooled for own in samples]
        triples = zip(losses, samples, variances, strict=True)
        logs.append(
            [density(confidence(loss), float(np.mean(own)), float(each)) for loss, own, each in triples]
        )
    return [inside - outside for inside, outside in zip(*logs, strict=True)]


@given(shadowed())
def test_it_is_the_papers_ratio(
    drawn: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]],
) -> None:
    assert likelihood_ratios(*drawn) == pytest.approx(naive(*drawn), rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(0.0, 1e4), min_size=2, max_size=9))
def test_confidence_falls_with_the_loss_and_is_finite_where_a_probability_is_0_or_1(
    drawn: list[float],
) -> None:
    found = confidences(np.sort(np.array(drawn)))
    assert np.isfinite(found).all()
    assert (np.diff(found) <= 0.0).all()


def test_shadows_find_whom_a_threshold_takes_for_easy() -> None:
    """Canaries differ more from each other than by whether they were in."""
    generator, canaries, runs = np.random.default_rng(1), 300, 8
    easy = generator.uniform(0.5, 4.0, size=canaries)
    included = generator.random(canaries) < 0.5
    coins = shadow_coins(canaries, runs, Seed(2))

    def trained(who: NDArray[np.bool_]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = easy * np.where(who, 0.7, 1.0) * generator.lognormal(0.0, 0.1, who.shape)
        return found

    losses = trained(included)
    by_lira = rates_of(likelihood_ratios(losses, trained(coins), coins), included)
    by_threshold = rates_of(-losses, included)
    assert by_lira.auc.low > 0.9
    assert by_threshold.auc.high < 0.75


def test_shadow_models_that_agree_on_everything_say_nothing() -> None:
    coins = shadow_coins(3, 4, Seed(0))
    assert likelihood_ratios(np.ones(3), np.ones((4, 3)), coins).tolist() == [0.0, 0.0, 0.0]


def test_too_few_shadow_models_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer than 2"):
        likelihood_ratios(np.ones(5), np.ones((3, 5)), shadow_coins(5, 3, Seed(0)))
    with pytest.raises(ValueError, match=r"shapes \(4,\), \(4, 5\) and \(4, 5\)"):
        likelihood_ratios(np.ones(4), np.ones((4, 5)), shadow_coins(5, 4, Seed(0)))
