"""A weighted mean of updates as two masked sums: of the changes, and of how many of their values were cut.

A site sends, of each tensor, round(n_k / scale (x_k - p) / step), p being the plan's tensor and step that of
`quantization`; its weight n_k and its loss are elements more of the same sum, since weights that were summed
before would no longer be those of the sites that are left. The mean is p + scale / (sum of n_k) times the
sum. The count of cut values is unmasked first: a sum that lost much by cutting is never unmasked.

A mean of clipped gradients with joint noise (`MeanTerms.noise`) is one masked sum: nothing in it is cut, so
that nothing is counted, and each site weighs 1 (`fedstrata.privacy.joint_terms`).

What sites have counted of their documents (`MeanTerms.counts`) is one masked sum too, and exact: numbers are
summed as they are, and no site weighs anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.core.cohort import Mean
from fedstrata.core.errors import FrameError, TrainingError
from fedstrata.core.types import Tally, Tensors, Update
from fedstrata.privacy.randomness import Randomness
from fedstrata.privacy.secure_sum.messages import MeanTerms, SummedTensor, SumName, canonical
from fedstrata.privacy.secure_sum.quantization import (
    LIMBS,
    MOST_SATURATED,
    RoundingError,
    bound_for,
    count_elements,
    counts_in,
    dequantize_,
    number_elements,
    numbers_in,
    quantize_,
    rounding_error,
    weight_element,
)
from fedstrata.privacy.secure_sum.refusals import TooManySaturated, WrongSum
from fedstrata.privacy.secure_sum.transcript import Subject
from fedstrata.wire.frame import Frame

CHANGES, SATURATED = "changes", "saturated"
"""The two sums of a mean, in the order in which a site makes its inputs."""
WEIGHT, LOSS, CUT = "secure/weight", "secure/loss", "secure/saturated"
"""Names of what is summed beside the update's tensors."""
COUNTS = "counts"
"""The name of what is summed where it is what sites have counted; the weight is then their documents."""
LARGEST_LOSS = 64.0
"""Of a training loss in a sum; a larger one is cut to it."""


def hash_of_frame(sent: Frame) -> str:
    """Returns the SHA-256 of a frame, hexadecimal."""
    digest = hashlib.sha256()
    for piece in sent.buffers():
        digest.update(piece)
    return digest.hexdigest()


def names_of(terms: MeanTerms) -> dict[str, SumName]:
    """Returns the name of each of the two sums, or of the one that there is where nothing can be cut."""
    if terms.exact:
        return {CHANGES: terms.sum}
    narrower = terms.sum.model_copy(update={"handler": f"{terms.sum.handler}/{SATURATED}"})
    return {CHANGES: terms.sum, SATURATED: narrower}


def subjects_of(terms: MeanTerms, model: str) -> dict[str, Subject]:
    """Returns what each of the two sums is of, or the one that there is where nothing can be cut.

    Args:
        terms: The mean's.
        model: SHA-256 of the model that this side has.
    """
    plan = hashlib.sha256(canonical(terms.model_dump(mode="json"))).hexdigest()
    shapes: dict[str, tuple[int, ...]] = {each.name: each.shape for each in terms.tensors}
    shapes |= {WEIGHT: (1,)} | ({LOSS: (1,)} if terms.loss else {})
    subjects = {CHANGES: Subject(model, plan, shapes), SATURATED: Subject(model, plan, {CUT: (1,)})}
    return {which: subjects[which] for which in names_of(terms)}


class SummedUpdate:
    """One site's update, turned into ring elements one tensor at a time, in its own memory.

    Args:
        update: What the site has trained; where its tensors are float32, contiguous and on the CPU they are
            overwritten.
        base: What it was sent, by name; what is not in it began with zeros.
        terms: The mean's.
        randomness: What the rounding is drawn from.

    Raises:
        FrameError: The update has other tensors than the terms say.
        TrainingError: Its weight is no whole number from 1 to the terms' scale.
    """

    def __init__(self, update: Update, base: Tensors, terms: MeanTerms, randomness: Randomness) -> None:
        expected = {each.name: each.shape for each in terms.tensors}
        if {name: tuple(tensor.shape) for name, tensor in update.tensors.items()} != expected:
            raise FrameError(
                f"an update of {len(update.tensors)} tensors is not the one of {len(expected)} that is summed"
            )
        if not update.weight.is_integer() or not 1 <= update.weight <= terms.scale:
            raise TrainingError(
                f"an update weighs {update.weight:g}; in this sum it can be a whole number from 1 to "
                f"{terms.scale}"
            )
        self._update, self._base, self._terms, self._randomness = update, base, terms, randomness
        self._cut = 0

    @torch.no_grad()
    def elements(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the ring elements of each tensor, then the weight, then the loss."""
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

    def cut(self) -> Iterator[tuple[str, Tensor]]:
        """Yields how many values were cut, once all elements were made."""
        yield CUT, count_elements([self._cut], self._terms.ring)


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
    """

    mean: Mean
    bounds: dict[str, float]
    error: RoundingError


def require_unsaturated(total: Tensors, terms: MeanTerms, sites: int) -> int:
    """Returns how many values were cut.

    Args:
        total: The sum of the counts.
        terms: The mean's.
        sites: How many are in the sum.

    Raises:
        TooManySaturated: So many that the sum would be wrong.
    """
    (cut,) = counts_in(total[CUT], terms.ring)
    values = sites * sum(torch.Size(each.shape).numel() for each in terms.tensors)
    if cut > MOST_SATURATED * values:
        bounds = [each.bound for each in terms.tensors]
        raise TooManySaturated(
            f"{cut} of {values} changed values were larger than their range ({min(bounds):g} to "
            f"{max(bounds):g}) and would have been cut; the sum was not unmasked. The next round has a "
            "larger range; to lose none set privacy.range higher from the start"
        )
    return cut


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
        WrongSum: A site has sent another weight than it can have.
    """
    (weight,) = counts_in(total[WEIGHT], terms.ring)
    if not len(survivors) <= weight <= len(survivors) * terms.scale:
        raise WrongSum(
            f"the updates of {len(survivors)} sites weigh {weight} together, and can weigh {len(survivors)} "
            f"to {len(survivors) * terms.scale}; no mean was made of them"
        )
    factor, tensors, bounds = terms.scale / weight, {}, {}
    for each in terms.tensors:
        change = dequantize_(total[each.name], each.bound, terms.ring).mul_(factor)
        bounds[each.name] = bound_for(change, least)
        if (before := base.get(each.name)) is not None:
            change.add_(before.float())
        tensors[each.name] = change
    values = {}
    if terms.loss:
        values["loss"] = float(dequantize_(total[LOSS], LARGEST_LOSS, terms.ring)) * factor
    worst = rounding_error(max(each.bound for each in terms.tensors), len(survivors), terms.ring)
    error = RoundingError(worst.step * factor, worst.deviation * factor, worst.largest * factor)
    weights, counts = dict.fromkeys(tensors, float(weight)), dict.fromkeys(tensors, len(survivors))
    return SummedMean(Mean(tensors, weights, values, counts, survivors), bounds, error)
