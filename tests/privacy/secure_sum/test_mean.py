"""An update as ring elements, and the mean of their sum."""

from __future__ import annotations

import pytest
import torch
from secure_federation import NAME

from fedstrata.core.errors import FrameError, TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.types import Update
from fedstrata.privacy.randomness import SeededRandomness
from fedstrata.privacy.secure_sum.mean import (
    CUT,
    WEIGHT,
    SummedUpdate,
    mean_from,
    require_unsaturated,
    subjects_of,
)
from fedstrata.privacy.secure_sum.messages import MeanTerms, SummedTensor
from fedstrata.privacy.secure_sum.refusals import TooManySaturated, WrongSum

TERMS = MeanTerms(
    sum=NAME,
    plan="bb" * 32,
    tensors=(SummedTensor(name="w", shape=(3,), bound=2.0),),
    scale=10,
    loss=True,
)
BASE = {"w": torch.tensor([1.0, -1.0, 0.5])}


def summed(update: Update, terms: MeanTerms = TERMS) -> SummedUpdate:
    return SummedUpdate(update, BASE, terms, SeededRandomness(Seed(1)))


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
def test_a_weight_that_no_sites_can_have_together_costs_the_sum_and_not_the_run(more: int) -> None:
    """One of them may have added whatever makes it zero: weights are known."""
    inputs = [dict(summed(update(1.0, 0.0, 0.5, weight=weight)).elements()) for weight in (10.0, 2.0)]
    total = {name: inputs[0][name] + inputs[1][name] for name in inputs[0]}
    total[WEIGHT] += more
    with pytest.raises(WrongSum, match="can weigh 2 to 20; no mean was made"):
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
    with pytest.raises(TrainingError, match="a whole number from 1 to 10"):
        summed(update(1.0, 1.0, 1.0, weight=weight))


@pytest.mark.parametrize("tensors", [{}, {"w": torch.ones(2)}, {"w": torch.ones(3), "v": torch.ones(1)}])
def test_other_tensors_than_were_agreed_are_refused(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(FrameError, match="is not the one"):
        summed(Update(tensors, weight=1.0))


def test_cut_values_are_counted_and_refused_above_one_in_a_million() -> None:
    own = summed(update(10.0, -10.0, 0.5, weight=10.0))
    list(own.elements())
    (name, count), *_ = own.cut()
    assert (name, count.tolist()) == (CUT, [2])
    with pytest.raises(TooManySaturated, match="2 of 9 changed values"):
        require_unsaturated({CUT: count}, TERMS, 3)
    many = TERMS.model_copy(update={"tensors": (SummedTensor(name="w", shape=(10**6,), bound=2.0),)})
    assert require_unsaturated({CUT: count}, many, 3) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"plan": "cc" * 32},
        {"scale": 11},
        {"loss": False},
        {"tensors": (SummedTensor(name="w", shape=(3,), bound=4.0),)},
    ],
)
def test_masks_depend_on_every_term(changed: dict[str, object]) -> None:
    """So that a server that tells one site something else learns nothing from the sum."""
    one, other = (subjects_of(terms, "aa" * 32) for terms in (TERMS, TERMS.model_copy(update=changed)))
    assert all(
        (one[which].plan, one[which].shapes) != (other[which].plan, other[which].shapes) for which in one
    )
