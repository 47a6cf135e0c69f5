"""Changes as integers that can be masked, and sums of them as changes again.

Source: stochastic rounding, as in Suresh, Yu, Kumar, McMahan 2017, Distributed Mean Estimation with Limited
Communication, section 2.2. A change x with |x| <= bound becomes floor(x / step + u), u uniform in [0, 1) and
step = bound / (2^25 - 1): its expectation is x / step, and its error less than a step. These are signed
integers of 26 bits; 64 of them sum to less than 2^31 in size, so that the ring of 2^32 never overflows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.errors import TrainingError
from fedstrata.privacy.randomness import Randomness
from fedstrata.privacy.secure_sum.messages import RING

LARGEST = 2**25 - 1
"""Of a quantised value, in size."""
LARGEST_WEIGHT = 2**20
"""Of a site's number of examples."""
MOST_COUNTED = 2**26 - 1
"""Of a site's count; a larger one is cut to it, since the sum of 64 sites must fit the ring."""
MOST_SATURATED = 1e-6
"""Share of saturated values above which a sum is not worth unmasking."""
LARGEST_NUMBER = 1e15
"""Of one that a site has counted; sums of whole ones are exact as floats, too."""
LIMBS = 3
"""Ring elements of such a number."""
_LIMB, _ONE = 26, 2**20
_SPREAD = 64.0
_BLOCK = 1 << 15


@dataclass(frozen=True, slots=True)
class RoundingError:
    """What quantisation changes in a sum, where nothing saturated; in units of the change.

    Attributes:
        step: The distance of two values that can be told apart at one site.
        deviation: At most the standard deviation of an entry of the sum; its expectation is right.
        largest: No entry of the sum is as far off.
    """

    step: float
    deviation: float
    largest: float


def bound_for(last_change: Tensor | None, least: float) -> float:
    """Returns the bound of a tensor's changes: 64 times the root mean square of its last aggregated change.

    Args:
        last_change: What was last added to the tensor by all sites together; none in the first round.
        least: What the bound is then, and at least.
    """
    if last_change is None or not last_change.numel():
        return least
    values, squares = last_change.reshape(-1).numpy(), 0.0
    for start in range(0, len(values), _BLOCK):  # no copy of a whole tensor in float64
        block = values[start : start + _BLOCK].astype(np.float64)
        squares += float(np.square(block, out=block).sum())
    return max(least, _SPREAD * math.sqrt(squares / len(values)))


def rounding_error(bound: float, sites: int) -> RoundingError:
    """Returns the declared error of a sum.

    Args:
        bound: Of the tensor.
        sites: How many are in the sum.
    """
    step = bound / LARGEST
    return RoundingError(step, step * sites**0.5 / 2, step * sites)


def quantize_(change: Tensor, bound: float, randomness: Randomness) -> tuple[Tensor, int]:
    """Turns a change into ring elements, in place.

    Args:
        change: float32, contiguous, on the CPU, any shape; its memory is the result's.
        bound: What larger entries are cut to.
        randomness: What the rounding is drawn from.

    Returns:
        The ring elements, int32 of the same shape, and how many entries were cut.

    Raises:
        TrainingError: An entry is not finite, or the bound is not positive; what the tensor holds then is
            undefined.
    """
    if not 0.0 < bound < float("inf"):
        raise TrainingError(f"the range of a change must be positive and finite, not {bound}")
    values, saturated = change.view(-1).numpy(), 0
    elements = values.view(np.int32)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK].astype(np.float64)
        if not np.isfinite(block).all():
            raise TrainingError("a change is not finite and cannot be summed; try a lower learning rate")
        saturated += int(np.count_nonzero(np.abs(block) > bound))
        block *= LARGEST / bound
        block += randomness.uniform(len(block))
        np.floor(block, out=block)
        np.clip(block, -LARGEST, LARGEST, out=block)
        np.copyto(elements[start : start + _BLOCK], block, casting="unsafe")
    return change.view(RING), saturated


def dequantize_(total: Tensor, bound: float) -> Tensor:
    """Turns a sum of ring elements into the sum of changes, in place.

    Args:
        total: int32, contiguous, on the CPU, any shape; its memory is the result's.
        bound: What they were quantised with.

    Returns:
        float32 of the same shape.
    """
    elements = total.view(-1).numpy()
    values = elements.view(np.float32)
    for start in range(0, len(values), _BLOCK):
        values[start : start + _BLOCK] = elements[start : start + _BLOCK] * (bound / LARGEST)
    return total.view(torch.float32)


def weight_element(examples: int) -> Tensor:
    """Returns a site's number of examples as a ring element, (1,).

    Raises:
        TrainingError: It is not from 1 to 2^20.
    """
    if not 1 <= examples <= LARGEST_WEIGHT:
        raise TrainingError(
            f"{examples} examples cannot be a weight in a secure sum: 1 to {LARGEST_WEIGHT} can; set "
            "weights: equal"
        )
    return count_elements([examples])


def count_elements(counts: Sequence[int]) -> Tensor:
    """Returns counts as ring elements, (counts,), each cut to 2^26 - 1."""
    return torch.tensor([min(count, MOST_COUNTED) for count in counts], dtype=RING)


def number_elements(numbers: Sequence[float]) -> Tensor:
    """Returns numbers as ring elements, (numbers, 3): 26 bits each, so that 64 of them fit the ring.

    Whole numbers are exact, others rounded to a multiple of 2^-20.

    Raises:
        TrainingError: One is negative, or larger than 1e15.
    """
    if wrong := [number for number in numbers if not 0 <= number <= LARGEST_NUMBER]:
        raise TrainingError(f"{wrong[0]} cannot be summed under masks: 0 to {LARGEST_NUMBER:g} can")
    parts = [round(number * _ONE) for number in numbers]
    rows = [[part >> (_LIMB * place) & (2**_LIMB - 1) for place in range(LIMBS)] for part in parts]
    return torch.tensor(rows, dtype=RING).reshape(-1, LIMBS)


def numbers_in(total: Tensor) -> list[float]:
    """Returns what numbers sum to, from their ring elements, (numbers, 3); whole ones as integers."""
    rows = total.numpy().view(np.uint32).tolist()
    sums = [sum(limb << (_LIMB * place) for place, limb in enumerate(row)) for row in rows]
    return [one // _ONE if one % _ONE == 0 else one / _ONE for one in sums]


def counts_in(total: Tensor) -> list[int]:
    """Returns what counts sum to, from their ring elements, (counts,)."""
    return [int(each) for each in total.numpy().view(np.uint32)]
