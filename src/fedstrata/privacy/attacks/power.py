"""What an audit would have found, were the claim false: without it, a bound below the claim says nothing."""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedstrata.core.seeding import Seed
from fedstrata.privacy.attacks.audit import (
    FALSE_BY_HALF,
    Claim,
    OneRun,
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


@dataclass(frozen=True, slots=True)
class Expected:
    """What one bound would have been.

    Attributes:
        median: In half of the runs it is this or more.
        low: In all but the lowest share of the runs it is this or more.
        found: The share of the runs that refute the claim: their bound is above it.
        most: The bound of an attack that never errs, as of one on a run without noise.
    """

    median: float
    low: float
    found: float
    most: float


@dataclass(frozen=True, slots=True)
class Power:
    """What an audit would have found.

    Attributes:
        claim: What is audited.
        canaries: How many there are.
        epsilon: What is true instead.
        trials: How many runs were simulated.
        share: That of the runs which may lie below `low`.
        clopper_pearson: As in `Audit`.
        one_run: As in `Audit`.
        one_run_gaussian: As in `Audit`.
    """

    claim: Claim
    canaries: int
    epsilon: float
    trials: int
    share: float
    clopper_pearson: Expected
    one_run: Expected
    one_run_gaussian: Expected


@dataclass(frozen=True, slots=True)
class _Runs:
    """Simulated runs.

    Attributes:
        scores: Of each canary, (trials, canaries).
        included: Whether it was in, (trials, canaries).
        share: That of the runs which may lie below `low`.
        seed: Of the audits.
    """

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]
    share: float
    seed: Seed

    def __len__(self) -> int:
        return len(self.scores)


def power(
    canaries: int,
    claim: Claim,
    seed: Seed,
    *,
    times: float = FALSE_BY_HALF,
    trials: int = 400,
    share: float = 0.1,
) -> Power:
    """Simulates audits of a claim that is false.

    Scores are ideal, those of a Gaussian mechanism of the true epsilon that adds noise of its own to each
    canary: nobody who sees a model knows as much, so a real audit finds less.

    Args:
        canaries: How many there are, 2 or more.
        claim: What is audited.
        seed: Of the scores, the coins and the audits.
        times: What is true, in epsilons of the claim, more than 0; 1 shows how often a true claim is refuted.
        trials: How many runs are simulated, 1 or more.
        share: That of the runs which may lie below `low`, in [0, 1].

    Raises:
        ValueError: `canaries`, `times`, `trials` or `share` is out of range.
    """
    if canaries < 2 or trials < 1 or not times > 0.0 or not 0.0 <= share <= 1.0:
        raise ValueError(
            f"{canaries} canaries, {trials} trials, {times} times the claim, a share of {share}: "
            "wanted at least 2, at least 1, more than 0, and at most 1"
        )
    generator = seed.child("scores").numpy()
    included = generator.random((trials, canaries)) < 0.5
    signal = gaussian_signal(times * claim.epsilon, claim.delta)
    scores = generator.standard_normal((trials, canaries)) + signal * included
    runs = _Runs(scores, included, share, seed.child("audits"))
    return Power(
        claim,
        canaries,
        times * claim.epsilon,
        trials,
        share,
        _by_threshold(runs, claim),
        _by_guesses(runs, claim, one_run),
        _by_guesses(runs, claim, one_run_gaussian),
    )


def _by_threshold(runs: _Runs, claim: Claim) -> Expected:
    found, spared = [], []
    for index, (scores, included) in enumerate(zip(runs.scores, runs.included, strict=True)):
        errors = split_errors(scores, included, claim, runs.seed.child(index))
        found.append(clopper_pearson(errors, claim.delta, claim.confidence))
        spared.append(Errors(errors.included, errors.excluded, 0, 0))
    most = [clopper_pearson(each, claim.delta, claim.confidence) for each in spared]
    refuted = float(np.mean(np.array(found) > claim.epsilon))
    return Expected(_quantile(found, 0.5), _quantile(found, runs.share), refuted, _quantile(most, 0.5))


def _by_guesses(runs: _Runs, claim: Claim, estimator: OneRun) -> Expected:
    """Returns what a bound of guesses would have been.

    It depends on nothing but how many are right, and grows with that: its quantiles are the bounds of theirs.
    """
    canaries = runs.scores.shape[1]
    guesses = planned_guesses(estimator, canaries, claim)

    def bound(right: int) -> float:
        return estimator(Guessed(canaries, guesses.count, right), claim.delta, claim.confidence)

    rights = [
        correct(scores, included, guesses, runs.seed.child(index))
        for index, (scores, included) in enumerate(zip(runs.scores, runs.included, strict=True))
    ]
    enough = bisect_right(range(guesses.count + 1), claim.epsilon, key=bound)
    middle, low = (int(_quantile(rights, each)) for each in (0.5, runs.share))
    return Expected(
        bound(middle), bound(low), float(np.mean(np.array(rights) >= enough)), bound(guesses.count)
    )


def _quantile(values: list[float] | list[int], share: float) -> float:
    """Returns a value that occurs, so that nothing is promised of runs that cannot be."""
    return float(np.quantile(values, share, method="lower"))
