"""What an attack says about a claim of differential privacy, from one run with canaries in it.

Canaries are made-up patients. A fair coin of its own decides about each whether it is trained on; afterwards
an attack gives every one of them a score, the higher the more it believes that it was. `audit` makes three
lower bounds of epsilon of that (`bounds` says what each leans on).

Nothing is chosen by what is to be counted. How many canaries the one-run bounds guess about (the highest
scores are guessed in, the lowest out) follows from the claim and the number of canaries alone, in
`planned_guesses`. The threshold of `clopper_pearson` is chosen on a random half of the canaries, and its
errors are counted on the other: that costs less than Bonferroni's correction for every score as a threshold.
(A correction for only those thresholds that looked best, as jax-privacy 2.0 makes, is too small: at chance
its one-run bound of 1000 canaries was above 0 in 6.9 % of 6000 runs that were to be 5 %.)

Each bound holds with the claim's confidence on its own. Whoever takes the largest of the three has three
chances to be wrong: name the one that decides beforehand.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from fedstrata.core.seeding import Seed
from fedstrata.privacy.attacks.bounds import (
    Errors,
    Guessed,
    clopper_pearson,
    gaussian_signal,
    log_ratios,
    one_run,
    one_run_gaussian,
)

FALSE_BY_HALF = 2.0
"""Times the claimed epsilon: what is true of a claim that is false by half."""
SHARES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)
"""Shares of the canaries that guesses may be planned for, half of them in and half out."""

OneRun = Callable[[Guessed, float, float], float]
"""A bound of guesses: of how many were right, delta and confidence."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What is audited, and how sure a refutation must be.

    Attributes:
        epsilon: What is claimed, more than 0.
        delta: With which it is claimed, in (0, 1).
        confidence: With which a bound must hold, in (0, 1).

    Raises:
        ValueError: One is out of range.
    """

    epsilon: float
    delta: float
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not (0.0 < self.epsilon < np.inf and 0.0 < self.delta < 1.0 and 0.0 < self.confidence < 1.0):
            raise ValueError(
                f"epsilon {self.epsilon}, delta {self.delta}, confidence {self.confidence}: "
                "wanted all of them more than 0, and the last two less than 1"
            )


@dataclass(frozen=True, slots=True)
class Guesses:
    """How many guesses are ventured.

    Attributes:
        included: How many of the highest scores are guessed in (k+ of the paper), 0 or more.
        excluded: How many of the lowest scores are guessed out (k-), 0 or more.
    """

    included: int
    excluded: int

    @property
    def count(self) -> int:
        """How many there are together."""
        return self.included + self.excluded


@dataclass(frozen=True, slots=True)
class Bound:
    """What was found.

    Attributes:
        epsilon: The lower bound.
        most: What it would be had the attack erred about no canary that counts here.
    """

    epsilon: float
    most: float


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found in one run.

    Attributes:
        claim: What was audited.
        canaries: How many there were.
        included: How many of them were in.
        clopper_pearson: By one threshold, taking canaries for independent trials.
        one_run: By guesses, for any mechanism.
        one_run_gaussian: By guesses, for mechanisms with a Gaussian's trade-off function.
    """

    claim: Claim
    canaries: int
    included: int
    clopper_pearson: Bound
    one_run: Bound
    one_run_gaussian: Bound


def audit(scores: NDArray[np.floating], included: NDArray[np.bool_], claim: Claim, seed: Seed) -> Audit:
    """Audits a claim.

    Args:
        scores: What the attack says of each canary, (canaries,); the higher, the rather it was in.
        included: Whether it was, by a fair coin for each, (canaries,); at least 2.
        claim: What is audited.
        seed: Of the halves, and of the order among equal scores.

    Raises:
        ValueError: The shapes differ, there are fewer than 2 canaries, or a score is not finite.
    """
    if scores.ndim != 1 or scores.shape != included.shape or len(scores) < 2:
        shapes = f"{scores.shape} and {included.shape}"
        raise ValueError(
            f"scores and memberships of shapes {shapes}; wanted one of each for 2 canaries or more"
        )
    if not np.isfinite(scores).all():
        raise ValueError(
            f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores are not finite numbers"
        )

    def bound(estimator: OneRun, name: str) -> Bound:
        guesses = planned_guesses(estimator, len(scores), claim)
        right = correct(scores, included, guesses, seed.child(name))
        found, most = (
            estimator(Guessed(len(scores), guesses.count, each), claim.delta, claim.confidence)
            for each in (right, guesses.count)
        )
        return Bound(found, most)

    errors = split_errors(scores, included, claim, seed.child("halves"))
    spared = Errors(errors.included, errors.excluded, 0, 0)
    found, most = (clopper_pearson(each, claim.delta, claim.confidence) for each in (errors, spared))
    return Audit(
        claim,
        len(scores),
        int(included.sum()),
        Bound(found, most),
        bound(one_run, "one_run"),
        bound(one_run_gaussian, "one_run_gaussian"),
    )


