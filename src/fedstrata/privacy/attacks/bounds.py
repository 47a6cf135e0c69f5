"""How small epsilon can be, given how well somebody told who was trained on: three lower bounds.

Each says with a chosen confidence that the mechanism is not (epsilon, delta)-differentially private for any
smaller epsilon, and each leans on something else:

- `clopper_pearson`: on how often one threshold errs (Jagielski, Ullman and Oprea, "Auditing differentially
  private machine learning", 2020, section 4; Clopper and Pearson, Biometrika 26, 1934). It takes canaries for
  independent trials. Those of **one** run are not bound to be: a mechanism that shows everything with
  probability delta and nothing otherwise makes all of them err together. So it is sound over runs, and in one
  run for canaries that do not act on each other.
- `one_run`: on how many guesses are right, whatever canaries have to do with each other (Steinke, Nasr and
  Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023, theorem 5.2, corollary 5.4).
- `one_run_gaussian`: on the same count, for mechanisms whose trade-off function is a Gaussian's (Mahloujifar,
  Melis and Chaudhuri, "Auditing f-differential privacy in one run", 2024, algorithm 3). It sees more because
  it assumes more: what it refutes is that the mechanism is as private as the Gaussian one of a smaller
  epsilon. Many steps of subsampled Gaussian noise come near to that and are not it (Dong, Roth and Su,
  "Gaussian differential privacy", 2022). What refutes (epsilon, delta) without it is `one_run`.

The last two need that each canary was in or out by a fair coin of its own, and that how many guesses there
would be was settled before anybody looked at who was in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, expit, log_ndtr, ndtr, ndtri

_TOLERANCE = 1e-9
"""How near a bound is sought."""


@dataclass(frozen=True, slots=True)
class Guessed:
    """How well somebody guessed which canaries were in.

    Attributes:
        canaries: How many there were, guessed or not; at least 1.
        guesses: For how many of them a guess was ventured.
        correct: How many guesses were right.

    Raises:
        ValueError: More are right than were guessed, more guessed than there are, or there are none.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if not (0 <= self.correct <= self.guesses <= self.canaries and self.canaries > 0):
            raise ValueError(
                f"{self.correct} right of {self.guesses} guesses about {self.canaries} canaries: "
                "wanted 0 <= right <= guesses <= canaries, and at least one canary"
            )


@dataclass(frozen=True, slots=True)
class Errors:
    """How often one threshold errs.

    Attributes:
        included: How many canaries were in; 0 or more, as all of these.
        excluded: How many were out.
        missed: How many of those that were in it called out.
        mistaken: How many of those that were out it called in.

    Raises:
        ValueError: It errs about more canaries than there are.
    """

    included: int
    excluded: int
    missed: int
    mistaken: int

    def __post_init__(self) -> None:
        if not (0 <= self.missed <= self.included and 0 <= self.mistaken <= self.excluded):
            raise ValueError(
                f"{self.missed} of {self.included} missed and {self.mistaken} of {self.excluded} mistaken: "
                "wanted no more than there are"
            )


def clopper_pearson(errors: Errors, delta: float, confidence: float) -> float:
    """Returns the lower bound of epsilon of a threshold that was chosen without these canaries.

    (epsilon, delta) asks that P(called in | in) <= e^epsilon P(called in | out) + delta, and the same with in
    and out exchanged. Half of what confidence leaves is spent on each of the two rates of error.

    Args:
        errors: How often the threshold errs.
        delta: Of the claim, in [0, 1).
        confidence: With which the bound holds, in (0, 1).

    Returns:
        The bound, 0 or more.

    Raises:
        ValueError: `delta` or `confidence` is out of range.
    """
    _require(delta, confidence)
    counts = (np.array([errors.missed]), np.array([errors.mistaken]))
    return max(float(log_ratios(*counts, errors.included, errors.excluded, delta, confidence)[0]), 0.0)


