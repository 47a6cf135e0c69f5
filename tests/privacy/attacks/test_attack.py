"""What an attacker reads back from hidden states: everything where nothing hides it, little through noise."""

from __future__ import annotations

import pytest
import torch
from divided import Tiny, deeper, noised

from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.models.state import Model
from fedstrata.privacy.attacks import inversion as attack_module
from fedstrata.privacy.attacks.inversion import Leakage, Names, Observed, attack, embedding_of, nearest
from fedstrata.privacy.attacks.search import can_search, search_states
from fedstrata.split.divide import divide
from fedstrata.split.ends import Ends
from fedstrata.split.noise import Noise


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
        deviation = float(noise.deviation(sent.states, sent.rows))
        found.append(Observed(sent.states[0].float(), tokens[0], deviation))
    return found


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_module, "LEARNING_RATE", 1e-2)


def leakage(
    tiny_model: Tiny,
    front: int,
    noise: Noise,
    weight: float = 1.0,
    sent: int = 1,
    *,
    known: int = 60,
    epochs: int = 15,
    searched: int = 0,
    names: Names = "same",
    **changes: str,
) -> Leakage:
    """Attacks a model whose blocks change what comes into them so many times as much as usual.

    The attacker learns from so many known texts, which it goes through so many times, and searches for so
    many tokens of the others.
    """
    model = tiny_model("llama", "causal-lm", config=deeper("llama", 4), **changes)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "_proj" in name:
                parameter.mul_(weight)
    learnt, unseen = observed(model, front, known, noise), observed(model, front, 12, noise, first=500)
    unseen = [each.sent(Seed(3).child("sent", index), sent) for index, each in enumerate(unseen)]
    cut = Cut(front, 0)
    ends = Ends(divide(model, cut)[0], cut)
    ends.module.train(False)
    return attack(learnt, unseen, ends, model, epochs, searched, Seed(3), names)


@pytest.mark.parametrize(
    "front", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_without_noise_a_few_random_blocks_hide_nothing(tiny_model: Tiny, front: int) -> None:
    found = leakage(tiny_model, front, noised(0.0, Seed(1)))
    assert found.tokens > 0.95
    assert found.nearest == 1.0  # they leave a state where its embedding was


def test_a_decoder_of_the_next_token_is_marked_by_place(tiny_model: Tiny) -> None:
    """As the released code of FL-LLaMA does: in random texts nobody can name what comes next."""
    noise = noised(0.0, Seed(1))
    same, other = (leakage(tiny_model, 1, noise, names=names) for names in ("same", "next"))
    assert same.tokens > 0.95 and other.tokens < 0.2
    assert same.nearest == other.nearest


@pytest.mark.parametrize("front", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_blocks_that_change_much_hide_the_embedding_but_not_the_text(tiny_model: Tiny, front: int) -> None:
    """Only a server that has somebody's texts to learn from reads others'; by chance it would name 5 %."""
    found = leakage(tiny_model, front, noised(0.0, Seed(1)), weight=8.0)
    assert found.nearest < 0.15
    assert found.tokens > 0.4


@pytest.mark.slow
def test_noise_hides_what_it_drowns(tiny_model: Tiny) -> None:
    little, much = (
        leakage(tiny_model, 1, noised(scale, Seed(1), relative=True), searched=searched)
        for scale, searched in ((0.1, 0), (30.0, 16))
    )
    assert little.tokens > 0.9
    assert much.tokens < 0.3
    assert much.nearest < 0.3
    assert much.searched is not None and much.searched < 0.3


@pytest.mark.slow
def test_a_text_that_is_sent_often_is_read_through_its_noise(tiny_model: Tiny) -> None:
    noise = noised(4.0, Seed(1), relative=True)
    once, often = (leakage(tiny_model, 1, noise, sent=sent) for sent in (1, 100))
    assert often.nearest > once.nearest + 0.2
    assert often.tokens > once.tokens + 0.2


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma2", marks=pytest.mark.slow), "gpt2"])
def test_whoever_has_a_reads_the_text_through_any_number_of_blocks(tiny_model: Tiny, family: str) -> None:
    """Also where blocks change so much that nothing of the embedding is left, and nobody colludes."""
    model = tiny_model(family, "causal-lm", config=deeper(family, 4))
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "proj" in name or "c_" in name:
                parameter.mul_(8.0)
    texts = observed(model, 3, 3, noised(0.0, Seed(1)))
    cut = Cut(3, 0)
    ends = Ends(divide(model, cut)[0], cut)
    ends.module.train(False)
    assert can_search(ends)
    found = search_states([each.states for each in texts], ends, 64, 4)
    assert [guess.tolist() for guess in found] == [each.tokens[:4].tolist() for each in texts]


def test_what_sees_later_tokens_is_not_searched(tiny_model: Tiny) -> None:
    model, cut = tiny_model("bert", "sequence-classification", config=deeper("bert")), Cut(1, 0)
    ends = Ends(divide(model, cut)[0], cut)
    ends.module.train(False)
    assert not can_search(ends)


@pytest.mark.slow
def test_the_attack_repeats_from_its_seed(tiny_model: Tiny) -> None:
    noise = noised(0.5, Seed(1))
    one, other = (leakage(tiny_model, 1, noise, known=20, epochs=2, searched=16) for _ in range(2))
    assert one == other


@pytest.mark.slow
def test_a_model_of_few_bits_is_attacked_like_any_other(tiny_model: Tiny) -> None:
    assert leakage(tiny_model, 1, noised(0.0, Seed(1)), dtype="bfloat16").tokens > 0.95


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "gemma",
        "gpt2",
        "roberta",
        *(
            pytest.param(family, marks=pytest.mark.slow)
            for family in ("gemma3", "opt", "bloom", "bert", "deberta-v2")
        ),
    ],
)
def test_below_the_first_block_a_server_that_knows_the_embedding_reads_everything(
    tiny_model: Tiny, family: str
) -> None:
    """Whatever the architecture does to the embedding: scales it, adds positions, normalises."""
    model = tiny_model(family, "sequence-classification", config=deeper(family))
    with torch.no_grad():  # positions weigh as much as tokens
        for name, parameter in model.module.named_parameters():
            if "embed" in name or "wpe" in name or "wte" in name:
                parameter.normal_(generator=Seed(0).child(name).torch())
    texts = observed(model, 0, 12, noised(0.0, Seed(1)))
    found = nearest(texts, embedding_of(model), 64)
    assert [guess.tolist() for guess in found] == [each.tokens.tolist() for each in texts]


@pytest.mark.parametrize("places", [1, 40])
def test_the_nearest_is_found_piece_by_piece(monkeypatch: pytest.MonkeyPatch, places: int) -> None:
    vectors = torch.randn(places, 50, 8, generator=Seed(0).torch())

    def embed(ids: torch.Tensor) -> torch.Tensor:
        return vectors[torch.arange(ids.shape[1]) % places, ids]

    monkeypatch.setattr(attack_module, "_TOKENS_AT_A_TIME", 7)
    monkeypatch.setattr(attack_module, "_NUMBERS_AT_A_TIME", 600)
    tokens = [(torch.arange(length) * 3 + length) % 50 for length in (40, 1, 17)]
    texts = [Observed(embed(own[None])[0] + 0.01, own) for own in tokens]
    assert [guess.tolist() for guess in nearest(texts, embed, 50)] == [own.tolist() for own in tokens]