def planned_guesses(estimator: OneRun, canaries: int, claim: Claim) -> Guesses:
    """Returns how many guesses show most, were the claim false by half.

    Guessing about few canaries is right more often, guessing about many proves more. What ideal scores of a
    Gaussian mechanism of twice the epsilon would give decides, so nothing of a run does.

    Args:
        estimator: The bound of the guesses.
        canaries: How many there are, 2 or more.
        claim: What is audited.
    """
    signal = gaussian_signal(FALSE_BY_HALF * claim.epsilon, claim.delta)

    def shown(guesses: Guesses) -> float:
        right = int(guesses.count * _precision(signal, guesses.count / canaries))
        return estimator(Guessed(canaries, guesses.count, right), claim.delta, claim.confidence)

    sides = dict.fromkeys(max(1, int(share * canaries / 2.0)) for share in SHARES)
    # Where nothing shows anything, it is the most guesses, which show most where there is no privacy at all.
    return max((Guesses(side, side) for side in sides), key=shown)


def _precision(signal: float, share: float) -> float:
    """Returns how often guesses about the extreme scores are right, half of a share of them on each side."""
    half = signal / 2.0  # the scores of those in and out lie half a signal above and below 0

    def tails(threshold: float) -> tuple[float, float]:
        return float(ndtr(half - threshold)), float(ndtr(-half - threshold))

    reach = 10.0 + half  # beyond it is nothing that floating point could tell from nothing
    threshold = brentq(lambda each: sum(tails(each)) - share, -reach, reach)
    above, below = tails(threshold)
    return above / (above + below)


def correct(scores: NDArray[np.floating], included: NDArray[np.bool_], guesses: Guesses, seed: Seed) -> int:
    """Returns how many guesses are right: the highest scores are guessed in, the lowest out.

    Args:
        scores: What the attack says of each canary, (canaries,).
        included: Whether it was in, (canaries,).
        guesses: How many are ventured.
        seed: Of the order among equal scores, which must know nothing of who was in.

    Raises:
        ValueError: There are more guesses than canaries.
    """
    if guesses.count > len(scores):
        raise ValueError(
            f"{guesses.count} guesses about {len(scores)} canaries; wanted no more than there are"
        )
    order = np.lexsort((seed.numpy().permutation(len(scores)), scores))
    lowest, highest = order[: guesses.excluded], order[len(order) - guesses.included :]
    return int(included[highest].sum() + (~included[lowest]).sum())


def split_errors(
    scores: NDArray[np.floating], included: NDArray[np.bool_], claim: Claim, seed: Seed
) -> Errors:
    """Chooses the threshold that shows most in one half of the canaries, and counts its errors in the other.

    Args:
        scores: What the attack says of each canary, (canaries,); at or above the threshold it is called in.
        included: Whether it was in, (canaries,).
        claim: What is audited.
        seed: Of the halves, which are drawn whoever was in: coins of the one half say nothing of the other's.
    """
    order = seed.numpy().permutation(len(scores))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    threshold = _best_threshold(scores[first], included[first], claim)
    called, was = scores[second] >= threshold, included[second]
    counts = (was, ~was, was & ~called, ~was & called)
    return Errors(*(int(each.sum()) for each in counts))


def _best_threshold(scores: NDArray[np.floating], included: NDArray[np.bool_], claim: Claim) -> np.floating:
    """Returns from where on calling canaries in gives the largest bound, midway between two scores."""
    inside, outside = np.sort(scores[included]), np.sort(scores[~included])
    different = np.unique(scores)
    # Other canaries' scores fall between these: at one of them, the threshold would call its like out.
    thresholds = np.append(different[:1], different[:-1] / 2.0 + different[1:] / 2.0)
    missed = np.searchsorted(inside, thresholds)
    mistaken = len(outside) - np.searchsorted(outside, thresholds)
    shown = log_ratios(missed, mistaken, len(inside), len(outside), claim.delta, claim.confidence)
    chosen: np.floating = thresholds[np.argmax(shown)]
    return chosen
