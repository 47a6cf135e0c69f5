"""Texts are found exactly where the change of a weight has a space, and not where it has none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig

from fedstrata.models.state import Model
from fedstrata.privacy.attacks.search import search_span
from fedstrata.privacy.attacks.span import readers_of, span_of, undecayed

WIDTH, BLOCKS, VOCABULARY, TOKENS = 64, 4, 200, 9
ARCHITECTURES = {
    "gpt2": GPT2Config(
        n_embd=WIDTH, n_layer=BLOCKS, n_head=4, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=1
    ),
    "llama": LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        vocab_size=VOCABULARY,
    ),
}


def model_of(config: PretrainedConfig) -> Model:
    torch.manual_seed(0)
    return Model(AutoModelForCausalLM.from_config(config).eval(), None, name=config.model_type)


def texts(count: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (count, TOKENS), generator=torch.Generator().manual_seed(1))


def change_of(
    model: Model, ids: Tensor, top: int, optimizer: Callable[..., Optimizer], steps: int = 1
) -> dict[str, Tensor]:
    """What the top blocks change by; the model is left as it was."""
    names = [name for block in model.layout.blocks[BLOCKS - top :] for name in block]
    before = {name: tensor.clone() for name, tensor in model.tensors(names).items()}
    model.train_only(names)
    descent = optimizer(model.parameters(names))
    for _ in range(steps):
        descent.zero_grad()
        model.module(input_ids=ids, labels=ids).loss.backward()
        descent.step()
    change = {name: tensor - before[name] for name, tensor in model.tensors(names).items()}
    model.load(before)
    model.train_only(())
    return change


def found_in(model: Model, change: dict[str, Tensor]) -> list[tuple[int, ...]] | None:
    reader = next(own for own in readers_of(model, change) if not own.alone)
    span = reader.span_of(change)
    return None if span is None else search_span(model, reader, span, longest=2 * TOKENS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("top", "steps", "decay"),
    [
        pytest.param(1, 1, 0.0, id="top", marks=pytest.mark.slow),
        pytest.param(2, 3, 0.01, id="steps"),
        pytest.param(BLOCKS, 1, 0.0, id="whole", marks=pytest.mark.slow),
    ],
)
def test_texts_are_found_exactly(architecture: str, top: int, steps: int, decay: float) -> None:
    model, ids = model_of(ARCHITECTURES[architecture]), texts(3)
    change = change_of(model, ids, top, lambda own: SGD(own, 0.05, weight_decay=decay), steps)
    found = found_in(model, change)
    # Nothing comes back from the last token of a text.
    assert {tuple(text[:-1].tolist()) for text in ids} <= set(found)


def test_a_sum_over_sites_is_no_defence_while_its_tokens_are_few() -> None:
    model, ids = model_of(ARCHITECTURES["llama"]), texts(2)
    sites = [change_of(model, own, 2, lambda each: SGD(each, 0.05)) for own in ids.split(1)]
    total = {name: sum((own[name] for own in sites), torch.zeros(())) for name in sites[0]}
    found = found_in(model, total)
    assert {tuple(text[:-1].tolist()) for text in ids} <= set(found)


def test_more_tokens_than_a_layer_is_wide_leave_no_space() -> None:
    model = model_of(ARCHITECTURES["llama"])
    assert found_in(model, change_of(model, texts(12), 2, lambda own: SGD(own, 0.05))) is None


def test_adam_leaves_no_space() -> None:
    model = model_of(ARCHITECTURES["llama"])
    assert found_in(model, change_of(model, texts(2), 2, lambda own: AdamW(own, 1e-3))) is None


def test_noise_leaves_no_space() -> None:
    model = model_of(ARCHITECTURES["gpt2"])
    change = change_of(model, texts(2), 2, lambda own: SGD(own, 0.05))
    longest = max(float(own.norm()) for own in change.values())
    noise = torch.Generator().manual_seed(2)
    noised = {
        name: own + 0.01 * longest * torch.randn(own.shape, generator=noise) for name, own in change.items()
    }
    assert found_in(model, noised) is None


@given(rank=st.integers(1, 20), decay=st.floats(0.0, 0.01), seed=st.integers(0, 99))
def test_what_weight_decay_takes_off_is_put_back(rank: int, decay: float, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    weight = torch.from_numpy(0.05 * numbers.standard_normal((64, 48)))
    read = torch.from_numpy(numbers.standard_normal((64, rank)) @ numbers.standard_normal((rank, 48)))
    read = 0.1 * read / read.norm()
    back = undecayed(read - decay * weight, weight, 0.5)
    assert float((back - read).norm()) <= 1e-6 + 1e-3 * decay
    span = span_of(back)
    assert span.rank == rank
    _, _, directions = torch.linalg.svd(read)
    assert float(span.distances(directions[:rank]).max()) < 1e-3
    assert float(span.distances(directions[rank:]).min()) > 0.999
