"""A run of no rounds scores the model as it is: zero-shot."""

from __future__ import annotations

from typing import Any

import pytest
from support import TINY

from fedstrata.core.settings.source import read_source
from fedstrata.planning.plan import make_plan
from fedstrata.record.costs import COSTS


@pytest.mark.parametrize(
    "method", ["fedper", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "fedlora"))]
)
def test_no_rounds_score_the_model_as_it_is(run_tiny: Any, method: str) -> None:
    done = run_tiny("federation.rounds=0", f"method={{name: {method}}}", report=True)
    summary = done.summary
    assert summary["rounds"] == 0
    assert 0.0 <= summary["metrics"]["mean_client"]["f1"] <= 1.0
    assert summary["communication"]["bytes_up"] == summary["communication"]["bytes_down"] == 0
    assert summary["time"]["train_seconds"] == 0
    assert [event["event"] for event in done.events][-1] == "final"
    assert (done.folder / "report.html").is_file()
    assert done.of("round") == []
    assert [*done.folder.glob("**/model/*model.safetensors")]
    costs = {name: value(summary) for name, (_, value) in COSTS.items()}  # as a comparison asks for them
    assert costs["train_seconds_per_round"] is None
    assert costs["megabytes_sent"] == 0.0


def test_a_plan_of_no_rounds_sends_and_trains_nothing() -> None:
    none = [*TINY, "federation.rounds=0", "federation.score_clients=true"]
    plan = make_plan(read_source(None, none), seconds=0.01)
    assert plan.communication["bytes_up"] == plan.communication["bytes_down"] == 0
    assert plan.time["train_seconds"] == plan.time["seconds_per_round"] == 0
    assert plan.time["total_seconds"] > 0
