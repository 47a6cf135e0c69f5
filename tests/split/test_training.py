"""A training step through both sides is a training step of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from divided import (
    EVERY_VARIANT,
    FAMILIES,
    TASK,
    Tiny,
    assert_same_gradients,
    batch_of,
    case,
    deeper,
    divided,
    gradients_of,
    joined,
    whole_step,
    with_lora,
)
from support import refused
from tiny_models import CONFIGURATIONS

from fedstrata.adapters.attach import attach
from fedstrata.core.cut import Cut
from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError, FedstrataError, FrameError, StepLostError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import PrefixSettings
from fedstrata.core.settings.model import ModelSettings
from fedstrata.methods.fl_llama import FLLLaMA
from fedstrata.models import blocks
from fedstrata.models.blocks import transformers_model
from fedstrata.models.load import load
from fedstrata.models.state import Model
from fedstrata.split.divide import divide, leave_ends, leave_middle
from fedstrata.split.ends import Ends
from fedstrata.split.middle import Middle
from fedstrata.split.rows import Rows
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.extract import Extraction
from fedstrata.tasks.lm import LanguageModelling
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.train.local import train_mode

CUTS = [Cut(0, 0), Cut(1, 0), Cut(0, 1), Cut(2, 0), Cut(0, 2)]
"""All but one block on each side, which every architecture is divided at with every head."""
DIFFERENT = ("llama", "gemma3", "gpt2", "deberta-v2")
"""Families that differ in what a side needs to compute with: positions, windows, what all blocks share."""
NARROW = {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}


SLIDING = [("gemma2", Cut(1, 1)), ("gemma3", Cut(1, 0)), ("qwen2", Cut(0, 1))]


def assert_equal_to_whole(model: Model, cut: Cut) -> None:
    batch = batch_of()
    loss, gradients = whole_step(model, batch)
    both = divided(model, cut)
    found, terms = both.step(batch)
    torch.testing.assert_close(found, loss, rtol=1e-5, atol=1e-6)
    assert int(terms) == 4
    assert_same_gradients(both.gradients, gradients)


@EVERY_VARIANT
def test_loss_and_gradients_are_those_of_the_whole_model(tiny_model: Tiny, variant: tuple[str, str]) -> None:
    """Every architecture with every head, every parameter training, rows of unequal length."""
    family, kind = variant
    assert_equal_to_whole(tiny_model(family, kind, config=deeper(family)), Cut(1, 1))


@pytest.mark.parametrize(
    ("family", "cut"),
    [
        case(family, cut, fast=family == "llama" or (family in DIFFERENT and cut == Cut(0, 0)))
        for family, cut in product(FAMILIES, CUTS)
    ],
)
def test_any_cut_gives_the_same(tiny_model: Tiny, family: str, cut: Cut) -> None:
    assert_equal_to_whole(tiny_model(family, FAMILIES[family], config=deeper(family)), cut)


@pytest.mark.parametrize(
    ("family", "cut"),
    [
        case(family, cut, fast=(family, cut) in SLIDING)
        for family, cut in product(
            ["gemma2", "gemma3_text", "gemma3", "qwen2"], [Cut(0, 1), Cut(1, 0), Cut(1, 1)]
        )
    ],
)
def test_blocks_with_a_sliding_window_keep_theirs(tiny_model: Tiny, family: str, cut: Cut) -> None:
    """The mask of each block is that of its number in the whole model, on either side."""
    kind = "sequence-classification"
    changes = {**NARROW, **({"use_sliding_window": True} if family == "qwen2" else {})}
    assert_equal_to_whole(tiny_model(family, kind, config=deeper(family, **changes)), cut)


FULL = [
    *product(DIFFERENT, [[]]),
    *(("llama", ["front", "back"]), ("deberta-v2", ["middle"]), ("gpt2", ["front"]), ("bert", ["back"])),
]


@pytest.mark.parametrize(
    ("family", "full"),
    [
        pytest.param(family, full, marks=() if (family, full) in FULL else pytest.mark.slow)
        for family, full in [
            *product(sorted(FAMILIES), [[], ["middle"], ["front", "back"]]),
            *product(["gpt2", "bert"], [["front"], ["back"], ["middle", "back"]]),
        ]
    ],
)
def test_each_segment_trains_in_full_or_its_own_lora(tiny_model: Tiny, family: str, full: list[Any]) -> None:
    """As in the undivided model, of which the same weights train; both sides name them alike."""
    kind, cut, batch = FAMILIES[family], Cut(1, 1), batch_of()
    method = FLLLaMA(full=full)
    plain, again = (tiny_model(family, kind, config=deeper(family)) for _ in range(2))
    below = cut.segments(plain.layout)
    client, server = (with_lora(side, kind, method.full_parts(side.layout)) for side in divide(plain, cut))
    whole = with_lora(again, kind, method.full_parts(again.layout))
    both = joined(client, server, cut)
    assert set(client.layout.all) | set(server.layout.all) == set(whole.layout.all)
    assert full or not set(client.layout.all) & set(server.layout.all)
    for segment in ("front", "middle", "back"):
        own = getattr(cut.segments(whole.layout), segment)
        assert any(".lora_" in name for name in own) == (segment not in full)
        if segment in full:
            assert len(own) == len(getattr(below, segment))
    loss, gradients = whole_step(whole, batch)
    torch.testing.assert_close(both.step(batch)[0], loss, rtol=1e-5, atol=1e-6)
    assert_same_gradients(both.gradients, gradients)


NOTES = [
    Document("a", "Denies fever. Severe chest pain.", (Span(7, 12, "problem"),), labels=("yes",)),
    Document("b", "No pain.", (Span(3, 7, "problem"),), labels=("no",)),
    Document("c", "Given aspirin 81 mg daily for the pain.", (Span(6, 13, "drug"),), labels=("no", "yes")),
]
TASKS: dict[str, Any] = {
    "ner": NamedEntityRecognition(max_length=16, stride=4).of_types(["drug", "problem"]),
    "classify": DocumentClassification(problem_type="multi_label", max_length=8, stride=2).of_labels(
        ["no", "yes"]
    ),
    "lm": LanguageModelling(max_length=12),
    "extract": Extraction(templates="short", tasks=["ner"], mentions=["drug", "problem"], modifiers={}),
}


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.slow), "bert"])
@pytest.mark.parametrize("name", TASKS)
def test_the_tasks_take_their_losses_as_they_do_of_a_whole_model(family: str, name: str) -> None:
    """Windows of documents, packed text, logits of the answers alone: the task calls the model as ever."""
    if family == "bert" and name in {"lm", "extract"}:
        pytest.skip("an encoder predicts no next token")
    task = TASKS[name]
    config = {"model_type": family, **CONFIGURATIONS[family], **deeper(family)}
    del config["vocab_size"], config["max_position_embeddings"]
    settings = ModelSettings(init="random", config=config, tokenizer="mini")
    model = load(settings, kind=task.kind, labels=task.classes, seed=Seed(0))
    batch = task.collate(task.encode(NOTES, model.tokenizer))
    loss, gradients = whole_step(model, batch, task)
    both = divided(model, Cut(1, 1))
    torch.testing.assert_close(both.step(batch, task)[0], loss, rtol=1e-5, atol=1e-6)
    assert_same_gradients(both.gradients, gradients)


def test_steps_may_overlap_and_add_up(tiny_model: Tiny) -> None:
    """Two batches are at the server before either has its gradient, and the later one is answered first."""
    model = tiny_model("llama", config=deeper("llama"))
    batches = [batch_of((5, 12, 1)), batch_of((7, 3))]
    expected = [whole_step(model, batch)[1] for batch in batches]
    both = divided(model, Cut(1, 1))
    ends, middle = both.ends, both.middle
    fronts = [ends.front(lambda own=batch: TASK.loss(ends.module, own)) for batch in batches]
    states = [
        middle.forward(f"step {number}", front.states, front.rows) for number, front in enumerate(fronts)
    ]
    assert middle.waiting == ("step 0", "step 1")
    for number in (1, 0):
        call = lambda own=batches[number]: TASK.loss(ends.module, own)  # noqa: E731
        (loss, _), leaf = ends.back(fronts[number], states[number], call)
        loss.backward()
        fronts[number].backward(middle.backward(f"step {number}", leaf.grad))
    assert not middle.waiting
    total = {name: expected[0][name] + expected[1][name] for name in expected[0]}
    assert_same_gradients(both.gradients, total)


def test_a_step_that_gets_no_gradient_leaves_nothing(tiny_model: Tiny) -> None:
    both = divided(tiny_model("llama", config=deeper("llama")), Cut(1, 1))
    middle = both.middle
    front = both.ends.front(lambda: TASK.loss(both.ends.module, batch_of()))
    for name in ("b", "c"):
        states = middle.forward(name, front.states, front.rows)
    assert middle.waiting == ("b", "c")
    middle.drop("b")
    middle.drop("b")
    assert middle.waiting == ("c",)
    for lost in ("b", "never"):
        with refused(StepLostError, "step_lost", values=[f"'{lost}'"]):
            middle.backward(lost, states)
    with refused(FrameError, "wrong_shape", values=["(4, 12, 32)", "(4, 3, 32)"]):
        middle.backward("c", states[:, :3])
    assert middle.backward("c", states) is not None  # what did not fit cost nothing
    with refused(StepLostError, "step_lost", values=["'c'"]):
        middle.backward("c", states)


def test_a_gradient_for_weights_that_have_changed_is_refused(tiny_model: Tiny) -> None:
    both = divided(tiny_model("llama", config=deeper("llama")), Cut(1, 1))
    middle = both.middle
    front = both.ends.front(lambda: TASK.loss(both.ends.module, batch_of()))
    states = middle.forward("one", front.states, front.rows)
    middle.forward("other", front.states, front.rows)
    middle.backward("one", states)
    parameters = middle.model.parameters(middle.model.trainable)
    torch.optim.SGD(parameters, lr=0.1).step()
    with refused(StepLostError, "stale", values=["'other'"]):
        middle.backward("other", states)
    assert not middle.waiting


def test_what_does_not_learn_asks_for_no_gradient(tiny_model: Tiny) -> None:
    """A frozen front: the server makes no gradient by its states. A frozen middle too: none is sent."""
    model, cut, batch = tiny_model("llama", config=deeper("llama")), Cut(1, 1), batch_of()
    _, expected = whole_step(model, batch)
    both = divided(model, cut)
    client, server = both.ends.model, both.middle.model
    top = [*client.layout.blocks[2], *client.layout.final_norm, *client.layout.head]
    client.train_only(top)
    front = both.ends.front(lambda: TASK.loss(both.ends.module, batch))
    assert not front.needs_gradient
    both.step(batch)
    assert_same_gradients(both.gradients, {name: expected[name] for name in [*top, *server.layout.all]})
    for each in (client, server):
        each.module.zero_grad(set_to_none=True)
    server.train_only(())
    both.step(batch)
    assert_same_gradients(both.gradients, {name: expected[name] for name in top})
    with refused(FedstrataError, "out_of_order"):
        front.backward(front.states)


def test_dropout_is_drawn_on_both_sides_and_again_from_the_same_seed(tiny_model: Tiny) -> None:
    model, batch, losses = tiny_model("bert", config={"num_hidden_layers": 3}), batch_of(), []
    both = divided(model, Cut(1, 1))
    train_mode(both.ends.model)
    for seed in (1, 1, 2):
        both.ends.module.zero_grad(set_to_none=True)
        with Seed(seed).everywhere():
            losses.append(float(both.step(batch)[0]))
        assert all(bool(gradient.isfinite().all()) for gradient in both.gradients.values())
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("scores", [False, True], ids=["at once", "scoring between"])
def test_a_server_may_score_between_the_passes_of_a_step(tiny_model: Tiny, scores: bool) -> None:
    """With dropout and activations computed again: the gradient is that of what was drawn before."""
    model, generator = tiny_model("bert", config={"num_hidden_layers": 3}), Seed(0).torch()
    middle = divided(model, Cut(1, 1)).middle
    states, direction = torch.randn(2, 4, 9, 32, generator=generator)
    rows, gradients = Rows(9, (0, 2, 0, 5)), []
    for again in (False, True):
        if again:
            middle.inner.activation_checkpointing_enable({"use_reentrant": False})
        with Seed(1).everywhere():
            given = middle.forward("step", states, rows)
        if scores:
            assert not torch.equal(middle.run(states, rows), given)  # without dropout
        gradients.append(middle.backward("step", direction))
    assert torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        pytest.param("gpt2", marks=pytest.mark.slow),
        pytest.param("bert", marks=pytest.mark.slow),
        "deberta-v2",
    ],
)
def test_activations_may_be_computed_again(tiny_model: Tiny, family: str) -> None:
    """With activation checkpointing, as `training.checkpointing` switches it on, on both sides."""
    model, batch = tiny_model(family, config=deeper(family)), batch_of()
    model.module.dropout.p = 0.0  # of the head, which its configuration does not name
    loss, gradients = whole_step(model, batch)
    both = divided(model, Cut(1, 1))
    for side in (both.ends.model, both.middle.model):
        transformers_model(side.module).activation_checkpointing_enable({"use_reentrant": False})
        train_mode(side)
    torch.testing.assert_close(both.step(batch)[0], loss, rtol=1e-5, atol=1e-6)
    assert_same_gradients(both.gradients, gradients)


def test_weights_in_bfloat16_give_the_same(tiny_model: Tiny) -> None:
    """And states that came in another dtype, as on a wire that takes fewer bits, are taken as the model's."""
    model, batch = tiny_model("llama", dtype="bfloat16", config=deeper("llama")), batch_of()
    loss, gradients = whole_step(model, batch)
    both = divided(model, Cut(1, 1))
    torch.testing.assert_close(both.step(batch)[0], loss)
    assert_same_gradients(both.gradients, gradients)
    front = both.ends.front(lambda: TASK.loss(both.ends.module, batch))
    states = both.middle.forward("step", front.states.float(), front.rows)
    assert states.dtype == torch.bfloat16
    gradient = both.middle.backward("step", states.float())
    front.backward(gradient.float())


