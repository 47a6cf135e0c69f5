from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support import assert_same_tensors, refused
from tiny_models import LABELS, Tiny
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from fedstrata.core.errors import FedstrataError, FrameError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models.load import load
from fedstrata.models.state import Model


def everything(model: Model) -> dict[str, Tensor]:
    return model.snapshot(model.layout.all)


def train(model: Model, steps: int = 2, seed: int = 0) -> None:
    """A few steps of AdamW on random tokens, on whatever is trainable."""
    tokens = torch.randint(4, 60, (4, 6), generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(model.trainable), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model.module(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("family", "kind", "dtype"),
    [
        ("llama", "token-classification", "float32"),
        ("llama-tied", "causal-lm", "float32"),
        ("gpt2", "causal-lm", "bfloat16"),
        ("bert", "sequence-classification", "bfloat16"),
        ("deberta-v2", "token-classification", "float32"),
    ],
)
def test_one_backbone_serves_many_clients(tiny_model: Tiny, family: str, kind: str, dtype: str) -> None:
    model = tiny_model(family, kind, dtype=dtype)
    base = everything(model)
    top = [*model.layout.blocks[-1], *model.layout.final_norm, *model.layout.head]
    arriving = {name: torch.full_like(value, 0.05) for name, value in model.snapshot(top).items()}
    for client in range(3):
        model.load(arriving)
        model.train_only(top)
        train(model, seed=client)
        assert_same_tensors(everything(model), {**base, **model.snapshot(top)})
        moved = [name for name in top if not torch.equal(model.tensors([name])[name], arriving[name])]
        assert set(moved) & set(model.layout.blocks[-1])
        model.restore()
        assert_same_tensors(everything(model), base)
    assert set(model.remembered) == set(top)


def test_only_what_is_touched_is_copied(tiny_model: Tiny) -> None:
    model = tiny_model("llama")
    assert model.remembered == ()
    pointers = {name: tensor.data_ptr() for name, tensor in model.tensors(model.layout.all).items()}
    head, norm = model.layout.head, model.layout.final_norm
    model.load(model.snapshot(norm))
    assert set(model.remembered) == set(norm)
    model.train_only(head)
    train(model)
    model.restore()
    model.load(model.snapshot(norm))
    model.train_only(head)
    assert set(model.remembered) == {*norm, *head}
    # Nothing moved: parameters keep their memory, so optimisers, hooks and ties stay valid.
    assert pointers == {name: tensor.data_ptr() for name, tensor in model.tensors(model.layout.all).items()}


def test_gradients_do_not_leak_from_client_to_client(tiny_model: Tiny) -> None:
    model = tiny_model("gpt2")
    model.train_only([*model.layout.blocks[0], *model.layout.head])
    train(model)
    model.train_only(model.layout.head)
    assert all(parameter.grad is None for parameter in model.parameters(model.layout.blocks[0]))
    train(model)
    model.restore()
    assert all(parameter.grad is None for parameter in model.module.parameters())


NAMES = (
    "transformer.wte.weight",
    "transformer.h.0.ln_1.bias",
    "transformer.h.1.mlp.c_fc.weight",
    "classifier.bias",
)
subsets = st.sets(st.sampled_from(NAMES))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("load"), subsets),
        st.tuples(st.just("train"), subsets.filter(bool)),
        st.tuples(st.just("train again"), st.just(set[str]())),
        st.tuples(st.just("restore"), subsets),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def backbone(tokenizer_folder: Path) -> tuple[Model, dict[str, Tensor]]:
    """One model for all examples, as one backbone serves all clients, and its values when it was new."""
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 16, "vocab_size": 64}
    asked = ModelSettings(init="random", config=config, tokenizer=str(tokenizer_folder))
    model = load(asked, kind="token-classification", labels=("O", "X"), seed=Seed(0))
    return model, everything(model)


