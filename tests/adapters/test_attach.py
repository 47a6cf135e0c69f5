"""Adapters change nothing before they train, train alone, and are saved as PEFT reads them."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from support import PREFIXES_REFUSED, problems_of, refused
from tiny_models import Tiny, variants
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from fedstrata.adapters.attach import attach, merge, saved_adapter
from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import BottleneckSettings, LoraSettings, PrefixSettings
from fedstrata.models.state import Model
from fedstrata.tasks.windows import run_model

LORA = LoraSettings(kind="lora", rank=2)
BOTTLENECK = BottleneckSettings(kind="bottleneck", width=4)
PREFIX = PrefixSettings(kind="prefix", tokens=3)
IDS = torch.arange(4, 22).view(2, 9)
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
WITHOUT_SUBLAYER_ENDS = {"mixtral", "mobilebert"}

QUICK = {"llama", "gpt2", "bert", "mixtral", "distilbert"}
"""Families whose linear layers are the most unlike."""


def answers(model: Model) -> Tensor:
    """Returns the logits of two short texts, the second one padded."""
    mask = torch.ones_like(IDS)
    mask[1, 6:] = 0
    with torch.no_grad():
        return run_model(model.module.train(False), {"input_ids": IDS, "attention_mask": mask})


def shake(model: Model) -> None:
    """Gives every parameter that can train another value."""
    generator = torch.Generator().manual_seed(7)
    model.load(
        {
            name: value + 0.1 * torch.randn(value.shape, generator=generator)
            for name, value in model.tensors(model.layout.all).items()
        }
    )


@pytest.mark.parametrize("settings", [LORA, BOTTLENECK], ids=lambda settings: settings.kind)
@variants(QUICK)
def test_an_adapter_changes_nothing_and_alone_can_train(
    tiny_model: Tiny, variant: tuple[str, str], settings: Any
) -> None:
    family, kind = variant
    if settings is BOTTLENECK and family in WITHOUT_SUBLAYER_ENDS:
        pytest.skip(f"the layers of {family} must be named")
    plain = tiny_model(family, kind)
    before, names, size = answers(plain), set(plain.layout.all), plain.parameter_count
    model = attach(plain, settings, kind=kind, seed=Seed(1))
    assert torch.equal(answers(model), before)
    assert model.is_causal == plain.is_causal and model.trainable == ()
    layout = model.layout
    assert not layout.embedding and not layout.final_norm  # nothing outside blocks and head can train
    assert all(layout.blocks)
    assert len(model.whole) == len(names)
    assert sum(layout.sizes[name] for name in model.whole) == size
    shake(model)
    assert not torch.equal(answers(model), before)
    model.restore()
    assert torch.equal(answers(model), before)


@pytest.mark.parametrize(("alpha", "scale"), [(None, 2.0), (3.0, 1.5)])
def test_alpha_over_rank_scales_what_lora_adds(tiny_model: Tiny, alpha: float | None, scale: float) -> None:
    settings = LoraSettings(kind="lora", rank=2, alpha=alpha)
    model = attach(tiny_model("llama", "causal-lm"), settings, kind="causal-lm", seed=Seed(1))
    shake(model)
    tensors = {name: value.clone() for name, value in model.tensors(model.layout.all).items()}
    first = next(name for name in tensors if ".lora_A." in name)
    product = tensors[first.replace(".lora_A.", ".lora_B.")] @ tensors[first]
    path = first.partition(".lora_A.")[0].removeprefix("base_model.model.")
    before = model.module.get_parameter(f"base_model.model.{path}.base_layer.weight").clone()
    after = merge(model).get_parameter(f"{path}.weight")
    torch.testing.assert_close(after - before, scale * product)


def test_every_parameter_of_an_adapter_gets_a_gradient(tiny_model: Tiny) -> None:
    kind = "sequence-classification"
    for settings in (LORA, BOTTLENECK, PREFIX):
        model = attach(tiny_model("llama", kind), settings, kind=kind, seed=Seed(1))
        shake(model)
        model.train_only(model.layout.all)
        run_model(model.module, BATCH).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters(model.layout.all))
        assert all(parameter.grad is None for parameter in model.parameters(model.layout.frozen))


def test_every_block_has_its_own_part_of_a_prefix(tiny_model: Tiny) -> None:
    """What block 1 is given changes nothing of what block 0 answers."""
    from fedstrata.models.prefix import run_prefix

    model = attach(tiny_model("gpt2", "causal-lm"), PREFIX, kind="causal-lm", seed=Seed(1))
    layout = model.layout
    assert not layout.embedding and [len(names) for names in layout.blocks] == [1, 1]
    first, before = run_prefix(model.module, layout, 1, lambda: answers(model)), answers(model)
    model.load({layout.blocks[1][0]: torch.randn(model.tensors(layout.blocks[1])[layout.blocks[1][0]].shape)})
    again = run_prefix(model.module, layout, 1, lambda: answers(model))
    assert first is not None and again is not None
    assert torch.equal(first.states, again.states)
    assert not torch.equal(answers(model), before)


def test_equal_seeds_give_equal_adapters(tiny_model: Tiny) -> None:
    one, same, other = (
        attach(tiny_model("bert"), LORA, kind="token-classification", seed=Seed(seed)) for seed in (1, 1, 2)
    )
    names = one.layout.all
    assert one.fingerprint(names) == same.fingerprint(names) != other.fingerprint(names)


def test_all_linear_layers_of_the_blocks_have_a_lora_and_no_other(tiny_model: Tiny) -> None:
    model = attach(tiny_model("gpt2", "causal-lm"), LORA, kind="causal-lm", seed=Seed(0))
    layers = {name.split(".h.")[1].split(".lora")[0] for name in model.layout.all}
    ends = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert layers == {f"{block}.{end}" for block in range(2) for end in ends}
    assert all(".h." in name for name in model.layout.all)  # the output layer is as it was


def test_targets_are_named_by_their_ends(tiny_model: Tiny) -> None:
    settings = LoraSettings(kind="lora", rank=2, targets=["query", "self.value"])
    model = attach(tiny_model("bert"), settings, kind="token-classification", seed=Seed(0))
    inside = [name for block in model.layout.blocks for name in block]
    assert len(inside) == 2 * 2 * 2  # blocks, layers, A and B
    assert all(".query." in name or ".value." in name for name in inside)


def test_names_that_no_layer_has_are_refused_together(tiny_model: Tiny) -> None:
    settings = LoraSettings(kind="lora", targets=["q_proj", "query", "nothing"])
    values = ["'q_proj'", "attention.self.query"]
    with refused(ConfigurationError, "unknown_name", at="adapter.targets", values=values) as caught:
        attach(tiny_model("bert"), settings, kind="token-classification", seed=Seed(0))
    assert len(problems_of(caught.value)) == 2


def test_a_family_without_known_sublayers_asks_for_their_names(tiny_model: Tiny) -> None:
    with refused(ConfigurationError, "missing", at="adapter.targets", values=["'mixtral'", "o_proj"]):
        attach(tiny_model("mixtral", "causal-lm"), BOTTLENECK, kind="causal-lm", seed=Seed(0))
    named = BottleneckSettings(kind="bottleneck", targets=["o_proj"])
    model = attach(tiny_model("mixtral", "causal-lm"), named, kind="causal-lm", seed=Seed(0))
    assert all(model.layout.blocks)


@pytest.mark.parametrize("family", ["distilbert", "deberta-v2", "modernbert"])
def test_a_model_that_takes_no_prefix_is_refused_at_once(tiny_model: Tiny, family: str) -> None:
    with refused(ConfigurationError, "not_supported", at="adapter.kind", values=["prefix"]):
        attach(tiny_model(family), PREFIX, kind="token-classification", seed=Seed(0))


def test_prefixes_are_refused_where_peft_cannot_put_them_and_nowhere_else(tiny_model: Tiny) -> None:
    """Once PEFT can under 5.24 this fails, and the refusal can go."""
    kind, config = "token-classification", PrefixTuningConfig(task_type="TOKEN_CLS", num_virtual_tokens=3)
    wrapped = get_peft_model(tiny_model("bert").module, config)
    if not PREFIXES_REFUSED:
        assert wrapped(input_ids=IDS).logits.shape[:2] == IDS.shape
        assert attach(tiny_model("bert"), PREFIX, kind=kind, seed=Seed(0)).layout.blocks
        return
    with pytest.raises(ValueError, match="past key values"):
        wrapped(input_ids=IDS)
    versions = [version("transformers"), version("peft"), "below 5.24"]
    with refused(ConfigurationError, "not_supported", at="adapter.kind", values=versions):
        attach(tiny_model("bert"), PREFIX, kind=kind, seed=Seed(0))


@pytest.mark.parametrize("settings", [LORA, BOTTLENECK, PREFIX], ids=lambda settings: settings.kind)
def test_a_saved_adapter_is_peft_s_own(tiny_model: Tiny, tmp_path: Path, settings: Any) -> None:
    from peft import PeftModel

    kind = "sequence-classification"
    model = attach(tiny_model("roberta", kind), settings, kind=kind, seed=Seed(1))
    shake(model)
    model.save(tmp_path / "adapter")
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "config.json"} <= files
    assert "model.safetensors" not in files
    loaded = PeftModel.from_pretrained(tiny_model("roberta", kind).module, tmp_path / "adapter")
    again = Model(loaded, model.tokenizer, name="again")
    torch.testing.assert_close(answers(again), answers(model), rtol=0, atol=0)
    ours = attach(tiny_model("roberta", kind), settings, kind=kind, seed=Seed(2))
    ours.load(saved_adapter(ours, tmp_path / "adapter"))
    torch.testing.assert_close(answers(ours), answers(model), rtol=0, atol=0)


def test_an_adapter_of_another_shape_is_refused(tiny_model: Tiny, tmp_path: Path) -> None:
    kind = "token-classification"
    attach(tiny_model("bert"), LORA, kind=kind, seed=Seed(1)).save(tmp_path / "adapter")
    other = attach(tiny_model("bert"), BOTTLENECK, kind=kind, seed=Seed(1))
    with refused(DataError, "wrong_weights", at="adapter"):
        saved_adapter(other, tmp_path / "adapter")


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_a_merged_lora_computes_the_same_without_peft(tiny_model: Tiny, tmp_path: Path, family: str) -> None:
    kind = "sequence-classification"
    model = attach(tiny_model(family, kind), LORA, kind=kind, seed=Seed(1))
    shake(model)
    before = answers(model)
    plain = merge(model)
    assert not any("lora" in name for name, _ in plain.named_parameters())
    plain.save_pretrained(tmp_path / "merged")  # type: ignore[operator]
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    after = answers(Model(loaded, model.tokenizer, name="merged"))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


def test_only_lora_can_be_merged(tiny_model: Tiny) -> None:
    model = attach(tiny_model("bert"), BOTTLENECK, kind="token-classification", seed=Seed(1))
    with refused(ConfigurationError, "not_supported", at="adapter.kind", values=["LoRA"]):
        merge(model)


def test_a_pretrained_pooler_stays_as_it_is(tiny_model: Tiny, tmp_path: Path) -> None:
    from fedstrata.core.settings.model import ModelSettings
    from fedstrata.models.load import load

    kind = "sequence-classification"
    tiny_model("bert", kind).save(tmp_path / "saved")
    settings = ModelSettings(name=str(tmp_path / "saved"))
    model = attach(load(settings, kind=kind, labels=("a", "b"), seed=Seed(0)), LORA, kind=kind, seed=Seed(0))
    assert all(".classifier." in name for name in model.layout.head)
    assert any("pooler" in name for name in model.layout.frozen)


@pytest.mark.parametrize("width", [1, 3])
def test_a_narrow_bottleneck_is_a_wide_one_padded_with_zeros(tiny_model: Tiny, width: int) -> None:
    """What progressive adapters and adapters of several widths rest on: zeros stay zeros when training."""
    model = attach(tiny_model("bert"), BOTTLENECK, kind="token-classification", seed=Seed(1))
    shake(model)
    padded = {}
    for name, value in model.snapshot(model.layout.all).items():
        if "bottleneck_down" in name:
            value[width:] = 0.0
        if "bottleneck_up" in name and name.endswith("weight"):
            value[:, width:] = 0.0
        padded[name] = value
    model.load(padded)
    model.train_only(model.layout.all)
    run_model(model.module, BATCH).square().sum().backward()
    for name, parameter in zip(model.layout.all, model.parameters(model.layout.all), strict=True):
        if "bottleneck_down" in name:
            assert not parameter.grad[width:].any()
            assert parameter.grad[:width].any()
        if "bottleneck_up" in name and name.endswith("weight"):
            assert not parameter.grad[:, width:].any()