def test_quantized_weights_under_an_adapter_give_the_same(saved: Callable[..., Path]) -> None:
    pytest.importorskip("bitsandbytes")
    kind, cut, batch = "causal-lm", Cut(1, 1), batch_of()
    wide = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    settings = ModelSettings(name=str(saved("llama", config=deeper("llama", **wide))), quantization="nf4")
    read = partial(load, settings, kind=kind, seed=Seed(0))
    client, server = (
        with_lora(read(without=partial(take, cut=cut)), kind) for take in (leave_ends, leave_middle)
    )
    loss, gradients = whole_step(with_lora(read(), kind), batch)
    both = joined(client, server, cut)
    torch.testing.assert_close(both.step(batch)[0], loss, rtol=1e-5, atol=1e-6)
    assert_same_gradients(both.gradients, gradients)


def test_a_client_may_be_cut_higher_than_the_server(tiny_model: Tiny) -> None:
    """The server holds what any client lacks; for this one it runs a narrower middle."""
    model, own, batch = tiny_model("gemma2", config=deeper("gemma2", 4)), Cut(2, 1), batch_of()
    loss, expected = whole_step(model, batch)
    again = tiny_model("gemma2", config=deeper("gemma2", 4))  # so that gradients are not in one place
    client, server = divide(model, own)[0], divide(again, Cut(1, 0))[1]
    for each in (client, server):
        each.train_only(each.layout.all)
    ends, middle = Ends(client, own), Middle(server, Cut(1, 0))
    front = ends.front(lambda: TASK.loss(ends.module, batch))
    states = middle.forward("step", front.states, front.rows, cut=own)
    (found, _), leaf = ends.back(front, states, lambda: TASK.loss(ends.module, batch))
    found.backward()
    front.backward(middle.backward("step", leaf.grad))
    torch.testing.assert_close(found, loss, rtol=1e-5, atol=1e-6)
    assert_same_gradients(gradients_of(client.module), {name: expected[name] for name in client.layout.all})
    moved = {name for name, gradient in gradients_of(server.module).items() if gradient.any()}
    assert moved == set(server.layout.blocks[2])


