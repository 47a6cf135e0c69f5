"""What an attacker reads back from hidden states: everything where nothing hides it, little through noise."""

from __future__ import annotations

import pytest
import torch
from divided import Tiny, deeper
from transformers import PreTrainedModel

from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.models.state import Model
from fedstrata.split.attack import AttackSettings, Leakage, Observed, attack, nearest
from fedstrata.split.ends import Ends
from fedstrata.split.noise import Noise
from fedstrata.split.partition import divide


def observed(model: Model, front: int, texts: int, noise: Noise, first: int = 0) -> list[Observed]:
    """Sends texts of few different tokens through A, as a client would."""
    cut = Cut(front, 0)
    ends = Ends(divide(model, cut)[0], cut)
    found = []
    for index in range(first, first + texts):
        length = 4 + index % 5
        tokens = torch.randint(5, 25, (1, length), generator=Seed(index).torch())
        with torch.no_grad():
            sent = ends.front(lambda tokens=tokens: ends.module(input_ids=tokens))  # type: ignore[misc]
        states = noise.add(sent.states, sent.rows, index)
        found.append(Observed(states[0], tokens[0]))
    return found


def leakage(tiny_model: Tiny, front: int, noise: Noise, batch_size: int = 16) -> Leakage:
    model = tiny_model("llama", "causal-lm", config=deeper("llama", 4))
    known, unseen = observed(model, front, 120, noise), observed(model, front, 12, noise, first=500)
    settings = AttackSettings(blocks=front, epochs=15, batch_size=batch_size, learning_rate=1e-2)
    module = model.module
    assert isinstance(module, PreTrainedModel)
    return attack(known, unseen, module, model.tokenizer, settings, Seed(3))


@pytest.mark.parametrize("front", [0, 1, 2])
def test_without_noise_a_few_random_blocks_hide_nothing(tiny_model: Tiny, front: int) -> None:
    found = leakage(tiny_model, front, Noise(0.0, Seed(1)))
    assert found.tokens > 0.95
    assert found.nearest == 1.0 if front == 0 else 0.0 <= found.nearest <= 1.0


def test_noise_hides_what_it_drowns(tiny_model: Tiny) -> None:
    little, much = (leakage(tiny_model, 1, Noise(scale, Seed(1), relative=True)) for scale in (0.1, 30.0))
    assert little.tokens > 0.9
    assert much.tokens < 0.3
    assert much.nearest < 0.3


def test_the_attack_repeats_from_its_seed(tiny_model: Tiny) -> None:
    assert leakage(tiny_model, 1, Noise(0.5, Seed(1))) == leakage(tiny_model, 1, Noise(0.5, Seed(1)))


def test_the_nearest_embedding_is_found_piece_by_piece() -> None:
    vectors = torch.randn(50, 8, generator=Seed(0).torch())
    states = vectors[torch.arange(3000) % 50] + 0.01
    assert torch.equal(nearest(states, vectors), torch.arange(3000) % 50)
