"""The record says which tensor groups travelled."""

from __future__ import annotations

import pytest
import torch
from support import RunTiny

from fedstrata.core.types import Plan, State, Update
from fedstrata.methods.layer_skipping import LayerSkipping
from fedstrata.wire import frame

BRIEF = ("federation.rounds=1", "federation.floors=false", "data.synthetic.notes=6")


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        ("{name: layer_skipping, top: 1, head: local}", {"block 2", "final norm"}),
        ("{name: fedavg}", {"embedding", "block 0", "block 1", "block 2", "final norm", "head"}),
    ],
)
def test_groups_are_whole_and_add_up_to_what_was_sent(run_once: RunTiny, method: str, sent: set[str]) -> None:
    run = run_once(f"method={method}", *BRIEF, "federation.sample=0.67")
    (start,) = run.of("run")
    whole = start["groups"]
    assert list(whole) == ["embedding", "block 0", "block 1", "block 2", "final norm", "head"]
    assert 0 < start["model"]["bytes"] - sum(whole.values()) < 10_000  # the header
    for event in run.of("round"):
        clients = len(event["exchanges"])
        assert clients == 2
        assert event["groups_up"] == {group: clients * whole[group] for group in whole if group in sent}
        headers = sum(client["bytes_up"] for client in event["exchanges"].values())
        assert 0 < headers - sum(event["groups_up"].values()) < clients * 10_000


def test_what_is_no_parameter_is_other(run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    train = LayerSkipping.train

    def with_sketch(self, plan, client, rng) -> Update:
        update = train(self, plan, client, rng)
        return Update({**update.tensors, "sketch": torch.zeros(5)}, update.values, weight=update.weight)

    def without_sketch(self, state: State, cohort, rng) -> State:
        mean = cohort.mean("train", lambda _: Plan(state.tensors)).tensors
        return State({name: mean[name] for name in state.tensors})

    monkeypatch.setattr(LayerSkipping, "train", with_sketch)
    monkeypatch.setattr(LayerSkipping, "round", without_sketch)
    run = run_tiny(*BRIEF)
    assert run.of("round")[0]["groups_up"]["other"] == 3 * 20


def test_tensor_bytes_are_those_of_the_bodies() -> None:
    message = Update({"a": torch.zeros(3, dtype=torch.bfloat16), "b": torch.zeros(0)}, {"loss": 0.5})
    assert frame.encode(message).tensor_bytes() == {"a": 6, "b": 0}
