"""What tests of several folders share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Same examples every time, and no clock in a verdict.
settings.register_profile("fedstrata", deadline=None, derandomize=True)
settings.load_profile("fedstrata")

REPOSITORY = Path(__file__).parents[1]

TINY = (
    "data.types=[problem, test, treatment, drug]",
    "data.synthetic.sites=3",
    "data.synthetic.notes=24",
    "model.init=random",
    "model.tokenizer=mini",
    "model.config={model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, "
    "num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}",
    "task.max_length=64",
    "task.stride=8",
    "training.learning_rate=0.005",
    "federation.rounds=2",
)
"""Overrides that make a run of seconds: three sites, a random model of three small blocks."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors are slower on many threads, and sums come out equal everywhere."""
    torch.set_num_threads(1)


@pytest.fixture
def tiny() -> tuple[str, ...]:
    """Overrides for a run of seconds."""
    return TINY


@pytest.fixture
def data_root() -> Path:
    """The folder of real data; tests that need it are skipped where it is absent."""
    root = REPOSITORY / os.environ.get("FEDSTRATA_DATA", "../shared/data")
    if not root.is_dir():
        pytest.skip(f"no real data at {root}")
    return root
