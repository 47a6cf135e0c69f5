"""How well a score tells those who were in from those who were not, whatever is claimed.

The area under the ROC curve is an average over all thresholds; how many are found while few are wrongly
accused is what an attack is worth (Carlini et al., "Membership Inference Attacks From First Principles",
2022).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binomtest, rankdata

FALSE_POSITIVES = (0.01, 0.1)
"""The shares of those who were out that may be called in."""
CONFIDENCE = 0.95
"""That of all intervals here."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its interval.

    Attributes:
        value: The figure.
        low: The lower end.
        high: The upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Rates:
    """How well a score tells apart.

    Attributes:
        auc: The area under the ROC curve: how often somebody who was in has a higher score than somebody who
            was out, a tie counting half.
        found: The share of those who were in that a threshold calls in, by the share of those who were out
            that it may call in at most.
    """

    auc: Estimate
    found: Mapping[float, Estimate]


def rates_of(scores: NDArray[np.floating], included: NDArray[np.bool_]) -> Rates | None:
    """Returns how well scores tell apart; none where fewer than two were in, or fewer than two out.

    Args:
        scores: Of each canary, (canaries,); the higher, the rather it was in.
        included: Whether it was, (canaries,).
    """
    inside, outside = scores[included], scores[~included]
    if min(len(inside), len(outside)) < 2:
        return None
    return Rates(_area(inside, outside), {share: _found(inside, outside, share) for share in FALSE_POSITIVES})


def _area(inside: NDArray[np.floating], outside: NDArray[np.floating]) -> Estimate:
    """Returns the area under the curve.

    The interval is that of DeLong, DeLong and Clarke-Pearson, "Comparing the areas under two or more
    correlated receiver operating characteristic curves", Biometrics 44, 1988: of no width where everybody is
    told apart.
    """
    ranks = rankdata(np.concatenate([inside, outside]))
    above = (ranks[: len(inside)] - rankdata(inside)) / len(outside)  # the share of those out below each
    below = 1.0 - (ranks[len(inside) :] - rankdata(outside)) / len(inside)
    area = float(above.mean())
    deviation = np.sqrt(above.var(ddof=1) / len(inside) + below.var(ddof=1) / len(outside))
    reach = float(ndtri((1.0 + CONFIDENCE) / 2.0) * deviation)
    return Estimate(area, max(area - reach, 0.0), min(area + reach, 1.0))


def _found(inside: NDArray[np.floating], outside: NDArray[np.floating], share: float) -> Estimate:
    """Returns how many are found at the lowest threshold that calls no more in of those who were out.

    The interval, of Clopper and Pearson, is that of this threshold; what share of others it would wrongly
    call in is uncertain, too.
    """
    allowed = int(share * len(outside))
    called = int((inside > np.sort(outside)[::-1][allowed]).sum())
    interval = binomtest(called, len(inside)).proportion_ci(CONFIDENCE)
    return Estimate(called / len(inside), float(interval.low), float(interval.high))
