from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from support import refused
from tiny_models import SettingsOf, Tiny
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.model import Layout
from fedstrata.models import blocks
from fedstrata.models.blocks import block_count, block_modules, find_layout, positions_of
from fedstrata.models.load import read_config

BERT_EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
LLAMA = ("model.layers", ("model.embed_tokens",), ("model.norm",))


def bert_like(prefix: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return f"{prefix}.encoder.layer", tuple(f"{prefix}.embeddings.{name}" for name in BERT_EMBEDDINGS), ()


# Family: where its blocks are, the modules of its embedding, the modules of its final norm.
EXPECTED: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(("llama", "llama-tied", "mistral", "qwen2", "qwen3", "mixtral"), LLAMA),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "phi3"), LLAMA),
    "gemma3": (
        "model.language_model.layers",
        ("model.vision_tower", "model.multi_modal_projector", "model.language_model.embed_tokens"),
        ("model.language_model.norm",),
    ),
    "phi": ("model.layers", ("model.embed_tokens",), ("model.final_layernorm",)),
    "gpt2": ("transformer.h", ("transformer.wte", "transformer.wpe"), ("transformer.ln_f",)),
    "gpt_neox": ("gpt_neox.layers", ("gpt_neox.embed_in",), ("gpt_neox.final_layer_norm",)),
    "bert": bert_like("bert"),
    "roberta": bert_like("roberta"),
    "xlm-roberta": bert_like("roberta"),
    "distilbert": ("distilbert.transformer.layer", ("distilbert.embeddings",), ()),
    "deberta": ("deberta.encoder.layer", ("deberta.embeddings", "deberta.encoder.rel_embeddings"), ()),
    "deberta-v2": (
        "deberta.encoder.layer",
        (
            "deberta.embeddings",
            "deberta.encoder.rel_embeddings",
            "deberta.encoder.LayerNorm",
            "deberta.encoder.conv",
        ),
        (),
    ),
    "modernbert": ("model.layers", ("model.embeddings",), ("model.final_norm",)),
    "bloom": (
        "transformer.h",
        ("transformer.word_embeddings", "transformer.word_embeddings_layernorm"),
        ("transformer.ln_f",),
    ),
    "openai-gpt": ("transformer.h", ("transformer.tokens_embed", "transformer.positions_embed"), ()),
    "opt": (
        "model.decoder.layers",
        ("model.decoder.embed_tokens", "model.decoder.embed_positions"),
        ("model.decoder.final_layer_norm",),
    ),
    "electra": ("electra.encoder.layer", ("electra.embeddings", "electra.embeddings_project"), ()),
    "mpnet": ("mpnet.encoder.layer", ("mpnet.embeddings", "mpnet.encoder.relative_attention_bias"), ()),
    "mobilebert": ("mobilebert.encoder.layer", ("mobilebert.embeddings",), ()),
}
# Families whose language-modelling head has nothing of its own when it is tied.
WHOLLY_TIED = {
    "llama-tied", "gemma", "gemma2", "gemma3_text", "gemma3", "gpt2", "bloom", "openai-gpt", "opt",
}  # fmt: skip


def names_under(model: nn.Module, modules: Sequence[str]) -> set[str]:
    """Names, as the model lists them, of all parameters inside these modules."""
    inside = {id(item) for path in modules for item in model.get_submodule(path).parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in inside}


def assert_partition(model: nn.Module, layout: Layout) -> None:
    names = [name for name, _ in model.named_parameters()]
    assert sorted(layout.all) == sorted(names)
    for index, block in enumerate(layout.blocks):
        assert block
        assert {layout.group_of(name) for name in block} == {f"block {index}"}
    with pytest.raises(KeyError):
        layout.group_of("nothing.like.this")


def test_every_parameter_is_in_the_group_it_belongs_to(tiny_model: Tiny, variant: tuple[str, str]) -> None:
    family, kind = variant
    model = tiny_model(family, kind).module
    layout = find_layout(model)
    path, embedding, final_norm = EXPECTED[family]
    assert_partition(model, layout)
    assert layout.blocks_path == path
    assert len(layout.blocks) == 2
    assert block_modules(model, layout) is model.get_submodule(path)
    for index, block in enumerate(layout.blocks):
        assert set(block) == names_under(model, [f"{path}.{index}"])
    assert set(layout.final_norm) == names_under(model, final_norm)
    assert {layout.group_of(name) for name in layout.final_norm} <= {"final norm"}
    assert {layout.group_of(name) for name in layout.head} <= {"head"}
    assert set(layout.embedding) == names_under(model, embedding)
    assert bool(layout.head) != (kind == "causal-lm" and family in WHOLLY_TIED)


