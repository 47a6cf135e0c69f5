"""The check of a method finds what is wrong with one, and says it."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from pydantic import Field
from support import OF_DOCUMENTS

import fedstrata as fs


class Changing(fs.methods.FedAvg):
    """A list in its settings grows while it trains."""

    name: Literal["changing"] = "changing"  # type: ignore[assignment]
    seen: list[int] = Field(default=[])

    def train(self, plan: fs.Plan, client: fs.Client, rng: fs.Seed) -> fs.Update:
        self.seen.append(1)
        return super().train(plan, client, rng)


class Talking(fs.methods.FedAvg):
    """It sends text beside its tensors."""

    name: Literal["talking"] = "talking"  # type: ignore[assignment]

    def train(self, plan: fs.Plan, client: fs.Client, rng: fs.Seed) -> fs.Update:
        update = super().train(plan, client, rng)
        return fs.Update(update.tensors, {**update.values, "note": ["a text"]}, weight=update.weight)


class Undeclared(fs.methods.FedAvg):
    """It sends a tensor that nobody expects."""

    name: Literal["undeclared"] = "undeclared"  # type: ignore[assignment]

    def train(self, plan: fs.Plan, client: fs.Client, rng: fs.Seed) -> fs.Update:
        update = super().train(plan, client, rng)
        return fs.Update({**update.tensors, "secret": torch.ones(1)}, update.values, weight=update.weight)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Changing(), "settings"),
        pytest.param(Talking(), "'note'", marks=pytest.mark.slow),
        pytest.param(Undeclared(), "'secret'", marks=pytest.mark.slow),
    ],
)
def test_what_is_wrong_with_a_method_is_found(method: Any, said: str) -> None:
    with pytest.raises(fs.testing.ContractError, match=said):
        fs.testing.check_method(method, settings=OF_DOCUMENTS | {"task.types": OF_DOCUMENTS["data.types"]})
