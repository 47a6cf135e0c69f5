"""Packing and likelihoods against loops over tokens and documents, on tiny models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import refused
from torch.nn import functional as F

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.tasks import causal as module
from fedstrata.tasks.causal import end_id
from fedstrata.tasks.lm import LanguageModelling, Passage

TEXTS = ["Chest pain, no fever.", "", "Aspirin 81 mg daily; metoprolol for hypertension.", "5mg"]
DOCUMENTS = [Document(str(number), text) for number, text in enumerate(TEXTS)]


@pytest.fixture(params=["llama", "gpt2", "openai-gpt"])
def model(request: pytest.FixtureRequest, tiny_causal: Any) -> Any:
    return tiny_causal(request.param, std=0.1)


def nats(task: LanguageModelling, model: Any, passages: list[Passage], size: int = 2) -> list[np.ndarray]:
    """Asks the model in batches of some windows."""
    starts = range(0, len(passages), size)
    batches = [task.collate(passages[start : start + size]) for start in starts]
    return [row for batch in batches for row in task.predict(model, batch)]


def ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@given(
    tokens=st.lists(st.lists(st.integers(1, 999), max_size=40), min_size=1, max_size=8),
    length=st.integers(8, 30),
    packed=st.booleans(),
)
def test_every_token_is_predicted_exactly_once_by_what_stands_before_it(
    numbers: Any, tokens: list[list[int]], length: int, packed: bool
) -> None:
    documents = [Document(str(index), " ".join(map(str, own))) for index, own in enumerate(tokens)]
    task = LanguageModelling(max_length=length)
    task = task if packed else task.restored(())
    passages = task.encode(documents, numbers)
    predicted = [
        (int(owner), int(target))
        for each in passages
        for owner, target in zip(each.documents, each.targets, strict=True)
    ]
    assert predicted == [(index, token) for index, own in enumerate(tokens) for token in [*own, 0]]
    streams = [[0, *(token for own in tokens for token in [*own, 0])]]
    if not packed:
        streams = [[0, *own, 0] for own in tokens]
    read = [
        (stream[start : start + length][: len(stream) - 1 - start])
        for stream in streams
        for start in range(0, len(stream) - 1, length)
    ]
    assert [each.input_ids.tolist() for each in passages] == read
    assert all(len(each) == len(each.targets) == len(each.documents) <= length for each in passages)
    if packed:
        assert all(len(each) == length for each in passages[:-1])


def test_perplexity_is_that_of_a_loop_over_documents_and_tokens(model: Any, byte_level: Any) -> None:
    task = LanguageModelling(max_length=64).restored(())
    end, total, count = end_id(byte_level, "lm"), 0.0, 0
    each = []
    for text in TEXTS:
        stream = [end, *ids(byte_level, text), end]
        own = 0.0
        for position in range(1, len(stream)):
            with torch.no_grad():
                logits = model(torch.tensor([stream[:position]])).logits[0, -1].double()
            own -= float(logits.log_softmax(-1)[stream[position]])
        each.append((own, len(stream) - 1))
        total, count = total + own, count + len(stream) - 1
    passages = task.encode(DOCUMENTS, byte_level)
    answers = task.decode(DOCUMENTS, passages, nats(task, model, passages))
    assert [answer.nats for answer in answers] == pytest.approx([own for own, _ in each], rel=1e-5)
    assert [answer.tokens for answer in answers] == [tokens for _, tokens in each]
    scores = task.score(DOCUMENTS, answers)
    assert scores["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
    assert scores["loss"] == pytest.approx(total / count, rel=1e-5)
    size = sum(len(text.encode()) for text in TEXTS)
    assert scores["bits_per_byte"] == pytest.approx(total / math.log(2) / size, rel=1e-5)


def test_packed_likelihoods_are_those_of_a_loop_over_the_windows_of_the_stream(
    model: Any, byte_level: Any
) -> None:
    length = 9
    task, end = LanguageModelling(max_length=length), end_id(byte_level, "lm")
    stream, owner = [end], []
    for index, text in enumerate(TEXTS):
        own = [*ids(byte_level, text), end]
        stream, owner = stream + own, owner + [index] * len(own)
    expected = [0.0] * len(TEXTS)
    for start in range(0, len(stream) - 1, length):
        window = torch.tensor([stream[start : start + length + 1]])
        with torch.no_grad():
            likelihoods = model(window[:, :-1]).logits[0].double().log_softmax(-1)
        for place, token in enumerate(window[0, 1:].tolist()):
            expected[owner[start + place]] -= float(likelihoods[place, token])
    passages = task.encode(DOCUMENTS, byte_level)
    answers = task.decode(DOCUMENTS, passages, nats(task, model, passages))
    assert [answer.nats for answer in answers] == pytest.approx(expected, rel=1e-5)
    some = task.score(DOCUMENTS[2:], answers[2:])
    tokens = sum(answer.tokens for answer in answers[2:])
    assert some["loss"] == pytest.approx(sum(expected[2:]) / tokens, rel=1e-5)


class Fixed(torch.nn.Module):
    """Gives these logits whatever it reads."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Fixed:
        return self


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at_a_time", [1, 400 * 7, 2**24])
def test_loss_and_gradient_are_those_of_float32_logits(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, at_a_time: int
) -> None:
    monkeypatch.setattr(module, "LOGITS_AT_A_TIME", at_a_time)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 11, 400, generator=generator).to(dtype)
    labels = torch.randint(400, (3, 11), generator=generator)
    labels[2, 5:] = -100
    ours, theirs = (values.clone().requires_grad_() for _ in range(2))
    batch = {"input_ids": labels, "attention_mask": labels, "labels": labels}
    loss, _ = LanguageModelling().loss(Fixed(ours), batch)
    reference = F.cross_entropy(theirs.float().flatten(0, 1), labels.flatten(), reduction="sum")
    assert loss.dtype == torch.float32
    (loss + reference).backward()
    assert ours.grad is not None
    torch.testing.assert_close(loss.detach(), reference.detach())
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_tokenizer_without_an_end_is_refused(numbers: Any) -> None:
    endless = type("Endless", (type(numbers),), {"eos_token_id": None})()
    with refused(ConfigurationError, "lacks_tokens", at="model.tokenizer"):
        LanguageModelling().encode(DOCUMENTS, endless)


def test_texts_without_bytes_have_no_bits_per_byte_and_nothing_to_encode_gives_nothing(numbers: Any) -> None:
    task, blank = LanguageModelling(), [Document("a", "")]
    passages = task.encode(blank, numbers)
    answers = task.decode(blank, passages, [np.array([2.0], dtype=np.float32)])
    assert task.score(blank, answers) == pytest.approx({"perplexity": math.exp(2.0), "loss": 2.0})
    diverged = task.decode(blank, passages, [np.array([5000.0])])
    assert math.isfinite(task.score(blank, diverged)["perplexity"]), "a number that JSON can hold"
    assert task.encode([], numbers) == task.decode([], [], []) == []
