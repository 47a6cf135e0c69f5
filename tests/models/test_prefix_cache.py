"""Stored states of the frozen blocks against running them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from stored_states import (
    LENGTHS,
    Regression,
    Text,
    assert_close,
    cache_in,
    client_of,
    serving,
    texts,
    trained,
)
from support import assert_same_tensors, fewer_examples
from tiny_models import VARIANTS, Tiny, variants
from torch import Tensor, nn

from fedstrata.core.seeding import Seed
from fedstrata.models.blocks import block_modules
from fedstrata.models.prefix import frozen_blocks, replaced_prefix, run_prefix
from fedstrata.models.prefix_cache import FILE, estimate_bytes
from fedstrata.models.state import Model
from fedstrata.policies.freeze import train_top
from fedstrata.train.local import fit

UNLIKE = {"llama", "gpt2", "bert", "deberta-v2", "gemma3", "bloom"}
"""Families whose blocks are handed the most unlike things."""
QUICK = {
    *dict(VARIANTS[::-1]).items() & {(name, kind) for name, kind in VARIANTS if name in UNLIKE},
    *((name, kind) for name, kind in VARIANTS if name == "llama"),
}
"""The first kind of each of these families, and all kinds of one."""


def switch_dropout_on(model: Model) -> None:
    for module in model.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2


@contextmanager
def counting_runs_below(model: Model, cut: int) -> Iterator[list[str]]:
    """Notes every call of a part of the lowest blocks."""
    called: list[str] = []
    parts = [
        part for block in list(block_modules(model.module, model.layout))[:cut] for part in block.children()
    ]
    handles = [
        part.register_forward_hook(lambda module, inputs, output: called.append(type(module).__name__))
        for part in parts
    ]
    yield called
    for handle in handles:
        handle.remove()


@variants(QUICK)
def test_training_from_stored_states_is_training(
    tiny_model: Tiny, variant: tuple[str, str], tmp_path: Path
) -> None:
    """Every architecture, with every head, dropout in what trains, and other padding than when stored."""
    model, told = tiny_model(*variant), []
    switch_dropout_on(model)
    names, examples = train_top(model.layout, 1), texts()
    plain = trained(model, names, examples, None)
    first = trained(model, names, examples, cache_in(tmp_path, told))
    with counting_runs_below(model, 1) as called:
        again = trained(model, names, examples, cache_in(tmp_path, told))
    assert [facts["used"] for facts in told] == [True]
    assert not called
    assert_close(first, plain)
    assert again[0] == first[0]
    assert_same_tensors(again[1], first[1])


@pytest.mark.parametrize("family", ["llama", "bert", "deberta-v2", "bloom"])
def test_a_head_alone_starts_from_the_last_block(tiny_model: Tiny, family: str, tmp_path: Path) -> None:
    model, told = tiny_model(family), []
    plain = trained(model, model.layout.head, texts(), None)
    assert_close(trained(model, model.layout.head, texts(), cache_in(tmp_path, told)), plain)
    assert told[0]["used"]


def test_what_is_below_the_first_trained_block_counts_as_frozen(tiny_model: Tiny) -> None:
    layout = tiny_model("llama").layout
    assert frozen_blocks(layout, train_top(layout, 1)) == 1
    assert frozen_blocks(layout, layout.head) == 2
    assert frozen_blocks(layout, layout.blocks[0][:1]) == 0
    assert frozen_blocks(layout, [*layout.head, *layout.embedding]) == 0
    assert frozen_blocks(layout, layout.all) == 0


@settings(fewer_examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 24), min_size=1, max_size=9),
    batch=st.integers(1, 5),
    cut=st.integers(1, 2),
    family=st.sampled_from(["llama", "bert"]),
)
def test_padded_states_are_those_of_each_text_alone(
    tiny_model: Tiny, tmp_path: Path, lengths: list[int], batch: int, cut: int, family: str
) -> None:
    """Read back in any batches, against a run of every text by itself; zero where there is padding."""
    model, task, examples = tiny_model(family), Regression(), texts(lengths)
    seen: list[Tensor] = []
    block = block_modules(model.module, model.layout)[cut - 1]
    with serving(cache_in(tmp_path, []), model, examples, cut) as feed, torch.no_grad():
        handle = block.register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
        for start in range(0, len(examples), batch):
            collated = task.collate(examples[start : start + batch])
            feed(collated)
            task.loss(model.module, collated)
        handle.remove()
    rows = [row for states in seen for row in states]
    for example, row in zip(examples, rows, strict=True):
        alone = task.collate([example])
        with torch.no_grad():
            output = run_prefix(
                model.module, model.layout, cut, lambda one=alone: task.loss(model.module, one)
            )
        torch.testing.assert_close(row[: len(example)], output.states[0], rtol=1e-5, atol=1e-5)
        assert not row[len(example) :].any()


def test_names_and_weights_stay_as_they_are_while_states_stand_in(tiny_model: Tiny) -> None:
    model = tiny_model("bert")
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    modules = [name for name, _ in model.module.named_modules()]
    with pytest.raises(ZeroDivisionError), replaced_prefix(model.module, model.layout, 2, 0) as use:
        use(torch.zeros(1, 4, 32))
        assert list(model.module.state_dict()) == list(before)
        assert [name for name, _ in model.module.named_modules()] == modules
        raise ZeroDivisionError
    for block in block_modules(model.module, model.layout):
        assert "forward" not in vars(block)
        assert not block._forward_hooks
    assert_same_tensors(model.module.state_dict(), before)


@pytest.mark.parametrize(("dtype", "stored"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_file_is_safetensors_without_padding(
    tiny_model: Tiny, tmp_path: Path, dtype: str, stored: torch.dtype
) -> None:
    model, examples = tiny_model("llama"), texts()
    with serving(cache_in(tmp_path, [], dtype=dtype), model, examples):
        pass
    estimate = estimate_bytes(LENGTHS, 32, stored)
    assert estimate <= (tmp_path / FILE).stat().st_size < estimate + 1024
    with safe_open(tmp_path / FILE, framework="pt") as file:
        states, offsets = file.get_tensor("states"), file.get_tensor("offsets")
    assert states.shape == (sum(LENGTHS), 32)
    assert states.dtype == stored
    assert offsets.diff().tolist() == list(LENGTHS)


def test_a_text_that_occurs_twice_is_stored_once(tiny_model: Tiny, tmp_path: Path) -> None:
    model, examples = (
        tiny_model("llama"),
        [Text(ids) for ids in ([5, 6, 7], [8, 9], [5, 6, 7], [5, 6, 7], [8, 9], [10])],
    )
    names = train_top(model.layout, 1)
    plain = trained(model, names, examples, None)
    assert_close(trained(model, names, examples, cache_in(tmp_path, [])), plain)
    with safe_open(tmp_path / FILE, framework="pt") as file:
        assert file.get_slice("states").get_shape() == [6, 32]


def test_a_text_that_is_not_stored_runs_through_the_blocks(tiny_model: Tiny, tmp_path: Path) -> None:
    """As a task needs that draws its masks anew in each epoch."""
    model, task = tiny_model("llama"), Regression()
    known, unknown = task.collate([[5, 6, 7]]), task.collate([[5, 6, 7], [9, 9]])
    expected = task.loss(model.module, unknown)[0]
    with serving(cache_in(tmp_path, []), model, [[5, 6, 7]]) as feed, counting_runs_below(model, 1) as called:
        feed(known)
        task.loss(model.module, known)
        assert not called
        feed(unknown)
        assert torch.equal(task.loss(model.module, unknown)[0], expected)
        assert called


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def scrambled(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8:40] = bytes(32)
    path.write_bytes(bytes(data))


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1  # in the states
    path.write_bytes(bytes(data))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("spoil", [damaged, scrambled, changed, emptied])
def test_a_damaged_file_is_made_again(
    tiny_model: Tiny, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    model, told = tiny_model("llama"), []
    with serving(cache_in(tmp_path, told), model, texts()):
        pass
    whole = (tmp_path / FILE).read_bytes()
    spoil(tmp_path / FILE)
    with serving(cache_in(tmp_path, told), model, texts()):
        pass
    assert [facts["used"] for facts in told] == [True, True]
    assert (tmp_path / FILE).read_bytes() == whole


def test_a_file_of_something_else_is_not_used(tiny_model: Tiny, tmp_path: Path) -> None:
    """Other weights below the cut, other texts, another cut, another dtype; weights above do not count."""
    model, told = tiny_model("llama"), []
    other = tiny_model("llama", seed=1)
    above = {name: tensor + 1 for name, tensor in model.snapshot(model.layout.blocks[1]).items()}
    below = {name: tensor + 1 for name, tensor in model.snapshot(model.layout.blocks[0]).items()}

    def fills(*arguments: Any, **changes: Any) -> bool:
        told.clear()
        with serving(cache_in(tmp_path, told, **changes), *arguments):
            pass
        return bool(told)

    assert fills(model, texts())
    assert not fills(model, texts())
    model.load(above)
    assert not fills(model, texts())
    model.load(below)
    assert fills(model, texts())
    model.restore()
    assert fills(model, texts())
    assert fills(other, texts())
    assert fills(model, texts(seed=1))
    assert fills(model, texts(seed=1), 2)
    assert fills(model, texts(seed=1), 2, dtype="bfloat16")


def test_what_was_trained_before_is_stored_as_it_is_now(tiny_model: Tiny, tmp_path: Path) -> None:
    """A round that trained everything, then one that trains the top: with and without a restore between."""
    model, names = tiny_model("bert"), train_top(tiny_model("bert").layout, 1)
    for back in (True, False):
        ends = []
        for cache in (None, cache_in(tmp_path, [])):
            model.train_only(())
            model.restore()
            fit(client_of(model, texts(), None), model.layout.all, Seed(0))
            if back:
                model.restore()
                assert not model.is_changed(model.layout.all)
            ends.append((fit(client_of(model, texts(), cache), names, Seed(1)), model.snapshot(names)))
        assert_close(*ends)


def test_states_that_do_not_last_pay_only_with_several_epochs(tiny_model: Tiny, tmp_path: Path) -> None:
    model, told = tiny_model("llama"), []
    once = {"cache": "auto", "epochs": 1}
    changed = {name: tensor + 0.1 for name, tensor in model.snapshot(model.layout.blocks[0]).items()}
    model.load(changed)
    with serving(cache_in(tmp_path, told, **once), model, texts()):
        pass
    assert not told
    with serving(cache_in(tmp_path, told, **{**once, "epochs": 2}), model, texts()):
        pass
    model.restore()
    with serving(cache_in(tmp_path, told, **once), model, texts()):
        pass
    assert len(told) == 2


@pytest.mark.parametrize("refused", ["the disk is full", None], ids=["no room", "a write that fails"])
def test_where_states_cannot_be_kept_the_blocks_run_and_the_reason_is_told(
    tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str | None
) -> None:
    """A full disk, as a look at it tells it beforehand, or as the operating system does."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    model, told = tiny_model("llama"), []
    names = train_top(model.layout, 1)
    plain = trained(model, names, texts(), None)
    assert_close(trained(model, names, texts(), cache_in(tmp_path, told, refused=refused)), plain)
    (facts,) = told
    assert not facts["used"]
    assert (refused or os.strerror(errno.ENOSPC)) in facts["reason"]
    assert not list(tmp_path.iterdir())


