"""Which units take part in a step, and which of their examples.

The accountant's figures hold for Poisson sampling and nothing else: each unit is in each step or not,
independently of every other unit and step. Batches of a fixed size, or an order that is shuffled once an
epoch, are other mechanisms.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedstrata.privacy.randomness import Randomness


def poisson(units: int, rate: float, randomness: Randomness) -> NDArray[np.int64]:
    """Draws the units of one step (Abadi et al., "Deep Learning with Differential Privacy", 2016, section 2).

    Args:
        units: How many units there are; whoever calls has fixed their order.
        rate: The probability of each.
        randomness: Where chance comes from.

    Returns:
        Indices of units in ascending order, (drawn,); there may be none. A step without units is still a
        step: it releases noise, and skipping it would tell that nobody was drawn.

    Raises:
        ValueError: The rate is not a probability.
    """
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"a unit is drawn with a probability in [0, 1], not {rate}")
    return np.flatnonzero(randomness.uniform(units) < rate)


def drawn_windows(counts: Sequence[int], limit: int, randomness: Randomness) -> NDArray[np.int64]:
    """Draws examples of one unit, in random order, until the next would be too much.

    What a unit contributes is clipped whatever it was computed from, so this choice costs work and no
    privacy. It ends at the first example that does not fit, in place of looking for one that does: shorter
    examples then have no more of an advantage than they need.

    Args:
        counts: The number of windows of each example of the unit, (examples,).
        limit: The most windows that a unit may have in a step.
        randomness: Where chance comes from.

    Returns:
        Indices of examples in the order they were drawn, (drawn,): at least one where the unit has any, even
        if that one alone has more windows than `limit`.

    Raises:
        ValueError: The limit is below 1.
    """
    if limit < 1:
        raise ValueError(f"a unit has at least 1 window in a step, not {limit}")
    order = np.argsort(randomness.uniform(len(counts)), kind="stable")
    windows = np.cumsum(np.asarray(counts, dtype=np.int64)[order])
    return order[: max(1, int(np.searchsorted(windows, limit, side="right")))]
