"""How much a tensor's change says: FedTLU's score, exact or from a linear sketch of the change.

The score of a change D of n numbers is ||D||_2 / (sqrt(n) std(D)) (Park and Joe-Wong, "FedTLU", section
III). With the standard deviation of the whole population it equals sqrt(1 + (mean / std)^2): it has no
scale and is a signal-to-noise ratio of the mean. So it needs three numbers only: n, the sum and the sum of
squares.

A sketch of a change is small and linear, so sketches average like changes: `sketch` adds up the numbers of
each of some buckets with random signs (Charikar, Chen and Farach-Colton 2002; Alon, Matias and Szegedy
1996). Its squared norm has the expectation of the change's and a relative standard deviation of about
sqrt(2 / buckets). What is sketched is the change less its own mean, which is linear too, and the sum goes
beside it exactly: the difference of two large numbers, of which one is an estimate, would have no certain
sign.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CAP = 1e6
"""The score of a change that is the same everywhere, which has no standard deviation."""
ABOVE_NOISE = 2.0
"""So many times as far from each other as those of noise are scores by which blocks can be told apart: of
eight blocks of pure noise one draw in twenty is above 1.4, and hardly one above 2."""
LEAST_SCORED = 4
"""Numbers of a tensor from which on the score of noise has a variance."""
_MANY, _LEAST = 10_000, 1e-12


def score(count: int, total: float, deviations: float) -> float:
    """Returns FedTLU's score of a tensor's change.

    Args:
        count: n, how many numbers the tensor holds.
        total: Their sum.
        deviations: The sum of the squares of their differences to their mean, or an estimate of it.

    Returns:
        At least 1 and at most `CAP`. A tensor that did not change has 1, the limit of the score: whether a
        small change moves any number at all is a matter of rounding.

    Example:
        >>> score(2, 0.0, 2.0), round(score(2, 4.0, 2.0), 4)  # changes of (1, -1) and of (1, 3)
        (1.0, 2.2361)
    """
    if deviations <= 0.0:
        return CAP if total else 1.0
    return min(math.sqrt(1.0 + total**2 / (count * deviations)), CAP)


class ChangeSums(NamedTuple):
    """What a score is made of.

    Attributes:
        total: The sum of the numbers of a change.
        deviations: The sum of the squares of their differences to their mean, or an estimate of it.
    """

    total: float
    deviations: float


def change_sums(change: Tensor) -> ChangeSums:
    """Returns the sums of a change, a tensor of any shape, in float64."""
    exact = change.detach().double()
    total = exact.sum()
    return ChangeSums(float(total), float((exact - total / exact.numel()).square().sum()))


def change_score(change: Tensor) -> float:
    """Returns FedTLU's score of a change, a tensor of any shape, in float64."""
    return score(change.numel(), *change_sums(change))


@cache
def buckets(width: int) -> int:
    """Returns how many buckets a sketch of at most `width` numbers has: the largest prime.

    The numbers of a tensor go to the buckets in turn. A column of a matrix may hold far more of the change
    than others, and must not lie in one bucket as a whole, as it would where the number of columns is a
    multiple of that of the buckets.

    Example:
        >>> buckets(1024), buckets(1)
        (1021, 1)
    """
    return next(
        (n for n in range(width, 1, -1) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1))), 1
    )


def sketch_size(count: int, width: int) -> int:
    """Returns how many numbers the sketch of a tensor has.

    Args:
        count: How many numbers the tensor holds.
        width: How many numbers a sketch may have.
    """
    return count if count <= width else buckets(width)


