"""Runs between processes: the same weights as in simulation, whatever happens to connections."""

from __future__ import annotations

import pytest
import torch
from remote_run import CLIENTS, Serve
from support import RunTiny

ONE_EACH = ("training.batch_size=8", "data.synthetic.notes=12")


@pytest.mark.parametrize(
    "overrides",
    [
        ("method={name: fl_llama, in_flight: 2}", "training.accumulation=2"),
        ("method={name: fl_llama, mode: client_batch}", "adapter={kind: lora, rank: 4}"),
        ("method={name: fl_llama, average_ends: never, turns: step, wire: bfloat16}",),
    ],
)
def test_a_run_between_processes_gives_the_weights_of_a_simulation(
    run_tiny: RunTiny, serve: Serve, overrides: tuple[str, ...]
) -> None:
    simulated = run_tiny(*overrides, *ONE_EACH)
    server = serve(*overrides, *ONE_EACH)
    for client in CLIENTS:
        server.start(client)
    server.hub.wait_for(CLIENTS, 300)
    state = server.run(2)
    assert state.tensors.keys() == simulated.state.tensors.keys()
    for name, tensor in state.tensors.items():
        torch.testing.assert_close(tensor, simulated.state.tensors[name], rtol=1e-3, atol=1e-4)
    rounds = simulated.of("round")
    assert server.cohort.roll.meter.exchanges() == rounds[-1]["exchanges"]
    assert server.cohort.roll.loss == pytest.approx(rounds[-1]["loss"], rel=1e-3)
