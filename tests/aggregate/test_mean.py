from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import refused
from torch._subclasses.fake_tensor import FakeTensorMode

from fedstrata.aggregate.mean import StreamingMean, replace
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import Update


@st.composite
def cohorts(draw: st.DrawFn) -> list[Update]:
    """Updates that need not hold the same tensors."""
    shapes = {"a": (3, 2), "b": (4,), "c": ()}
    updates = []
    for index in range(draw(st.integers(1, 6))):
        generator = torch.Generator().manual_seed(index * 1000 + draw(st.integers(0, 999)))
        dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
        held = draw(st.sets(st.sampled_from(sorted(shapes))))
        tensors = {name: torch.randn(shapes[name], generator=generator).to(dtype) for name in sorted(held)}
        weight = draw(st.floats(0.01, 1000))
        updates.append(Update(tensors, {"loss": draw(st.floats(-5, 5))}, weight=weight))
    return updates


@given(cohorts())
def test_the_streaming_mean_equals_the_naive_mean_over_the_clients_that_sent_a_tensor(
    cohort: list[Update],
) -> None:
    mean = StreamingMean()
    for update in cohort:
        mean.add(update)
    result = mean.finish()
    assert result.tensors.keys() == {name for update in cohort for name in update.tensors}
    for name, tensor in result.tensors.items():
        senders = [update for update in cohort if name in update.tensors]
        total = sum(update.weight for update in senders)
        naive = sum(update.tensors[name].double() * (update.weight / total) for update in senders)
        assert tensor.dtype == torch.float32
        assert result.weights[name] == pytest.approx(total)
        torch.testing.assert_close(tensor.double(), naive, rtol=1e-5, atol=1e-6)
    total = sum(update.weight for update in cohort)
    naive_loss = sum(update.values["loss"] * update.weight for update in cohort) / total
    assert result.values["loss"] == pytest.approx(naive_loss, abs=1e-9)


def test_the_inputs_are_left_alone() -> None:
    tensor = torch.ones(3)
    mean = StreamingMean()
    mean.add(Update({"a": tensor}, weight=2.0))
    mean.add(Update({"a": tensor}, weight=2.0))
    mean.finish()
    assert torch.equal(tensor, torch.ones(3))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_cannot_be_averaged_is_refused(weight: float) -> None:
    with refused(TrainingError, "out_of_range", values=["weight", weight]):
        StreamingMean().add(Update({}, weight=weight))


def test_clients_that_disagree_on_a_shape_are_refused() -> None:
    mean = StreamingMean()
    mean.add(Update({"a": torch.ones(2)}))
    with refused(TrainingError, "wrong_shape", values=["tensor a", "(3,)", "(2,)"]):
        mean.add(Update({"a": torch.ones(3)}))


def test_replacing_keeps_dtypes_and_what_was_not_sent() -> None:
    previous = {"a": torch.zeros(2, dtype=torch.bfloat16), "b": torch.ones(1)}
    new = replace(previous, {"a": torch.full((2,), 0.5)})
    assert new["a"].dtype == torch.bfloat16
    assert new["a"].tolist() == [0.5, 0.5]
    assert new["b"] is previous["b"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_on_a_device_are_averaged_on_the_processor(dtype: torch.dtype) -> None:
    """As those of a server's part of a model; fake tensors refuse what two devices cannot do together."""
    mean = StreamingMean()
    with FakeTensorMode():
        for weight in (1.0, 3.0):
            mean.add(Update({"w": torch.ones(5, dtype=dtype, device="cuda")}, weight=weight))
        found = mean.finish().tensors["w"]
    assert (found.device.type, found.dtype) == ("cpu", torch.float32)
