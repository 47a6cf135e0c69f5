"""An update as ring elements, and the mean of their sum."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from secure_federation import NAME
from support import refused

from fedstrata.core.errors import FrameError, TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.types import Update
from fedstrata.privacy.randomness import SeededRandomness
from fedstrata.privacy.secure_sum.mean import (
    CUT,
    LOSS,
    WEIGHT,
    WIDER,
    WIDEST,
    SummedMean,
    SummedUpdate,
    mean_from,
    subject_of,
)
from fedstrata.privacy.secure_sum.messages import RING, MeanTerms, NoiseTerms, SummedTensor
from fedstrata.privacy.secure_sum.quantization import bound_for, largest_value, most_counted
from fedstrata.privacy.secure_sum.refusals import UnusableSum

TERMS = MeanTerms(
    sum=NAME, plan="bb" * 32, tensors=(SummedTensor(name="w", shape=(3,), bound=2.0),), scale=10, loss=True
)
BASE = {"w": torch.tensor([1.0, -1.0, 0.5])}


def summed(update: Update, terms: MeanTerms = TERMS) -> SummedUpdate:
    return SummedUpdate(update, BASE, terms, Seed(1))


def update(*values: float, weight: float, loss: float = 0.0, dtype: torch.dtype = torch.float32) -> Update:
    return Update({"w": torch.tensor(values, dtype=dtype)}, {"loss": loss}, weight=weight)


def test_the_mean_of_two_updates_and_of_their_losses_is_weighted() -> None:
    sites = [update(2.0, 0.0, 0.5, weight=10.0, loss=3.0), update(1.0, -1.0, 1.5, weight=5.0, loss=1.5)]
    inputs = [dict(summed(each).elements()) for each in sites]
    total = {name: inputs[0][name] + inputs[1][name] for name in inputs[0]}
    found = mean_from(total, BASE, TERMS, ("a", "b"), least=1.0)
    expected = torch.tensor([5.0 / 3, -1.0 / 3, 2.5 / 3])
    assert (found.mean.tensors["w"] - expected).abs().max() <= found.error.largest + 2.0**-22
    assert found.mean.values["loss"] == pytest.approx(2.5, abs=1e-5)
    assert found.mean.weights == {"w": 15.0}
    change = (expected - BASE["w"]).square().mean().sqrt()
    assert found.bounds["w"] == pytest.approx(64 * float(change), rel=1e-5)


@pytest.mark.parametrize("more", [-12, -11, 10, 2**31 - 20])
def test_a_sum_with_a_weight_that_no_sites_can_have_together_cannot_be_used(more: int) -> None:
    """One of them may have added whatever makes it zero: weights are known."""
    inputs = [dict(summed(update(1.0, 0.0, 0.5, weight=weight)).elements()) for weight in (10.0, 2.0)]
    total = {name: inputs[0][name] + inputs[1][name] for name in inputs[0]}
    total[WEIGHT] += more
    with pytest.raises(UnusableSum):
        mean_from(total, BASE, TERMS, ("a", "b"), least=1.0)


def test_float32_is_turned_in_its_own_memory_and_bfloat16_in_a_copy() -> None:
    own = update(2.0, 0.0, 0.5, weight=10.0)
    assert dict(summed(own).elements())["w"].data_ptr() == own.tensors["w"].data_ptr()
    half = update(2.0, 0.0, 0.5, weight=10.0, dtype=torch.bfloat16)
    assert torch.equal(
        dict(summed(half).elements())["w"], dict(summed(update(2.0, 0.0, 0.5, weight=10.0)).elements())["w"]
    )
    assert half.tensors["w"].tolist() == [2.0, 0.0, 0.5]


@pytest.mark.parametrize("weight", [0.0, 1.5, 11.0])
def test_a_weight_that_the_sum_has_no_room_for_is_refused(weight: float) -> None:
    with refused(TrainingError, "out_of_range", values=[f"{weight:g}", "1 to 10"]):
        summed(update(1.0, 1.0, 1.0, weight=weight))


@pytest.mark.parametrize("tensors", [{}, {"w": torch.ones(2)}, {"w": torch.ones(3), "v": torch.ones(1)}])
def test_other_tensors_than_were_agreed_are_refused(tensors: dict[str, torch.Tensor]) -> None:
    with refused(FrameError, "not_agreed", values=[len(tensors)]):
        summed(Update(tensors, weight=1.0))


def test_a_site_counts_the_values_that_it_cuts() -> None:
    cut = dict(summed(update(10.0, -10.0, 0.5, weight=10.0)).elements())
    assert list(cut) == ["w", WEIGHT, LOSS, CUT]
    assert cut[CUT].tolist() == [2, 0]
    assert dict(summed(update(2.0, 0.0, 0.5, weight=10.0)).elements())[CUT].tolist() == [0, 0]


@pytest.mark.claim("secure_aggregation#rounding")
def test_a_server_cannot_work_out_how_an_update_was_rounded() -> None:
    """With so wide a range that rounding alone decides, and every seed of the run known."""
    numbers = 10_000
    wide = (SummedTensor(name="w", shape=(numbers,), bound=float(largest_value(32))),)  # steps of 1
    terms = TERMS.model_copy(update={"tensors": wide, "scale": 1})
    values = torch.full((numbers,), 0.5)
    slightly = values.clone()
    slightly[0] += 1e-6

    def rounded(own: torch.Tensor) -> torch.Tensor:
        sent = SummedUpdate(Update({"w": own.clone()}, weight=1.0), {}, terms, Seed(1))
        return dict(sent.elements())["w"]

    known = torch.from_numpy(SeededRandomness(Seed(1)).uniform(numbers) + 0.5).floor()
    assert torch.equal(rounded(values), rounded(values)), "a sum that is made again is the same"
    for other in (known, rounded(slightly)):
        assert (rounded(values) == other).float().mean() == pytest.approx(0.5, abs=0.03)


def test_an_update_that_has_diverged_is_counted() -> None:
    own = SummedUpdate(update(0.0, 0.0, 0.0, weight=10.0), {}, TERMS, Seed(1), diverged=True)
    elements = dict(own.elements())
    assert elements["w"].tolist() == [0, 0, 0]
    assert elements[CUT].tolist() == [0, 1]


@pytest.mark.claim("secure_aggregation#lying-site")
@pytest.mark.parametrize(
    ("said", "change", "found"), [(0, 0.5, 0), (1, 0.5, 1), (2, 0.5, None), (9, 0.5, None), (2, 0.0, 2)]
)
def test_no_site_alone_says_that_the_training_of_all_has_diverged(
    said: int, change: float, found: int | None
) -> None:
    """It would end the run."""
    assert of_two(change, 0, 3, diverged=said).diverged == found


def of_two(
    change: float, count: int, numbers: int, ring: Literal[24, 32] = 32, *, diverged: int = 0
) -> SummedMean:
    """The mean of two sites whose change is the same everywhere and that report so many cut values."""
    wide = (SummedTensor(name="w", shape=(numbers,), bound=2.0),)
    terms = TERMS.model_copy(update={"tensors": wide, "scale": 1, "loss": False, "ring": ring})
    total = {
        "w": torch.full((numbers,), round(2 * change / 2.0 * largest_value(ring)), dtype=RING),
        WEIGHT: torch.tensor([2], dtype=RING),
        CUT: torch.tensor([count, diverged], dtype=RING),
    }
    return mean_from(total, {}, terms, ("a", "b"), least=1e-9)


def rule(change: float) -> float:
    return bound_for(torch.full((10,), change), 1e-9)


@pytest.mark.parametrize(
    ("count", "change", "bound"),
    [
        (0, 1e-3, rule(1e-3)),
        (2, 1e-3, rule(1e-3)),
        (3, 1e-3, WIDEST * rule(1e-3)),
        (3, 1e-2, WIDER * 2.0),
        (2_000_000, 1e-2, WIDER * 2.0),
        (3, 1.9, rule(1.9)),
        (2_000_001, 1e-2, rule(1e-2)),
    ],
    ids=[
        "none",
        "one in a million",
        "at most 256 times the rule",
        "16 times",
        "all",
        "the rule is wider",
        "lie",
    ],
)
def test_a_mean_with_cut_values_is_used_and_the_next_range_is_wider(
    count: int, change: float, bound: float
) -> None:
    found = of_two(change, count, 1_000_000)
    assert found.mean.tensors["w"].mean() == pytest.approx(change, rel=1e-4)
    assert found.bounds["w"] == pytest.approx(bound, rel=1e-4)
    assert (found.cut, found.values) == (None if count > 2_000_000 else count, 2_000_000)


@pytest.mark.parametrize("ring", [24, 32])
def test_an_impossible_count_of_cut_values_widens_nothing(ring: Literal[24, 32]) -> None:
    """A site that reports more than there are cannot widen the range of all."""
    found = of_two(1e-2, 7, 3, ring)
    assert found.cut is None
    assert found.bounds["w"] == pytest.approx(rule(1e-2), rel=1e-2)
    assert found.mean.tensors["w"].tolist() == pytest.approx([1e-2] * 3, rel=1e-2)


def test_a_count_is_possible_up_to_what_a_site_can_report() -> None:
    most, numbers = 2 * most_counted(24), most_counted(24) + 100
    assert of_two(1e-2, most, numbers, ring=24).cut == most
    assert of_two(1e-2, most + 1, numbers, ring=24).cut is None


def test_cut_values_are_not_counted_where_nothing_can_be_cut() -> None:
    noise = NoiseTerms(clip=1.0, scale=10.0, sigma=1.0, colluders=1, numbers=3, expected_batch=1)
    for exact in ({"noise": noise}, {"counts": True}):
        assert CUT not in subject_of(TERMS.model_copy(update=exact), "aa" * 32, "99" * 32).shapes
    assert list(subject_of(TERMS, "aa" * 32, "99" * 32).shapes) == ["w", WEIGHT, LOSS, CUT]


@pytest.mark.parametrize(
    "changed",
    [
        {"plan": "cc" * 32},
        {"scale": 11},
        {"loss": False},
        {"tensors": (SummedTensor(name="w", shape=(3,), bound=4.0),)},
        {"ring": 24},
    ],
)
def test_masks_depend_on_every_term(changed: dict[str, object]) -> None:
    """So that a server that states something else to one site learns nothing from the sum."""
    one, other = (
        subject_of(terms, "aa" * 32, "99" * 32) for terms in (TERMS, TERMS.model_copy(update=changed))
    )
    assert one.plan != other.plan


def test_masks_depend_on_the_model_and_on_what_is_agreed() -> None:
    subjects = {("aa" * 32, "99" * 32), ("cc" * 32, "99" * 32), ("aa" * 32, "cc" * 32)}
    found = {(each.model, each.agreed) for each in (subject_of(TERMS, *own) for own in subjects)}
    assert found == subjects