def log_ratios(
    missed: NDArray[np.integer[Any]],
    mistaken: NDArray[np.integer[Any]],
    included: int,
    excluded: int,
    delta: float,
    confidence: float,
) -> NDArray[np.float64]:
    """Returns what `clopper_pearson` gives for many thresholds, before it is cut at 0.

    Args:
        missed: Errors about those that were in, (thresholds,).
        mistaken: Errors about those that were out, (thresholds,).
        included: How many were in.
        excluded: How many were out.
        delta: Of the claim, in [0, 1).
        confidence: With which each bound holds on its own, in (0, 1).

    Returns:
        Bounds, (thresholds,); minus infinity where nothing can be said.
    """
    level = 1.0 - (1.0 - confidence) / 2.0
    miss, mistake = _at_most(missed, included, level), _at_most(mistaken, excluded, level)
    with np.errstate(divide="ignore"):
        seen = np.log(np.maximum(1.0 - miss - delta, 0.0)) - np.log(mistake)
        unseen = np.log(np.maximum(1.0 - mistake - delta, 0.0)) - np.log(miss)
    largest: NDArray[np.float64] = np.maximum(seen, unseen)
    return largest


def _at_most(errors: NDArray[np.integer[Any]], trials: int, level: float) -> NDArray[np.float64]:
    """Returns the upper end of the one-sided Clopper-Pearson interval of a rate, (...)."""
    right = trials - errors
    ends: NDArray[np.float64] = np.where(right > 0, betaincinv(errors + 1, np.maximum(right, 1), level), 1.0)
    return ends


def one_run_probability(guessed: Guessed, epsilon: float, delta: float) -> float:
    """Returns how probable so many right guesses are at most, were the mechanism private as claimed.

    Theorem 5.2 of Steinke, Nasr and Jagielski: with r guesses and f(v) the probability that a binomial of r
    trials with e^epsilon / (1 + e^epsilon) is v or more, it is f(v) + 2 m delta max over i of
    (f(v - i) - f(v)) / i. Beyond i = v the quotient only falls.

    Args:
        guessed: How well somebody guessed.
        epsilon: Of the claim, 0 or more.
        delta: Of the claim, in [0, 1).

    Returns:
        The p value, in [0, 1].

    Raises:
        ValueError: `epsilon` or `delta` is out of range.
    """
    _require(delta)
    if not epsilon >= 0.0:
        raise ValueError(f"epsilon is {epsilon}; wanted 0 or more")
    right = np.arange(guessed.correct, -1, -1)
    # The upper tail of a binomial is an incomplete beta function, and 1 from 0 on.
    tails = betainc(np.maximum(right, 1), guessed.guesses - np.maximum(right, 1) + 1, expit(epsilon))
    tails = np.where(right > 0, tails, 1.0)
    steepest = np.max((tails[1:] - tails[0]) / np.arange(1, len(right)), initial=0.0)
    return min(float(tails[0] + 2.0 * guessed.canaries * delta * steepest), 1.0)


def one_run(guessed: Guessed, delta: float, confidence: float) -> float:
    """Returns the lower bound of epsilon for any mechanism, from one run.

    Args:
        guessed: How well somebody guessed.
        delta: Of the claim, in [0, 1).
        confidence: With which the bound holds, in (0, 1).

    Returns:
        The bound: 0 or more, and less than log(guesses / -log(1 - confidence)), which is what all guesses
        being right comes to.

    Raises:
        ValueError: `delta` or `confidence` is out of range.
    """
    _require(delta, confidence)
    return _largest(lambda epsilon: 1.0 - confidence - one_run_probability(guessed, epsilon, delta))


def one_run_gaussian(guessed: Guessed, delta: float, confidence: float) -> float:
    """Returns the lower bound of epsilon for mechanisms with a Gaussian's trade-off, from one run.

    Args:
        guessed: How well somebody guessed.
        delta: Of the claim, in (0, 1).
        confidence: With which the bound holds, in (0, 1).

    Returns:
        The bound, 0 or more.

    Raises:
        ValueError: `delta` or `confidence` is out of range.
    """
    _require(delta, confidence)
    if delta == 0.0:
        raise ValueError("delta is 0, for which no Gaussian mechanism has an epsilon; wanted more than 0")
    return gaussian_epsilon(_largest(lambda signal: _excess(guessed, signal, confidence)), delta)


