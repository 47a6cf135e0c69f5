"""LiRA: a canary's final loss, held against the losses of models of which it is known who was in.

Carlini, Chien, Nasr, Song, Terzis and Tramer, "Membership Inference Attacks From First Principles", IEEE S&P
2022, algorithm 1, with shadow models of both kinds for every canary ("online"). The score is

    log N(c; mean_in, variance_in) - log N(c; mean_out, variance_out)

with c the confidence of the model that is attacked in the canary, and means and variances those of shadow
models that were trained on it and of those that were not.

**Confidence.** The paper's, logit scaled: log(p / (1 - p)) with p = exp(-loss), which is nearer to a Gaussian
than the loss. For one label a document p is the probability of the right one, as there. Where the loss is a
mean over tokens, tags or labels p is the geometric mean of their probabilities. That is in (0, 1] as well, so
the scale serves every task that canaries can be drawn for: it is about -loss where the model knows nothing,
and -log(loss) where it has learnt the canary by heart.

**Variance.** With few shadow models one of all canaries, around each one's own mean (the paper's section VI-C
finds it better for fewer than 64 models); with more, each canary's own.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

LEAST_SHADOWS = 4
"""With fewer a canary is not twice in and twice out, and there is no variance."""
OWN_VARIANCE = 64
"""From so many shadow models on each canary has variances of its own."""
LEAST_LOSS = float(np.finfo(np.float32).eps)
"""The loss of a canary whose probability is 1 in float32."""
LEAST_VARIANCE = 1e-12
"""Where all shadow models agree."""


def confidences(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns log(p / (1 - p)) with p = exp(-loss), (...).

    Args:
        losses: Mean losses, 0 or more, (...).
    """
    kept = np.maximum(losses, LEAST_LOSS)
    scaled: NDArray[np.float64] = -kept - np.log(-np.expm1(-kept))
    return scaled


def likelihood_ratios(
    losses: NDArray[np.float64], shadow_losses: NDArray[np.float64], included: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Returns the logarithm of how much likelier each canary's loss is if it was in than if it was not.

    Args:
        losses: Of each canary with the model that is attacked, (canaries,).
        shadow_losses: The same with each shadow model, (shadows, canaries).
        included: Whether that was trained on it, (shadows, canaries).

    Returns:
        Log likelihood ratios, (canaries,).

    Raises:
        ValueError: Shapes differ, or a canary is not at least twice in and twice out.
    """
    if shadow_losses.shape != included.shape or included.shape[1:] != losses.shape:
        shapes = f"{losses.shape}, {shadow_losses.shape} and {included.shape}"
        raise ValueError(
            f"losses and memberships of shapes {shapes}; wanted (canaries,), then (shadows, canaries)"
        )
    if min(included.sum(axis=0).min(), (~included).sum(axis=0).min()) < 2:
        raise ValueError("a canary is in or out of fewer than 2 shadow models; wanted 2 or more of each")
    found, shadows = confidences(losses), confidences(shadow_losses)
    return _log_densities(found, shadows, included) - _log_densities(found, shadows, ~included)


def _log_densities(
    found: NDArray[np.float64], shadows: NDArray[np.float64], chosen: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Returns the log density of each canary's confidence among those of the chosen shadow models."""
    counts = chosen.sum(axis=0)
    means = np.where(chosen, shadows, 0.0).sum(axis=0) / counts
    squares = np.where(chosen, shadows - means, 0.0) ** 2
    own = len(shadows) >= OWN_VARIANCE
    variances = squares.sum(axis=0) / (counts - 1) if own else squares.sum() / (counts - 1).sum()
    densities: NDArray[np.float64] = norm.logpdf(found, means, np.sqrt(np.maximum(variances, LEAST_VARIANCE)))
    return densities
