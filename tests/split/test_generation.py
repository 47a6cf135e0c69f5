"""Scoring and generating through both sides give what the whole model gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from divided import Divided, Tiny, case, deeper, divided, joined, noised, prompt_batch, with_lora
from support import refused
from torch import Tensor

from fedstrata.core.cut import Cut
from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, FrameError, SessionLostError, SessionTooLargeError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.types import Message
from fedstrata.models.state import Model
from fedstrata.split.divide import divide
from fedstrata.split.inference import Answering
from fedstrata.split.kvcache import Sessions
from fedstrata.split.messages import pack
from fedstrata.split.noise import Noise
from fedstrata.split.rows import Rows
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.continuations import generate

PROMPTS = (5, 2, 9)
DECODERS = [
    "llama", "llama-tied", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gemma3", "phi",
    "phi3", "gpt2", "gpt_neox", "bloom", "opt", "openai-gpt", "mixtral",
]  # fmt: skip
DIFFERENT = ["llama", "gemma3", "phi", "gpt2", "bloom", "opt", "openai-gpt"]
"""Those that differ in positions, in windows, or in what they keep."""
ALL = 10**9


class Watched(Sessions):
    """A server that notes how many columns each call brings, and forgets everything before some of them."""

    def __init__(self, both: Divided, limit: int = ALL, forgets: tuple[int, ...] = ()) -> None:
        super().__init__(both.middle, limit)
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self._forgets = forgets

    def run(self, states: Tensor, rows: Rows, cut: Cut | None = None) -> Tensor:
        self.calls.append(("run", tuple(states.shape)))
        return super().run(states, rows, cut)

    def open(self, session: str, states: Tensor, rows: Rows, cut: Cut | None = None) -> Tensor:
        self.calls.append(("open", tuple(states.shape)))
        return super().open(session, states, rows, cut)

    def extend(self, session: str, states: Tensor, past: int, kept: Sequence[int] | None = None) -> Tensor:
        if len(self.calls) in self._forgets:
            self.close(session)
        self.calls.append(("extend", tuple(states.shape)))
        return super().extend(session, states, past, kept)


def continued(module: Any, budgets: int = 8, end: int = 3, **drawing: Any) -> list[list[int]]:
    rows = torch.zeros(len(PROMPTS), max(PROMPTS), dtype=torch.long)
    for row, length in enumerate(PROMPTS):
        rows[row, :length] = torch.from_numpy(Seed(row).numpy().integers(4, 40, size=length))
    limits = torch.tensor([budgets, budgets - 2, budgets])
    found = generate(module, prompt_batch(rows, torch.tensor(PROMPTS), limits, end=end, pad=0), **drawing)
    return [row.tolist() for row in found]


def causal(tiny_model: Tiny, family: str, blocks: int = 3, **changes: Any) -> Model:
    """A model whose answers differ from token to token: with the usual small numbers they hardly do."""
    model = tiny_model(family, "causal-lm", config=deeper(family, blocks, **changes))
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(8)
    return model


@pytest.mark.parametrize(
    ("family", "cut"),
    [
        case(family, cut, fast=family in fast)
        for cut, fast in ((Cut(1, 1), DIFFERENT), (Cut(0, 0), ["llama"]))
        for family in DECODERS
    ],
)
def test_greedy_answers_are_those_of_the_whole_model(tiny_model: Tiny, family: str, cut: Cut) -> None:
    """Prompts of unequal length, padded on the left; one row ends before the others."""
    model = causal(tiny_model, family)
    end = continued(model.module)[0][3]  # a token that the first row does come to
    expected = continued(model.module, end=end)
    both = divided(model, cut)
    server = Watched(both)
    with both.ends.connected(server):
        assert continued(both.ends.module, end=end) == expected
    assert not server.names  # the session ends with the connection
    if family == "openai-gpt":  # it keeps no keys and values, so every token brings the whole text
        assert [kind for kind, _ in server.calls] == ["run"] * 8
    else:
        opened, *extended = server.calls
        assert opened == ("open", (3, 9, 32))
        rows = [shape[0] for _, shape in extended]
        assert extended == [("extend", (count, 1, 32)) for count in rows]
        assert rows == sorted(rows, reverse=True)
        assert rows[-1] < 3  # rows that have ended travel no more
    assert len({tuple(row) for row in expected}) > 1


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_adapters_of_both_sides_answer_together(tiny_model: Tiny, family: str) -> None:
    cut, kind = Cut(1, 1), "causal-lm"
    whole = with_lora(causal(tiny_model, family), kind)
    expected = continued(whole.module)
    both = joined(*(with_lora(side, kind) for side in divide(causal(tiny_model, family), cut)), cut)
    with both.ends.connected(Sessions(both.middle, ALL)):
        assert continued(both.ends.module) == expected
    assert expected != continued(causal(tiny_model, family).module)


def test_the_middle_answers_in_the_precision_of_training(tiny_model: Tiny) -> None:
    """A server by itself is in no context of its client's; scores would differ from a simulation's."""
    middle = divided(causal(tiny_model, "llama"), Cut(1, 1)).middle
    states, rows = torch.randn(2, 7, 32, generator=Seed(0).torch()), Rows(7, (0, 2), "left")
    low = TrainingSettings(precision="bfloat16")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = middle.run(states, rows)
    sessions = Sessions(middle, ALL, low)
    assert torch.equal(sessions.run(states, rows), expected)
    assert torch.equal(sessions.open("one", states, rows), expected)
    assert not torch.equal(Sessions(middle, ALL).run(states, rows), expected)


@pytest.mark.parametrize(
    ("family", "front"),
    [
        pytest.param(family, front, marks=() if front == fast else pytest.mark.slow)
        for family, fast in (("gemma2", 0), ("gemma3_text", 2), ("mistral", 1))
        for front in (0, 1, 2)
    ],
)
def test_windows_slide_on_both_sides(tiny_model: Tiny, family: str, front: int) -> None:
    """A window of 4 of up to 21 tokens; masks are asked of the cache of a block that may be elsewhere."""
    layers = {} if family == "mistral" else {"layer_types": ["sliding_attention", "full_attention"] * 2}
    model = causal(tiny_model, family, 4, sliding_window=4, **layers)
    expected = continued(model.module, budgets=12)
    both = divided(model, Cut(front, 1))
    with both.ends.connected(Sessions(both.middle, ALL)):
        assert continued(both.ends.module, budgets=12) == expected


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_a_session_that_is_lost_is_made_up_for(tiny_model: Tiny, family: str) -> None:
    """The server forgets it twice: the client sends again what it had sent, and the answers are the same."""
    model = causal(tiny_model, family)
    expected = continued(model.module)
    both = divided(model, Cut(1, 1))
    server = Watched(both, forgets=(2, 5))
    with both.ends.connected(server):
        assert continued(both.ends.module) == expected
    assert [shape[1] for kind, shape in server.calls if kind == "open"] == [9, 11, 13]


def test_several_sessions_share_the_memory_and_the_one_not_used_goes_first(tiny_model: Tiny) -> None:
    both = divided(causal(tiny_model, "llama"), Cut(1, 1))
    states, rows = torch.randn(2, 6, 32, generator=Seed(0).torch()), Rows(6, (0, 2), "left")
    key_and_value, tokens = 2 * 2 * 8 * 4, 2 * 6  # two heads of eight float32 numbers, for every token
    counted = tokens * (key_and_value + 2 * 2 * 4)  # and one number a token for each empty block
    server = Sessions(both.middle, 2 * counted + 500)
    first = server.open("one", states, rows)
    server.open("two", states, rows)
    assert (server.names, server.size) == (("one", "two"), 2 * counted)
    token = states[:, :1]
    server.extend("one", token, 6)
    assert (server.names, server.size) == (("two", "one"), 2 * counted + counted // 6)
    server.open("three", states, rows)
    assert server.names == ("one", "three")
    for past in (6, 7):
        with refused(SessionLostError, "session_lost", values=["'two'"]):
            server.extend("two", token, past)
    with refused(SessionLostError, "session_lost", values=["'one'", "7 columns", " 6"]):
        server.extend("one", token, 6)  # a step that comes twice
    again = server.open("one", states, rows)
    assert torch.equal(again, first)
    server.close("one")
    server.close("one")
    assert server.names == ("three",)


def test_sessions_are_bounded_in_number_too(tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.split.kvcache._SESSIONS", 3)
    server = Sessions(divided(causal(tiny_model, "llama"), Cut(1, 1)).middle, ALL)
    for name in "abcbd":
        server.open(name, torch.ones(1, 2, 32), Rows(2, (0,), "left"))
    assert server.names == ("c", "b", "d")


def test_a_session_goes_on_as_if_it_had_been_one_call(tiny_model: Tiny) -> None:
    both = divided(causal(tiny_model, "llama"), Cut(1, 1))
    states, rows = torch.randn(3, 9, 32, generator=Seed(0).torch()), Rows(9, (0, 2, 4), "left")
    server = Sessions(both.middle, ALL)
    whole = server.open("whole", states, rows)
    server.open("some", states[:, :7], rows.longer(7))
    some = server.extend("some", states[1:, 7:], 7, [1, 2])
    torch.testing.assert_close(some, whole[1:, 7:], rtol=1e-5, atol=1e-5)
    pieces = [server.open("pieces", states[:, :5], rows.longer(5))]
    pieces += [server.extend("pieces", states[:, past : past + 2], past) for past in (5, 7)]
    own = rows.mask(torch.device("cpu"))
    torch.testing.assert_close(torch.cat(pieces, dim=1)[own.bool()], whole[own.bool()], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_a_session_that_is_too_large_is_refused_before_it_is_computed(
    tiny_model: Tiny, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = divided(causal(tiny_model, family), Cut(1, 1)).middle
    states, rows = torch.randn(2, 6, 32, generator=Seed(0).torch()), Rows(6, (0, 2), "left")
    plenty = Sessions(middle, ALL)
    plenty.open("one", states, rows)
    size, run, columns = plenty.size, middle.run, []

    def noted(states: Tensor, *more: Any) -> Tensor:
        columns.append(states.shape[1])
        return run(states, *more)

    monkeypatch.setattr(middle, "run", noted)
    with refused(SessionTooLargeError, "session_too_large", values=["one", f" {size} ", f" {size - 1};"]):
        Sessions(middle, size - 1).open("one", states, rows)
    exact = Sessions(middle, size)
    exact.open("one", states, rows)
    assert exact.size == size
    with refused(SessionTooLargeError, "session_too_large", values=["one", f" {2 * size} "]):
        exact.extend("one", states, 6)
    assert columns == [1, 1, 6], "a token of each server, and what fits"


def test_rows_beyond_the_positions_of_the_model_are_refused(tiny_model: Tiny) -> None:
    both = divided(causal(tiny_model, "gpt2"), Cut(1, 1))
    longest = both.middle.inner.config.max_position_embeddings
    server, token = Sessions(both.middle, ALL), torch.randn(1, 1, 32, generator=Seed(0).torch())
    server.open("one", token.expand(1, longest, 32), Rows(longest, (0,), "left"))
    with refused(FrameError, "out_of_range", values=[f" {longest + 1} ", f" {longest} "]):
        server.extend("one", token, longest)


def test_what_no_session_can_be_is_refused(tiny_model: Tiny) -> None:
    both = divided(causal(tiny_model, "llama"), Cut(1, 1))
    states, rows = torch.zeros(2, 6, 32), Rows(6, (0, 2), "left")
    server = Sessions(both.middle, ALL)
    with refused(FrameError, "wrong_padding"):
        server.open("one", states, Rows(6, (0, 2), "right"))
    server.open("one", states, rows)
    with refused(FrameError, "wrong_shape", values=["(1, 6, 32)"]):
        server.extend("one", states[:1], 6)
    for kept in ([], [1, 0], [0, 0], [-1], [0, 2]):
        server.open("one", states, rows)
        with refused(FrameError, "invalid", values=["2 rows", kept]):
            server.extend("one", states[: len(kept), :1], 6, kept)
    encoder = divided(tiny_model("distilbert", config=deeper("distilbert")), Cut(1, 1))
    with refused(ConfigurationError, "not_supported", at="model.name", values=["distilbert"]):
        Sessions(encoder.middle, ALL).open("one", states, rows)


def test_tokens_are_drawn_from_a_seed(tiny_model: Tiny) -> None:
    model = causal(tiny_model, "llama")
    draw = {"temperature": 2.0, "seed": Seed(1)}
    expected = continued(model.module, **draw)
    assert expected != continued(model.module)
    assert expected != continued(model.module, temperature=2.0, seed=Seed(2))
    both = divided(model, Cut(1, 1))
    with both.ends.connected(Sessions(both.middle, ALL)):
        assert continued(both.ends.module, **draw) == expected
    with pytest.raises(ValueError, match="seed"):
        continued(model.module, temperature=1.0)


def test_noise_is_added_when_it_is_meant_for_inference(tiny_model: Tiny) -> None:
    model = causal(tiny_model, "llama")
    expected = continued(model.module)
    both = divided(model, Cut(1, 1))

    def answers(noise: Noise, forgets: tuple[int, ...] = ()) -> list[list[int]]:
        with both.ends.connected(Watched(both, forgets=forgets), noise=noise):
            return continued(both.ends.module)

    assert answers(noised(2.0, Seed(1))) == expected
    assert answers(noised(2.0, Seed(1), inference=True)) != expected
    assert answers(noised(0.0, Seed(1), inference=True)) == expected


@pytest.mark.parametrize("family", ["bert", pytest.param("gpt2", marks=pytest.mark.slow), "deberta-v2"])
def test_a_task_predicts_with_a_connected_model_as_with_a_whole_one(tiny_model: Tiny, family: str) -> None:
    """Windows of documents run a few at a time, and the model is called several times."""
    settings = DocumentClassification(problem_type="single_label", max_length=8, stride=2)
    task = settings.of_labels(["a", "b", "c"])
    model = tiny_model(family, "sequence-classification", config=deeper(family))
    texts = ["w1 w2 w3 " * 9, "w4", "w5 w6 w7 w8"]
    documents = [Document(str(n), text, labels=("a",)) for n, text in enumerate(texts)]
    batch = task.collate(task.encode(documents, model.tokenizer))
    expected = np.stack(task.predict(model.module, batch))
    both = divided(model, Cut(1, 1))
    server = Watched(both)
    with both.ends.connected(server):
        found = np.stack(task.predict(both.ends.module, batch))
        with pytest.raises(ValueError, match="learns"):
            task.loss(both.ends.module, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert len(server.calls) > 2 and {kind for kind, _ in server.calls} == {"run"}


def test_a_question_is_its_client_s_alone(tiny_model: Tiny) -> None:
    """Of a client whose name begins like another's too; and none that is not as agreed is answered."""
    sessions = Sessions(divided(causal(tiny_model, "llama"), Cut(1, 1)).middle, ALL)
    service = Answering(sessions, "float32", lambda client: Cut(1, 1))
    states = torch.randn(1, 5, 32, generator=Seed(0).torch())
    rows = Rows(5, (0,), "left").to_json()

    def ask(client: str, **values: Any) -> Message:
        own = {"ask": "open", "rows": rows, "cut": [1, 1], **values}
        return dict(service.hear(client, pack("states", states, "float32", own)))[client]

    ask("a/b", session="c")
    assert ask("a", ask="extend", session="b/c", past=5).values["lost"]
    list(service.leave("a"))
    assert not ask("a/b", ask="extend", session="c", past=5).values.get("lost")
    for wrong, code, value in (
        ({"cut": [-1, 0]}, "not_agreed", "Cut(front=-1, back=0)"),
        ({"session": ["c"]}, "wrong_type", "list"),
        ({"session": "c" * 65}, "out_of_range", 65),
    ):
        with refused(FrameError, code, values=[value]):
            ask("a/b", **wrong)
