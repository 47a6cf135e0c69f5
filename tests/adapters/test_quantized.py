"""4-bit weights under an adapter: they are near what they were, stay, and the adapter trains and is saved."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import assert_same_tensors, problems_of, refused

from fedstrata.adapters.attach import attach, merge, saved_adapter
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import LoraSettings
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import read_source
from fedstrata.engine.check import check_settings
from fedstrata.engine.model import check_model
from fedstrata.models.load import load
from fedstrata.models.state import Model
from fedstrata.tasks.lm import LanguageModelling
from fedstrata.tasks.windows import run_model

IDS = torch.arange(4, 22).view(2, 9)
LORA = LoraSettings(kind="lora", rank=2)
WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}


def loaded(folder: Path, quantization: str | None) -> Model:
    settings = ModelSettings(name=str(folder), quantization=quantization)
    return load(settings, kind="causal-lm", seed=Seed(0))


def logits(model: Model) -> torch.Tensor:
    batch = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    with torch.no_grad():
        return run_model(model.module.train(False), batch)


@pytest.fixture
def folder(saved: Callable[..., Path]) -> Path:
    return saved("llama", config=WIDE)


def test_quantized_weights_count_as_the_numbers_they_stand_for(folder: Path) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    whole, quantized = loaded(folder, None), loaded(folder, "nf4")
    assert quantized.parameter_count == whole.parameter_count
    assert quantized.layout.sizes == whole.layout.sizes
    whole_bytes = whole.bytes_of(whole.whole)
    assert quantized.bytes_of(quantized.whole) < whole_bytes
    held = sum(one.numel() * one.element_size() for one in quantized.module.parameters())
    assert held < 0.5 * whole_bytes
    assert torch.isfinite(logits(quantized)).all()
    for name, parameter in quantized.tensors(quantized.layout.all).items():
        live = quantized.parameters([name])[0]
        if hasattr(live, "quant_state"):
            (original,) = whole.tensors([name]).values()
            near = functional.dequantize_4bit(parameter, live.quant_state).to(original.dtype)
            assert 0.0 < (near - original).norm() / original.norm() < 0.12


def test_an_adapter_trains_over_weights_that_stay(folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    model = attach(loaded(folder, "nf4"), LORA, kind="causal-lm", seed=Seed(1))
    names, frozen = model.layout.all, model.layout.frozen
    before, base = model.snapshot(names), model.fingerprint(frozen)
    model.train_only(names)
    optimizer = torch.optim.AdamW(model.parameters(names), lr=1e-2)
    for _ in range(2):
        model.module(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = model.snapshot(names)
    assert all(not torch.equal(before[name], after[name]) for name in names)
    assert model.fingerprint(frozen) == base
    model.train_only(())
    model.restore()
    assert_same_tensors(model.snapshot(names), before)


def test_what_is_saved_can_be_merged_into_whole_weights(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    model = attach(loaded(folder, "nf4"), LORA, kind="causal-lm", seed=Seed(1))
    before = model.snapshot(model.layout.all)
    model.load({name: 0.1 * torch.randn(value.shape) for name, value in before.items()})
    model.save(tmp_path / "adapter")
    whole = attach(loaded(folder, None), LORA, kind="causal-lm", seed=Seed(2))
    whole.load(saved_adapter(whole, tmp_path / "adapter"))
    expected = logits(whole)
    merged = Model(merge(whole), whole.tokenizer, name="merged")
    assert torch.allclose(logits(merged), expected, atol=1e-5)
    assert {parameter.dtype for parameter in merged.module.parameters()} == {torch.float32}


def test_a_layer_that_would_be_read_wrongly_is_refused(saved: Callable[..., Path]) -> None:
    pytest.importorskip("bitsandbytes")
    with refused(ConfigurationError, "not_supported", at="model.quantization", values=["64 wide", "has 32"]):
        loaded(saved("llama", config={**WIDE, "head_dim": 8}), "nf4")


@pytest.mark.parametrize(
    ("weights", "path"), [("quantization: nf4", "model.quantization"), ("dtype: bfloat16", "model.dtype")]
)
def test_flora_is_refused_before_any_weights_are_loaded(folder: Path, weights: str, path: str) -> None:
    asked = (f"model={{name: {folder}, {weights}}}", "method={name: flora}", "task={name: lm}")
    checked = check_settings(read_source(None, [*asked, "adapter={kind: lora}"]))
    assert not checked.problems
    with refused(ConfigurationError, "conflict", at=path, values=["method flora"]):
        check_model(checked.settings, checked.task, checked.method)


def test_without_the_package_one_message_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    values = ["pip install 'fedstrata[quantized]'"]
    with refused(ConfigurationError, "not_installed", at="model.quantization", values=values) as caught:
        loaded(folder, "nf4")
    assert len(problems_of(caught.value)) == 1


def test_a_run_without_an_adapter_is_refused(folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    model = ModelSettings(name=str(folder), quantization="nf4", dtype="bfloat16")
    task = LanguageModelling(max_length=16)
    with pytest.raises(ConfigurationError) as caught:
        check_model(RunSettings(model=model), task, None)
    assert problems_of(caught.value) == [("model.quantization", "missing"), ("model.dtype", "conflict")]
    check_model(RunSettings(model=model, adapter=LORA), task, None)


def test_a_new_head_with_a_bias_is_not_quantized() -> None:
    """It has no weights that could be; task ner over quantised weights ended in an AssertionError."""
    pytest.importorskip("bitsandbytes")
    settings = ModelSettings(name="mini", quantization="nf4")
    model = load(settings, kind="token-classification", seed=Seed(0), labels=("O", "B-x", "I-x"))
    found = logits(model)
    assert found.shape == (2, 9, 3)
    assert torch.isfinite(found).all()