def test_known_families_are_also_found_by_their_shape(
    tiny_model: Tiny, variant: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    family, kind = variant
    model = tiny_model(family, kind)
    monkeypatch.setattr(blocks, "FAMILIES", {})
    found = find_layout(model.module)
    assert (found.blocks_path, found.blocks) == (model.layout.blocks_path, model.layout.blocks)
    if family != "deberta-v2":  # the norm beside its blocks is that of the relative positions
        assert found == model.layout


def test_a_norm_of_the_embeddings_is_no_final_norm() -> None:
    config = AutoConfig.for_model("bart", d_model=32, vocab_size=64, encoder_layers=2, decoder_layers=2)
    with torch.device("meta"):
        layout = find_layout(AutoModelForCausalLM.from_config(config))
    assert layout.final_norm == ()
    assert layout.group_of("model.decoder.layernorm_embedding.weight") == "embedding"


def test_a_pooler_is_part_of_the_head(tiny_model: Tiny) -> None:
    head = tiny_model("bert", "sequence-classification").layout.head
    assert head == (
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
    )


@pytest.mark.parametrize(
    ("family", "targets"), [("llama", ["q_proj", "up_proj"]), ("bert", ["query", "dense"])]
)
def test_layout_through_lora(tiny_model: Tiny, family: str, targets: list[str]) -> None:
    inner = tiny_model(family).module
    before = find_layout(inner)
    wrapped = get_peft_model(inner, LoraConfig(r=2, target_modules=targets, task_type="TOKEN_CLS"))
    layout = find_layout(wrapped)
    assert_partition(wrapped, layout)
    assert layout.blocks_path == f"base_model.model.{before.blocks_path}"
    assert block_modules(wrapped, layout) is block_modules(inner, before)
    for index, block in enumerate(layout.blocks):
        assert any(f".{index}." in name and "lora_A" in name for name in block)
    # PEFT copies the classifier so that it trains beside the adapters.
    assert any("modules_to_save" in name for name in layout.head)


def test_a_soft_prompt_counts_as_embedding(tiny_model: Tiny) -> None:
    inner = tiny_model("llama", "causal-lm").module
    wrapped = get_peft_model(inner, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    layout = find_layout(wrapped)
    assert_partition(wrapped, layout)
    prompt = [name for name in layout.all if name.startswith("prompt_encoder")]
    assert prompt
    assert {layout.group_of(name) for name in prompt} == {"embedding"}


def test_a_parameter_shared_by_all_blocks_counts_as_embedding(tiny_model: Tiny) -> None:
    model = tiny_model("opt", "causal-lm").module
    lower, upper = model.model.decoder.layers
    upper.fc1.weight = lower.fc1.weight
    layout = find_layout(model)
    assert_partition(model, layout)
    assert "model.decoder.layers.0.fc1.weight" in layout.embedding


def built(model_type: str, **config: object) -> nn.Module:
    with torch.device("meta"):
        made = AutoConfig.for_model(model_type, vocab_size=64, num_hidden_layers=3, **config)
        return AutoModelForSequenceClassification.from_config(made)


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (
            lambda: built("t5", d_model=32, d_kv=8, d_ff=32, num_heads=4, num_decoder_layers=3),
            "no_blocks",
            ["num_hidden_layers = 3", "encoder.block: 3 x T5Block", "decoder.block: 3 x T5Block"],
        ),
        (
            lambda: built("albert", hidden_size=32, embedding_size=16, num_attention_heads=4),
            "no_blocks",
            ["albert_layer_groups: 1 x AlbertLayerGroup"],
        ),
        (lambda: nn.Linear(2, 2), "not_supported", ["Linear"]),
    ],
    ids=["an encoder and a decoder", "one block for all", "no transformer"],
)
def test_what_has_no_single_stack_is_refused(
    make: Callable[[], nn.Module], code: str, values: list[str]
) -> None:
    with refused(ConfigurationError, code, at="model.name", values=values):
        find_layout(make())


def test_blocks_that_share_all_weights_are_refused(tiny_model: Tiny) -> None:
    model = tiny_model("opt", "causal-lm").module
    model.model.decoder.layers[1] = model.model.decoder.layers[0]
    with refused(ConfigurationError, "not_supported", at="model.name", values=["OPTForCausalLM"]):
        find_layout(model)


def test_block_count_needs_no_weights() -> None:
    assert block_count(AutoConfig.for_model("gpt2", n_layer=5)) == 5
    assert block_count(AutoConfig.for_model("gemma3", text_config={"num_hidden_layers": 7})) == 7


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert", "gpt2"])
def test_a_text_may_be_as_long_as_there_are_positions_and_no_longer(
    family: str, tiny_model: Tiny, settings_of: SettingsOf
) -> None:
    """RoBERTa has 66 positions here, of which one is that of padding, as two are of 514 elsewhere."""
    module = tiny_model(family).module
    longest = positions_of(read_config(settings_of(family)))
    assert longest is not None
    module(input_ids=torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        module(input_ids=torch.full((1, longest + 1), 5))