def sketch(change: Tensor, width: int, seed: int) -> Tensor:
    """Returns a linear sketch of a change.

    Args:
        change: A tensor of any shape, n numbers.
        width: How many numbers the sketch may have.
        seed: Decides the signs; sketches of one seed can be added up.

    Returns:
        (numbers,) float32, see `sketch_size`. Of a change of no more than `width` numbers nothing is lost but
        their signs.
    """
    flat = change.detach().reshape(-1).float().cpu()
    count = flat.numel()
    bits = np.unpackbits(
        np.frombuffer(np.random.default_rng(seed).bytes(-(-count // 8)), np.uint8), count=count
    )
    signs = torch.from_numpy(bits).to(torch.float32).mul_(-2.0).add_(1.0)
    signed = signs.mul_(flat)
    if count <= width:
        return signed
    size = buckets(width)
    whole = count - count % size
    sums = signed[:whole].view(-1, size).sum(dim=0)
    sums[: count - whole] += signed[whole:]
    return sums


def sketch_all(changes: Mapping[str, Tensor], width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns what `estimated_sums` needs; it is linear in the changes.

    Args:
        changes: The changes of tensors of more than one number, in order.
        width: How many numbers the sketch of a tensor may have.
        seed: Decides the signs.

    Returns:
        The exact sums, (tensors,) float64, and one after the other the sketches of the changes less their
        means, float32. A mean over clients is taken in float32, which a sum can afford.
    """
    sums = torch.stack([change.detach().double().sum() for change in changes.values()]).cpu()
    centred = (
        change.detach().float() - change.detach().double().mean().float() for change in changes.values()
    )
    return sums, torch.cat([sketch(change, width, seed + i) for i, change in enumerate(centred)])


def estimated_sums(
    sizes: Mapping[str, int], width: int, sums: Tensor, sketches: Tensor
) -> dict[str, ChangeSums]:
    """Returns the sums of each tensor's change: the exact sum, and the deviations by the norm of its sketch.

    Args:
        sizes: How many numbers each tensor holds, in the order of the changes that were sketched.
        width: How many numbers the sketch of a tensor may have.
        sums: (tensors,).
        sketches: All sketches one after the other.
    """
    parts = torch.split(sketches.double(), [sketch_size(size, width) for size in sizes.values()])
    return {
        name: ChangeSums(total, float(part.square().sum()))
        for name, total, part in zip(sizes, sums.tolist(), parts, strict=True)
    }


def is_rounding(before: Tensor, change: ChangeSums) -> bool:
    """Whether a change is no larger than the spacing of float32 numbers at the values that it changes.

    Args:
        before: The tensor that has changed.
        change: The sums of its change.
    """
    squares = change.deviations + change.total**2 / before.numel()
    spacing = torch.finfo(torch.float32).eps
    return squares <= float(before.detach().double().square().sum()) * spacing**2


def noise_score(count: int) -> tuple[float, float]:
    """Returns mean and variance of the score of pure noise: independent normal numbers of one size.

    Such a score squared is 1 / B, where B has a Beta distribution of (count - 1) / 2 and 1 / 2, since the
    square of Student's t of those numbers is (count - 1) (1 / B - 1).

    Args:
        count: How many numbers the tensor holds, at least 4: of fewer the variance is infinite.

    Example:
        >>> [round(value, 5) for value in noise_score(64)]
        [1.0081, 0.00013]
    """
    if count > _MANY:  # the gamma functions would cancel
        return 1.0 + 0.5 / count, 0.5 / count**2
    half = (count - 1) / 2
    mean = math.exp(math.lgamma(half - 0.5) + math.lgamma(half + 0.5) - 2.0 * math.lgamma(half))
    return mean, (half - 0.5) / (half - 1.0) - mean**2


def noise_scores(sizes: Mapping[str, int], blocks: Sequence[Sequence[str]]) -> list[tuple[float, float]]:
    """Returns mean and standard deviation of the score of each block whose change is pure noise.

    Args:
        sizes: How many numbers each tensor that has a score holds.
        blocks: The names of each block's tensors. Those of fewer than 4 numbers are left out.
    """
    parts = [
        [noise_score(sizes[name]) for name in own if sizes.get(name, 0) >= LEAST_SCORED] for own in blocks
    ]
    return [(sum(mean for mean, _ in own), math.sqrt(sum(var for _, var in own))) for own in parts]


def above_noise(
    scores: Sequence[float], noise: Sequence[tuple[float, float]], groups: Sequence[Sequence[int]]
) -> float:
    """Returns how many times as far blocks' scores lie from each other as those of noise would.

    It is the sample standard deviation of the scores of a group of equal blocks by that of the noise, of the
    group where it is most; 0 if no group has two blocks.

    Args:
        scores: The score of each block.
        noise: As `noise_scores` gives it.
        groups: The blocks of each group, at least one.
    """
    return max(
        (
            statistics.stdev(scores[block] for block in group) / max(noise[group[0]][1], _LEAST)
            for group in groups
            if len(group) > 1
        ),
        default=0.0,
    )


def block_scores(scores: Mapping[str, float], blocks: Sequence[Sequence[str]]) -> list[float]:
    """Returns the sum of its tensors' scores for each block (FedTLU, section III).

    Args:
        scores: The score of each tensor; those of a single number have none.
        blocks: The names of each block's tensors.
    """
    return [sum(scores.get(name, 0.0) for name in block) for block in blocks]
