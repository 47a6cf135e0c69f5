"""A weighted mean of updates as one masked sum: changes, weights and the count of cut values.

A site whose training has diverged sends zeros and is counted. If it failed in place of that, the server could
ask which sites have a word, by a model that diverges on it.

A site sends, of each tensor, round(n_k / scale (x_k - p) / step), p being the plan's tensor and step that of
`quantization`; its weight n_k, its loss and the number of values that were cut are further elements of the
same sum, since weights that were summed before would no longer be those of the sites that are left. The mean
is p + scale / (sum of n_k) times the sum. A mean with cut values is used; the next sum has a wider range.

In a mean of clipped gradients with joint noise (`MeanTerms.noise`) nothing is cut, so that no cut values are
counted, and each site weighs 1 (`fedstrata.privacy.joint_terms`).

The sum of what sites have counted of their documents (`MeanTerms.counts`) is exact: numbers are summed as
they are, and no site weighs anything.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.core.cohort import Mean
from fedstrata.core.errors import FrameError, TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.types import Tally, Tensors, Update
from fedstrata.privacy.randomness import SecureRandomness
from fedstrata.privacy.secure_sum.messages import MeanTerms, SummedTensor, canonical
from fedstrata.privacy.secure_sum.quantization import (
    LIMBS,
    MOST_SATURATED,
    RoundingError,
    bound_for,
    count_elements,
    counts_in,
    dequantize_,
    most_counted,
    number_elements,
    numbers_in,
    quantize_,
    rounding_error,
    weight_element,
)
from fedstrata.privacy.secure_sum.refusals import UnusableSum
from fedstrata.privacy.secure_sum.transcript import Subject
from fedstrata.wire.frame import Frame

WEIGHT, LOSS, CUT = "secure/weight", "secure/loss", "secure/saturated"
"""Names of what is summed beside the update's tensors; the last holds how many values were cut, and 1 where
the training has diverged."""
COUNTS = "counts"
"""The name of what is summed where it is what sites have counted; the weight is then their documents."""
WIDER, WIDEST = 16.0, 256.0
"""How much wider a range gets after a sum with cut values, and how much wider than the rule's at most: what a
site can do that reports cut values which are none."""
LARGEST_LOSS = 64.0
"""Of a training loss in a sum; a larger one is cut to it."""


def hash_of_frame(sent: Frame) -> str:
    """Returns the SHA-256 of a frame, hexadecimal."""
    digest = hashlib.sha256()
    for piece in sent.buffers():
        digest.update(piece)
    return digest.hexdigest()


def subject_of(terms: MeanTerms, model: str, agreed: str) -> Subject:
    """Returns what a mean's sum is of.

    Args:
        terms: The mean's.
        model: SHA-256 of the model that this side has.
        agreed: SHA-256 of the settings and versions that all sites must share, as this side has them.
    """
    plan = hashlib.sha256(canonical(terms.model_dump(mode="json"))).hexdigest()
    shapes: dict[str, tuple[int, ...]] = {each.name: each.shape for each in terms.tensors}
    shapes |= {WEIGHT: (1,)} | ({LOSS: (1,)} if terms.loss else {}) | ({} if terms.exact else {CUT: (2,)})
    return Subject(agreed, model, plan, shapes)


class SummedUpdate:
    """One site's update, turned into ring elements one tensor at a time, in its own memory.

    Args:
        update: What the site has trained; where its tensors are float32, contiguous and on the CPU they are
            overwritten.
        base: What it was sent, by name; what is not in it began with zeros.
        terms: The mean's.
        seed: Of this turn; the same update is rounded alike whenever it is sent.
        diverged: Whether the training has diverged, so that the update holds zeros in place of changes.

    Raises:
        FrameError: The update has other tensors than the terms say.
        TrainingError: Its weight is no whole number from 1 to the terms' scale.
    """

    def __init__(
        self, update: Update, base: Tensors, terms: MeanTerms, seed: Seed, *, diverged: bool = False
    ) -> None:
        expected = {each.name: each.shape for each in terms.tensors}
        if {name: tuple(tensor.shape) for name, tensor in update.tensors.items()} != expected:
            raise FrameError(
                f"an update of {len(update.tensors)} tensors is not the one of {len(expected)} that is "
                "summed",
                code="not_agreed",
            )
        if not update.weight.is_integer() or not 1 <= update.weight <= terms.scale:
            raise TrainingError(
                f"an update weighs {update.weight:g}; in this sum it can be a whole number from 1 to "
                f"{terms.scale}",
                code="out_of_range",
            )
        self._update, self._base, self._terms = update, base, terms
        self._randomness = SecureRandomness(_rounding_key(update, seed))
        self._cut, self._diverged = 0, diverged

    @torch.no_grad()
    def elements(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the ring elements of each tensor, the weight, the loss and the counts."""
        share, bits = self._update.weight / self._terms.scale, self._terms.ring
        for each in self._terms.tensors:
            change = self._update.tensors[each.name].to("cpu", torch.float32).contiguous()
            if (base := self._base.get(each.name)) is not None:
                change.sub_(base.float())
            elements, cut = quantize_(change.mul_(share), each.bound, self._randomness, bits)
            self._cut += cut
            yield each.name, elements
        yield WEIGHT, weight_element(int(self._update.weight), bits)
        if self._terms.loss:
            loss = self._update.values.get("loss")
            own = torch.tensor([loss * share if isinstance(loss, float) else 0.0], dtype=torch.float32)
            yield LOSS, quantize_(own, LARGEST_LOSS, self._randomness, bits)[0]
        if not self._terms.exact:
            yield CUT, count_elements([self._cut, int(self._diverged)], bits)


