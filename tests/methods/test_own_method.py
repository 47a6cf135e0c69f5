"""A method of one's own: a class, the name it is found by, and all else asks it what it needs to know."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest
import torch
from pydantic import Field
from support import TINY, RunTiny, prepared, refused

from fedstrata.core.client import Client
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.model import Layout
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import NotNegative
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan, Update
from fedstrata.methods import METHODS
from fedstrata.methods.averaging import Averaging
from fedstrata.planning.plan import make_plan


class PulledTop(Averaging):
    """FedProx over the highest block alone, of which the rest of the model is the frozen foundation."""

    name: Literal["pulled_top"] = "pulled_top"
    mu: NotNegative = Field(default=0.1, description="Weight of the proximal term.")
    travels: ClassVar[str] = "the highest block, both ways"

    def problems(self, facts: Facts) -> list[Problem]:
        """It wants three clients in a round, besides what a rule wants."""
        few = facts.sampled is not None and facts.sampled < 3
        problem = Problem("federation.sample", "takes too few", code="not_enough_data")
        return [*super().problems(facts), *([problem] if few else [])]

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """The highest block."""
        return layout.blocks[-1]

    def not_private(self, mechanism: str) -> str:
        """Clients send what the private loop has trained, and nothing else."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """The server needs the mean of what they send, and nothing else."""
        return super().not_summed()

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains it, pulled towards the plan."""
        return self.trained(plan, client, rng, proximal=self.mu)


NAMED = METHODS.name_of(PulledTop)
PULLED_TOP = f"method={{name: '{NAMED}', mu: 0.5}}"


@pytest.mark.slow
def test_a_method_of_ones_own_is_planned_and_run(run_once: RunTiny) -> None:
    few = (PULLED_TOP, "federation.rounds=1")
    plan = make_plan(read_source(None, [*TINY, *few]), seconds=0.0)
    run = run_once(*few)
    assert {group.name for group in plan.groups if group.bytes_up} == {"block 2"}
    assert plan.travels == "the highest block, both ways"
    assert plan.trainable_parameters == run.summary["trainable_parameters"]
    assert plan.communication["bytes_up"] == pytest.approx(run.summary["communication"]["bytes_up"], rel=1e-3)
    model = prepared(PULLED_TOP).model
    assert tuple(run.state.tensors) == model.layout.blocks[-1]
    before = model.tensors(model.layout.blocks[-1])
    assert not all(torch.equal(tensor, before[name]) for name, tensor in run.state.tensors.items())


def test_its_settings_and_what_it_cannot_work_with_are_checked() -> None:
    with refused(ConfigurationError, "unknown_key", at="method.muu", values=["'mu'"]):
        prepared(f"method={{name: '{NAMED}', muu: 1}}")
    with refused(ConfigurationError, "not_enough_data", at="federation.sample", values=["too few"]):
        prepared(PULLED_TOP, "federation.sample=0.5")