def test_batches_padded_on_the_left_are_left_alone(tiny_model: Tiny, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    batch = {"input_ids": torch.tensor([[3, 5, 6]]), "attention_mask": torch.tensor([[0, 1, 1]])}
    with cache_in(tmp_path, told).serve(
        tiny_model("llama"), 1, lambda: [batch], lambda _: None, "cpu"
    ) as feed:
        feed(batch)
    (facts,) = told
    assert facts.keys() == {"used", "reason"}
    assert not facts["used"]
    assert "padded" in facts["reason"]


def test_a_model_whose_upper_blocks_read_more_than_the_last_output_is_left_alone(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    """Its second block reads what the first one computed within itself."""
    model, told, inner = tiny_model("llama"), [], {}
    lower, upper = block_modules(model.module, model.layout)
    lower.mlp.register_forward_hook(lambda module, inputs, output: inner.update(seen=output))
    upper.register_forward_hook(
        lambda module, inputs, output: output + inner.pop("seen", torch.zeros(1)).sign()
    )
    with serving(cache_in(tmp_path, told), model, texts()):
        pass
    assert "the loss" in told[0]["reason"]
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2"])
def test_states_kept_in_bfloat16_change_the_loss_a_little(
    tiny_model: Tiny, tmp_path: Path, family: str
) -> None:
    """bfloat16 keeps 8 bits of each number: the upper blocks start from numbers off by up to 2^-9."""
    model = tiny_model(family)
    names = train_top(model.layout, 1)
    exact = trained(model, names, texts(), cache_in(tmp_path, []))
    rounded = trained(model, names, texts(), cache_in(tmp_path, [], dtype="bfloat16"))
    assert rounded[0] != exact[0]
    assert rounded[0] == pytest.approx(exact[0], rel=2**-8)


def test_under_bfloat16_arithmetic_states_are_kept_as_the_blocks_give_them(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    """The residual stream stays float32, and so do the states: only the padding differs between the two."""
    model, told = tiny_model("llama"), []
    names = train_top(model.layout, 1)
    plain = trained(model, names, texts(), None, precision="bfloat16")
    cached = trained(model, names, texts(), cache_in(tmp_path, told), precision="bfloat16")
    assert told[0]["used"]
    with safe_open(tmp_path / FILE, framework="pt") as file:
        assert file.get_slice("states").get_dtype() == "F32"
    assert cached[0] == pytest.approx(plain[0], rel=2**-8)