@given(operations=operations)
def test_restore_brings_back_the_base_after_any_sequence(
    backbone: tuple[Model, dict[str, Tensor]], operations: list[tuple[str, set[str]]]
) -> None:
    model, base = backbone
    expected = dict(base)
    for operation, names in operations:
        if operation == "load":
            model.load({name: base[name] + 1 for name in names})
            expected |= {name: base[name] + 1 for name in names}
        elif operation == "train":
            model.train_only(names)
            train(model, steps=1)
            expected |= model.snapshot(names)
        elif operation == "train again":
            if model.trainable:
                train(model, steps=1)
            expected |= model.snapshot(model.trainable)
        else:
            model.restore(keep=names)
            expected = {name: expected[name] if name in names else base[name] for name in base}
        assert_same_tensors(everything(model), expected)
    model.restore()
    assert_same_tensors(everything(model), base)


def test_views_share_memory_and_snapshots_do_not(tiny_model: Tiny) -> None:
    model = tiny_model("gpt2")
    name = "classifier.weight"
    view, copy = model.tensors([name])[name], model.snapshot([name])[name]
    assert view.data_ptr() == model.parameters([name])[0].data_ptr()
    assert not view.requires_grad
    model.load({name: torch.ones_like(view)})
    assert view.eq(1).all()
    assert not copy.eq(1).any()


def test_values_are_rounded_to_the_models_dtype(tiny_model: Tiny) -> None:
    model = tiny_model("gpt2", dtype="bfloat16")
    mean = {name: value.float() * 1.001 for name, value in model.snapshot(model.layout.head).items()}
    model.load(mean)
    for name, value in model.tensors(model.layout.head).items():
        assert torch.equal(value, mean[name].to(torch.bfloat16))


def test_loading_is_all_or_nothing(tiny_model: Tiny) -> None:
    model = tiny_model("bert")
    base = everything(model)
    good = {"classifier.bias": torch.ones(3)}
    with refused(FrameError, "wrong_shape", values=["classifier.weight", "(3, 31)", "(3, 32)"]):
        model.load({**good, "classifier.weight": torch.ones(3, 31)})
    with refused(FrameError, "unknown_name", values=["classifier.wieght", "'classifier.weight'"]):
        model.load({**good, "classifier.wieght": torch.ones(3, 32)})
    with refused(FrameError, "wrong_type", values=["classifier.weight", "torch.int64", "torch.float32"]):
        model.load({**good, "classifier.weight": torch.ones(3, 32, dtype=torch.int64)})
    assert_same_tensors(everything(model), base)
    assert model.remembered == ()


def test_train_only(tiny_model: Tiny) -> None:
    model = tiny_model("llama")

    def trainable() -> set[str]:
        return {name for name, parameter in model.module.named_parameters() if parameter.requires_grad}

    assert trainable() == set()
    model.train_only(model.layout.blocks[1])
    assert trainable() == set(model.layout.blocks[1])
    assert model.trainable == model.layout.blocks[1]
    with refused(FrameError, "unknown_name", values=["nothing.like.this"]):
        model.train_only([*model.layout.head, "nothing.like.this"])
    assert trainable() == set(model.layout.blocks[1])
    model.train_only(model.layout.head)
    assert trainable() == set(model.layout.head)


def test_a_tied_weight_has_one_name(tiny_model: Tiny) -> None:
    model = tiny_model("gpt2", "causal-lm")
    values = ["lm_head.weight", "transformer.wte.weight", "model mini"]
    with refused(FrameError, "tied", values=values):
        model.train_only(["lm_head.weight"])
    model.train_only(["transformer.wte.weight"])
    train(model)
    assert torch.equal(model.module.lm_head.weight, model.module.transformer.wte.weight)
    model.restore()
    assert model.module.lm_head.weight is model.module.transformer.wte.weight


