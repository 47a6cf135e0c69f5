"""What autograd keeps, counted by hand."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedstrata.metrics.memory import SavedActivations

ROWS = 4


def layers() -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(8, 16), nn.Linear(16, 3)


def test_every_activation_counts_once_and_weights_do_not() -> None:
    first, second = layers()
    saved, inputs = SavedActivations(nn.ModuleList([first, second])), torch.randn(ROWS, 8)
    for _ in range(2):  # a second batch begins anew
        with saved.counted():
            loss = second(first(inputs).relu()).sum()
        loss.backward()
        # The input, for the first weight's gradient; what relu gives out, for its own and the second's.
        assert saved.bytes == 4 * ROWS * (8 + 16)


def test_layers_below_what_trains_keep_nothing() -> None:
    first, second = layers()
    first.requires_grad_(False)
    saved = SavedActivations(nn.ModuleList([first, second]))
    with saved.counted():
        second(first(torch.randn(ROWS, 8)).relu()).sum().backward()
    assert saved.bytes == 4 * ROWS * 16


def test_checkpointed_layers_keep_their_input() -> None:
    first, second = layers()
    saved = SavedActivations(nn.ModuleList([first, second]))
    inputs = torch.randn(ROWS, 8)

    def run(states: torch.Tensor) -> torch.Tensor:
        return second(first(states).relu())

    with saved.counted():
        loss = checkpoint(run, inputs, use_reentrant=False).sum()
    assert saved.bytes <= 4 * ROWS * 8 + 16  # and a word of the checkpoint's own
    loss.backward()


def test_counting_changes_no_gradient() -> None:
    gradients = []
    for counted in (False, True):
        first, second = layers()
        saved, inputs = SavedActivations(nn.ModuleList([first, second])), torch.ones(ROWS, 8)
        with saved.counted() if counted else nullcontext():
            loss = second(first(inputs).relu()).sum()
        loss.backward()
        gradients.append(first.weight.grad)
    assert torch.equal(*gradients)
