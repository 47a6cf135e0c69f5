"""Changes as integers that can be masked, and sums of them as changes again.

Source: stochastic rounding, as in Suresh, Yu, Kumar, McMahan 2017, Distributed Mean Estimation with Limited
Communication, section 2.2. A change x with |x| <= bound becomes floor(x / step + u), u uniform in [0, 1) and
step = bound / (2^25 - 1): its expectation is x / step, and its error less than a step. These are signed
integers of 26 bits; 64 of them sum to less than 2^31 in size, so that the ring of 2^32 never overflows.

In the ring of 2^24 they have 18 bits: a quarter of the bytes less, and steps 256 times as large. Elements are
masked as in the ring of 2^32, of which it is a quotient, and the lower three bytes of each travel.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.errors import FrameError, TrainingError
from fedstrata.privacy.randomness import Randomness
from fedstrata.privacy.secure_sum.messages import RING

LARGEST_WEIGHT = 2**20
"""Of a site's number of examples, if the ring has room for it."""
MOST_SATURATED = 1e-6
"""Share of cut values above which the next sum has a wider range."""
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


def largest_value(bits: int) -> int:
    """Returns how large a quantised value is at most, in size, in a ring of so many bits."""
    return (1 << bits - 7) - 1


def most_counted(bits: int) -> int:
    """Returns how large a site's count is at most; the sum of 64 sites must fit the ring."""
    return (1 << bits - 6) - 1


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


def rounding_error(bound: float, sites: int, bits: int = 32) -> RoundingError:
    """Returns the declared error of a sum.

    Args:
        bound: Of the tensor.
        sites: How many are in the sum.
        bits: Of the ring.
    """
    step = bound / largest_value(bits)
    return RoundingError(step, step * sites**0.5 / 2, step * sites)


def quantize_(change: Tensor, bound: float, randomness: Randomness, bits: int = 32) -> tuple[Tensor, int]:
    """Turns a change into ring elements, in place.

    Args:
        change: float32, contiguous, on the CPU, any shape; its memory is the result's.
        bound: What larger entries are cut to.
        randomness: What the rounding is drawn from.
        bits: Of the ring.

    Returns:
        The ring elements, int32 of the same shape, and how many entries were cut.

    Raises:
        TrainingError: An entry is not finite, or the bound is not positive; what the tensor holds then is
            undefined.
    """
    if not 0.0 < bound < float("inf"):
        raise TrainingError(
            f"the range of a change must be positive and finite, not {bound}", code="out_of_range"
        )
    values, saturated, most = change.view(-1).numpy(), 0, largest_value(bits)
    elements = values.view(np.int32)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK].astype(np.float64)
        if not np.isfinite(block).all():
            raise TrainingError(
                "a change is not finite and cannot be summed; try a lower learning rate", code="diverged"
            )
        saturated += int(np.count_nonzero(np.abs(block) > bound))
        block *= most / bound
        block += randomness.uniform(len(block))
        np.floor(block, out=block)
        np.clip(block, -most, most, out=block)
        np.copyto(elements[start : start + _BLOCK], block, casting="unsafe")
    return change.view(RING), saturated


def dequantize_(total: Tensor, bound: float, bits: int = 32) -> Tensor:
    """Turns a sum of ring elements into the sum of changes, in place.

    Args:
        total: int32, contiguous, on the CPU, any shape; its memory is the result's.
        bound: What they were quantised with.
        bits: Of the ring; what is above them is no part of an element.

    Returns:
        float32 of the same shape.
    """
    elements = total.view(-1).numpy()
    values, step, above = elements.view(np.float32), bound / largest_value(bits), 32 - bits
    for start in range(0, len(values), _BLOCK):
        values[start : start + _BLOCK] = (elements[start : start + _BLOCK] << above >> above) * step
    return total.view(torch.float32)


def weight_element(examples: int, bits: int = 32) -> Tensor:
    """Returns a site's number of examples as a ring element, (1,).

    Raises:
        TrainingError: It is not from 1 to 2^20, or in the ring of 2^24 to 2^18 - 1.
    """
    most = min(LARGEST_WEIGHT, most_counted(bits))
    if not 1 <= examples <= most:
        told = f"{examples} examples cannot be a weight in a secure sum of {bits} bits"
        raise TrainingError(f"{told}: 1 to {most} can", code="out_of_range")
    return count_elements([examples])


def count_elements(counts: Sequence[int], bits: int = 32) -> Tensor:
    """Returns counts as ring elements, (counts,), each cut to what fits the sum of 64 sites."""
    return torch.tensor([min(count, most_counted(bits)) for count in counts], dtype=RING)


def number_elements(numbers: Sequence[float]) -> Tensor:
    """Returns numbers as ring elements, (numbers, 3): 26 bits each, so that 64 of them fit the ring.

    Whole numbers are exact, others rounded to a multiple of 2^-20.

    Raises:
        TrainingError: One is negative, or larger than 1e15; which it is does not leave its site either.
    """
    if not all(0 <= number <= LARGEST_NUMBER for number in numbers):
        raise TrainingError(
            f"what was counted cannot be summed under masks: numbers from 0 to {LARGEST_NUMBER:g} can",
            code="out_of_range",
        )
    parts = [round(number * _ONE) for number in numbers]
    rows = [[part >> (_LIMB * place) & (2**_LIMB - 1) for place in range(LIMBS)] for part in parts]
    return torch.tensor(rows, dtype=RING).reshape(-1, LIMBS)


def numbers_in(total: Tensor) -> list[float]:
    """Returns what numbers sum to, from their ring elements, (numbers, 3); whole ones as integers."""
    rows = total.numpy().view(np.uint32).tolist()
    sums = [sum(limb << (_LIMB * place) for place, limb in enumerate(row)) for row in rows]
    return [one // _ONE if one % _ONE == 0 else one / _ONE for one in sums]


def counts_in(total: Tensor, bits: int = 32) -> list[int]:
    """Returns what counts sum to, from their ring elements, (counts,)."""
    return [int(each) & (2**bits - 1) for each in total.numpy().view(np.uint32)]


def packed(elements: Tensor, bits: int) -> Tensor:
    """Returns ring elements as they travel.

    Args:
        elements: int32, any shape.
        bits: Of the ring.

    Returns:
        Themselves in the ring of 2^32; else the lower bytes of each one after the other, uint8,
        (bits / 8 x elements,).
    """
    if bits == 32:
        return elements
    return elements.reshape(-1).view(torch.uint8).view(-1, 4)[:, : bits // 8].reshape(-1)


def unpacked(sent: Tensor, shape: Sequence[int], bits: int) -> Tensor:
    """Returns ring elements as they were before they travelled.

    Args:
        sent: What came, from anybody; of the ring of 2^32 nothing is checked here.
        shape: Of the elements.
        bits: Of the ring.

    Raises:
        FrameError: It is not what so many elements are packed to.
    """
    if bits == 32:
        return sent
    count, width = math.prod(shape), bits // 8
    if sent.dtype != torch.uint8 or tuple(sent.shape) != (count * width,):
        raise FrameError(
            f"a tensor of a secure sum is not {count} elements of {width} bytes each", code="wrong_shape"
        )
    elements = torch.zeros(tuple(shape), dtype=RING)
    elements.view(-1).view(torch.uint8).view(-1, 4)[:, :width] = sent.view(-1, width)
    return elements