def test_sizes(tiny_model: Tiny) -> None:
    model = tiny_model("gpt2", "causal-lm", dtype="bfloat16")
    unique = {id(parameter): parameter.numel() for parameter in model.module.parameters()}
    assert model.parameter_count == sum(unique.values())
    assert model.bytes_of(model.whole) == 2 * model.parameter_count
    assert model.bytes_of(["transformer.wte.weight"]) == 2 * 64 * 32
    assert model.device == torch.device("cpu")


class TestSaving:
    """Saved folders load elsewhere, appear complete or not at all, and replace only models."""

    def test_loads_with_transformers(self, tiny_model: Tiny, tmp_path: Path) -> None:
        model = tiny_model("llama-tied", "causal-lm", dtype="bfloat16")
        folder = tmp_path / "deep" / "model"
        model.save(folder)
        again = AutoModelForCausalLM.from_pretrained(folder)
        assert again.dtype == torch.bfloat16
        assert again.config.use_cache is True
        assert model.module.config.use_cache is False
        assert_same_tensors(dict(again.named_parameters()), everything(model))
        assert AutoTokenizer.from_pretrained(folder)("w1 w2").input_ids == model.tokenizer("w1 w2").input_ids
        assert [path.name for path in folder.parent.iterdir()] == ["model"]
        assert "lm_head.weight" not in load_file(folder / "model.safetensors")

    def test_says_nothing_of_this_machine(self, tiny_model: Tiny, tmp_path: Path) -> None:
        tiny_model("bert").save(tmp_path / "first")
        settings = ModelSettings(name=str(tmp_path / "first"))
        model = load(settings, kind="token-classification", labels=LABELS, seed=Seed(0))
        model.save(tmp_path / "second")
        for path in (tmp_path / "second").glob("*.json"):
            assert str(tmp_path) not in path.read_text()
        labels = json.loads((tmp_path / "second" / "config.json").read_text())["id2label"]
        assert labels == {"0": "O", "1": "B-problem", "2": "I-problem"}

    def test_leaves_other_folders_alone(self, tiny_model: Tiny, tmp_path: Path) -> None:
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "note.txt").write_text("x")
        with refused(FedstrataError, "exists", values=["notes"]):
            tiny_model("bert").save(tmp_path / "notes")
        assert [path.name for path in tmp_path.rglob("*")] == ["notes", "note.txt"]

    def test_an_earlier_model_is_replaced_by_a_whole_one_alone(
        self, tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "model"
        model = tiny_model("bert")
        model.save(folder)
        before = (folder / "model.safetensors").read_bytes()
        model.load({"classifier.bias": torch.ones(3)})

        def full(_folder: Path) -> None:
            raise OSError("no space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
            patch.setattr(model.tokenizer, "save_pretrained", full)
            model.save(folder)
        assert (folder / "model.safetensors").read_bytes() == before
        (folder / "left-over.txt").write_text("x")
        model.save(folder)
        assert not (folder / "left-over.txt").exists()
        assert AutoModelForTokenClassification.from_pretrained(folder).classifier.bias.eq(1).all()
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_fingerprint_is_that_of_the_values(tiny_model: Tiny) -> None:
    model, same, other = tiny_model("bert"), tiny_model("bert"), tiny_model("bert", seed=1)
    names = model.layout.all
    base = model.fingerprint(names)
    assert same.fingerprint(names) == base != other.fingerprint(names)
    assert model.fingerprint(names[1:]) != base
    first = model.snapshot(names[:1])
    model.load({name: tensor + 1 for name, tensor in first.items()})
    assert model.is_changed(names)
    assert not model.is_changed(names[1:])
    assert model.fingerprint(names) != base
    model.load(first)
    assert not model.is_changed(names)
    assert model.fingerprint(names) == base
    model.train_only(names[:2])
    train(model)
    assert model.is_changed(names[:2])
    assert model.fingerprint(names) != base
    model.restore()
    assert model.fingerprint(names) == base