def _excess(guessed: Guessed, signal: float, confidence: float) -> float:
    """Returns a number above 0 where a Gaussian mechanism of this signal is refuted.

    `audit_rh_with_cap`, algorithm 3 of Mahloujifar, Melis and Chaudhuri, for two alternatives. Suppose that
    this many right guesses or more had the probability 1 - confidence. Take what is expected of right and of
    wrong guesses from such outcomes and, going down, from those with fewer right ones, each by canary. For
    every number the trade-off function says how much of wrong guesses must come with so much of right ones
    from above it; outcomes of that number have to bring what is lacking, and bring right ones with them. If
    in the end there are more guesses than were made, it cannot have been.
    """
    count, many = guessed.guesses, guessed.canaries
    right = (1.0 - confidence) * guessed.correct / many
    wrong = (1.0 - confidence) * (count - guessed.correct) / many
    for fewer in range(guessed.correct - 1, -1, -1):
        more = float(ndtr(ndtri(right) - signal))
        if more <= wrong:  # and so it stays: nothing changes any more
            break
        right = min(right + fewer / (count - fewer) * (more - wrong), 1.0)
        wrong = more
    return right + wrong - count / many


def gaussian_delta(epsilon: float, signal: float) -> float:
    """Returns the delta of a Gaussian mechanism at this epsilon.

    Balle and Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018, theorem 8.

    Args:
        epsilon: 0 or more.
        signal: Sensitivity / noise, more than 0; mu in Dong, Roth and Su.
    """
    middle, half = epsilon / signal, signal / 2.0
    return float(ndtr(half - middle) - exp(epsilon + log_ndtr(-half - middle)))


def gaussian_signal(epsilon: float, delta: float) -> float:
    """Returns the sensitivity / noise of the Gaussian mechanism that has exactly this epsilon.

    Args:
        epsilon: 0 or more.
        delta: In (0, 1).

    Raises:
        ValueError: `epsilon` or `delta` is out of range.
    """
    _require(delta)
    if not (epsilon >= 0.0 and delta > 0.0):
        raise ValueError(f"epsilon is {epsilon} and delta {delta}; wanted 0 or more, and more than 0")
    least = _unseen(delta)
    if epsilon == 0.0:
        return least
    return _largest(lambda signal: delta - gaussian_delta(epsilon, signal), least)


def gaussian_epsilon(signal: float, delta: float) -> float:
    """Returns the epsilon of the Gaussian mechanism with this sensitivity / noise.

    Args:
        signal: Sensitivity / noise, 0 or more.
        delta: In (0, 1).

    Raises:
        ValueError: `signal` or `delta` is out of range.
    """
    _require(delta)
    if not (signal >= 0.0 and delta > 0.0):
        raise ValueError(f"the signal is {signal} and delta {delta}; wanted 0 or more, and more than 0")
    if signal <= _unseen(delta):
        return 0.0
    return _largest(lambda epsilon: gaussian_delta(epsilon, signal) - delta)


def _unseen(delta: float) -> float:
    """Returns the signal that delta alone covers: epsilon is 0 there."""
    return 2.0 * float(ndtri((1.0 + delta) / 2.0))


def _largest(excess: Callable[[float], float], least: float = 0.0) -> float:
    """Returns where a falling function comes down to 0, or `least` if it is no higher there.

    All of ours end below 0: with epsilon going to infinity no claim is refuted and no delta is needed.
    """
    if excess(least) <= 0.0:
        return least
    low, high = least, max(1.0, 2.0 * least)
    while excess(high) > 0.0:
        low, high = high, 2.0 * high
    return float(brentq(excess, low, high, xtol=_TOLERANCE))


def _require(delta: float, confidence: float = 0.95) -> None:
    if not 0.0 <= delta < 1.0:
        raise ValueError(f"delta is {delta}; wanted at least 0 and less than 1")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"the confidence is {confidence}; wanted more than 0 and less than 1")