def test_states_of_another_shape_are_refused(tiny_model: Tiny) -> None:
    both = divided(tiny_model("llama", config=deeper("llama")), Cut(1, 1))
    ends, middle, batch = both.ends, both.middle, batch_of()
    call = lambda: TASK.loss(ends.module, batch)  # noqa: E731
    front = ends.front(call)
    for wrong in (front.states[1:], front.states[:, 1:], front.states[..., 1:], front.states.long()):
        with refused(FrameError, "wrong_shape", values=[tuple(wrong.shape), wrong.dtype]):
            middle.forward("step", wrong, front.rows)
    with refused(FrameError, "wrong_shape", values=[tuple(front.states.shape)]):
        ends.back(front, front.states[:, 1:], call)
    with refused(FrameError, "wrong_shape", values=["gradient", tuple(front.states[1:].shape)]):
        front.backward(front.states[1:])
    assert not middle.waiting


def test_a_prefix_adapter_is_refused(tiny_model: Tiny) -> None:
    client, _ = divide(tiny_model("llama", "causal-lm", config=deeper("llama")), Cut(1, 1))
    with refused(ConfigurationError, "not_divisible", at="adapter.kind", values=["prefix"]):
        attach(client, PrefixSettings(tokens=2), kind="causal-lm", seed=Seed(0))


def test_an_architecture_that_computes_with_something_else_is_refused(
    tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one would be that no table knows: its blocks reach for what the server does not have."""
    known = {name: family for name, family in blocks.FAMILIES.items() if name not in {"mpnet", "deberta-v2"}}
    monkeypatch.setattr(blocks, "FAMILIES", known)
    for family in ("mpnet", "deberta-v2"):
        _, server = divide(tiny_model(family, config=deeper(family)), Cut(1, 1))
        with refused(ConfigurationError, "not_divisible", at="model.name", values=[family]):
            Middle(server, Cut(1, 1)).run(torch.ones(2, 5, 32), Rows(5, (0, 2)))
