"""FedPepTAO on real tiny runs: which prefixes travel, and what momentum does to a step."""

from __future__ import annotations

import pytest
import torch
from support import RunTiny, prepared

from fedstrata.client.store import ClientStore

PREFIX = "adapter={kind: prefix, tokens: 3}"
FEW = "data.synthetic.notes=6"
MOMENTUM = "momentum/"


def test_the_blocks_with_the_largest_gradients_are_shared_and_the_others_stay(run_tiny: RunTiny) -> None:
    run = run_tiny("method={name: fedpeptao, shared_blocks: 1}", PREFIX, FEW, "federation.evaluate_every=2")
    (state, _) = (event["state"] for event in run.of("round"))
    (shared,) = state["shared_blocks"]
    norms = state["block_gradient_norms"]
    assert shared == max(range(3), key=norms.__getitem__)
    held = {name for name in run.state.tensors if not name.startswith(MOMENTUM)}
    assert {name.rpartition("original")[2] for name in held if "original" in name} == {str(shared)}
    for client in ("site-1", "site-2", "site-3"):
        own = ClientStore(run.folder / "clients" / client, 2).read().tensors
        assert {name.rpartition("original")[2] for name in own} == {str(b) for b in range(3) if b != shared}


def test_a_prefix_fits_an_encoder_too() -> None:
    config = "model.config={model_type: bert, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4}"
    model = prepared("method={name: fedpeptao}", PREFIX, config).model
    assert [len(names) for names in model.layout.blocks] == [1, 1]


@pytest.mark.parametrize("rate", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_first_step_is_the_mean_s_and_later_ones_remember_it(run_once: RunTiny, rate: float) -> None:
    """The correction of the start makes the first step exactly the mean's, times the server's rate."""
    sgd = ("training.optimizer=sgd", "training.learning_rate=0.1", PREFIX, FEW)
    method = f"method={{name: fedpeptao, shared_blocks: 1.0, server_learning_rate: {rate}}}"
    one = run_once(method, *sgd, "federation.rounds=1")
    plain = run_once("method={name: fedavg}", *sgd, "federation.rounds=1")
    model = prepared("method={name: fedpeptao}", PREFIX).model
    for name, start in model.snapshot(model.layout.all).items():
        step = plain.state.tensors[name] - start
        torch.testing.assert_close(one.state.tensors[name], start + rate * step, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(one.state.tensors[MOMENTUM + name], 0.1 * step, rtol=1e-3, atol=1e-7)
