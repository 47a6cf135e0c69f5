"""Automatic depth, against a naive probe; and the personal variants."""

from __future__ import annotations

from pathlib import Path

import torch
from support import RunTiny, prepared

from fedstrata.policies.freeze import smallest_top

AUTO = "method={name: layer_skipping, top: auto}"
FEW = "data.synthetic.notes=6"


def test_the_probe_reports_the_norms_that_a_naive_loop_finds(run_once: RunTiny) -> None:
    """One batch holds all examples of a client, so the order does not matter."""
    settings = (AUTO, "training.batch_size=1000", "federation.rounds=1", FEW)
    reported = run_once(*settings).state.values["block_gradient_norms"]
    experiment = prepared(*settings)
    model, task = experiment.model, experiment.task
    model.module.requires_grad_(True)
    total, weights = torch.zeros(3), 0
    for documents in experiment.clients.values():
        examples = task.encode(documents.train, model.tokenizer)
        loss, terms = task.loss(model.module, task.collate(examples))
        model.module.zero_grad()
        (loss / terms).backward()
        norms = [
            torch.cat([parameter.grad.flatten() for parameter in model.parameters(names)]).norm()
            for names in model.layout.blocks
        ]
        total += len(examples) * torch.stack(norms)
        weights += len(examples)
    torch.testing.assert_close(torch.tensor(reported), total / weights, rtol=1e-4, atol=1e-6)


def test_the_probe_is_made_once_and_the_record_says_what_it_found(run_once: RunTiny) -> None:
    finished = run_once(AUTO, FEW)
    first, second = finished.of("round")
    norms = first["state"]["block_gradient_norms"]
    assert first["state"]["top"] == smallest_top(norms, 0.5)
    assert second["state"] == first["state"]
    assert finished.summary["state"]["top"] == first["state"]["top"]
    # Three clients, of which each answers the probe and trains in the first round.
    assert len([event for event in finished.of("client") if event["round"] == 1]) == 6
    assert len([event for event in finished.of("client") if event["round"] == 2]) == 3


def test_the_budget_bounds_what_is_sent(run_once: RunTiny) -> None:
    finished = run_once(
        "method={name: layer_skipping, top: {share: 1.0, budget: 0.2}}", "federation.rounds=1", FEW
    )
    assert finished.summary["communication"]["percent_of_full_model"] <= 20.0 + 1.0  # and names, in the frame
    assert finished.state.values["top"] < 3


def test_fedper_with_personal_blocks_sends_neither_them_nor_the_norm_above_them(run_tiny: RunTiny) -> None:
    finished = run_tiny("method={name: fedper, personal_blocks: 1}", "federation.rounds=1", FEW)
    assert not [
        name for name in finished.state.tensors if ".layers.2." in name or name == "model.norm.weight"
    ]
    assert [name for name in finished.state.tensors if ".layers.1." in name]
    assert (Path(finished.folder) / "clients" / "site-1" / "model" / "config.json").exists()