def _rounding_key(update: Update, seed: Seed) -> bytes:
    """Returns the key of what an update's rounding is drawn from: a hash of the whole update.

    Whoever could tell it knows the update. A server that knew the rounding could ask for a range so wide that
    each element is rounded up or down by it alone, and tell whose a sum's elements are.
    """
    digest = hashlib.sha256(seed.numpy().bytes(32))
    for name, tensor in update.tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    digest.update(repr(update.values.get("loss")).encode())
    return digest.digest()


def counted_tensor(names: Sequence[str]) -> SummedTensor:
    """Returns what is summed of counts of these names."""
    return SummedTensor(name=COUNTS, shape=(len(names), LIMBS), bound=1.0)


def counted_elements(tally: Tally, names: Sequence[str], documents: float) -> Iterator[tuple[str, Tensor]]:
    """Yields the ring elements of what a site has counted, then of how many documents it has.

    Raises:
        TrainingError: A number cannot be summed.
    """
    yield COUNTS, number_elements([tally[name] for name in names])
    yield WEIGHT, count_elements([int(documents)])


def counted_in(total: Tensors, names: Sequence[str]) -> tuple[dict[str, float], int]:
    """Returns what all sites of a sum have counted, and of how many documents."""
    (documents,) = counts_in(total[WEIGHT])
    return dict(zip(names, numbers_in(total[COUNTS]), strict=True)), documents


@dataclass(frozen=True, slots=True)
class SummedMean:
    """What comes of a mean's sum.

    Attributes:
        mean: The mean.
        bounds: Of each tensor's changes in the next sum.
        error: The declared error of the tensor of which it is largest.
        cut: How many values were cut; None if the count is impossible, so that a site has lied about it.
        values: How many values all sites have sent.
        diverged: At how many sites the training has diverged, whose changes are zeros; None if the count is
            impossible, so that a site has lied about it.
    """

    mean: Mean
    bounds: dict[str, float]
    error: RoundingError
    cut: int | None
    values: int
    diverged: int | None


def cut_values(total: Tensors, terms: MeanTerms, sites: int) -> tuple[int | None, int, int]:
    """Returns how many values were cut, and of how many, and how many sites' training has diverged.

    The first is None where a site must have lied about it.
    """
    own = sum(math.prod(each.shape) for each in terms.tensors)
    if terms.exact:
        return 0, sites * own, 0
    cut, diverged = counts_in(total[CUT], terms.ring)
    possible = cut <= sites * min(own, most_counted(terms.ring))
    return (cut if possible else None), sites * own, diverged


@torch.no_grad()
def mean_from(
    total: Mapping[str, Tensor], base: Tensors, terms: MeanTerms, survivors: tuple[str, ...], least: float
) -> SummedMean:
    """Turns the unmasked sum into the mean, in place.

    Args:
        total: The sum of the survivors' ring elements, int32 by name; overwritten.
        base: What they were sent.
        terms: The mean's.
        survivors: Whose updates are in it.
        least: The least bound of a change.

    Raises:
        UnusableSum: A site has sent another weight than it can have.
    """
    (weight,) = counts_in(total[WEIGHT], terms.ring)
    if not len(survivors) <= weight <= len(survivors) * terms.scale:
        raise UnusableSum(
            f"the updates of {len(survivors)} sites weigh {weight} together, and can weigh {len(survivors)} "
            f"to {len(survivors) * terms.scale}: at least one site has sent a false weight, and the masks "
            "hide which one"
        )
    cut, values_sent, diverged = cut_values(total, terms, len(survivors))
    widens = cut is not None and cut > MOST_SATURATED * values_sent
    factor, tensors, bounds, changed = terms.scale / weight, {}, {}, False
    for each in terms.tensors:
        change = dequantize_(total[each.name], each.bound, terms.ring).mul_(factor)
        changed = changed or bool(change.any())
        rule = bound_for(change, least)
        bounds[each.name] = min(max(rule, WIDER * each.bound), WIDEST * rule) if widens else rule
        if (before := base.get(each.name)) is not None:
            change.add_(before.float())
        tensors[each.name] = change
    values = {}
    if terms.loss:
        values["loss"] = float(dequantize_(total[LOSS], LARGEST_LOSS, terms.ring)) * factor
    worst = rounding_error(max(each.bound for each in terms.tensors), len(survivors), terms.ring)
    error = RoundingError(worst.step * factor, worst.deviation * factor, worst.largest * factor)
    weights, counts = dict.fromkeys(tensors, float(weight)), dict.fromkeys(tensors, len(survivors))
    most = len(survivors) - changed  # where all have diverged nothing changes: no site can say it alone
    return SummedMean(
        Mean(tensors, weights, values, counts, survivors),
        bounds,
        error,
        cut,
        values_sent,
        diverged if diverged <= most else None,
    )
