from __future__ import annotations

import json
import logging
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import assert_same_tensors, problems_of, refused
from tiny_models import LABELS, Saved, SettingsOf, Tiny, refuses, variants
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models.load import load, read_config, read_tokenizer, skeleton
from fedstrata.models.state import Model

QUICK = {"llama", "llama-tied", "gpt2", "bert", "deberta-v2", "gemma3", "bloom"}
"""Families of the most unlike models."""


def hidden_states(model: Model, tokens: Sequence[int]) -> Tensor:
    """Shape: (length, hidden_size)."""
    ids = torch.tensor([tokens])
    base = model.module.base_model
    with torch.no_grad():
        return base(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]


@variants(QUICK)
def test_every_family_is_made_ready_to_train(tiny_model: Tiny, variant: tuple[str, str]) -> None:
    family, kind = variant
    state = torch.get_rng_state()
    model = tiny_model(family, kind)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(model.new_parameters) == set(model.layout.all)
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    assert not model.module.training
    config = model.module.config.get_text_config()
    assert config.use_cache is False
    assert config.pad_token_id == model.tokenizer.pad_token_id == 3
    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 3, 3]])
    logits = model.module(input_ids=ids, attention_mask=(ids != 3).long()).logits
    outputs = {"causal-lm": (2, 5, 64), "token-classification": (2, 5, 3), "sequence-classification": (2, 3)}
    assert tuple(logits.shape) == outputs[kind]
    if kind != "causal-lm":
        assert model.module.config.id2label == dict(enumerate(LABELS))
        assert model.module.config.label2id["I-problem"] == 2


@variants(QUICK)
def test_is_causal_says_whether_later_tokens_are_seen(tiny_model: Tiny, variant: tuple[str, str]) -> None:
    family, kind = variant
    model = tiny_model(family, kind)
    first = hidden_states(model, [5, 6, 7, 8, 9])[:4]
    second = hidden_states(model, [5, 6, 7, 8, 30])[:4]
    assert torch.allclose(first, second, atol=1e-6) == model.is_causal
    if kind == "causal-lm":
        assert model.is_causal


def test_a_decoder_made_to_look_both_ways_is_not_causal(tiny_model: Tiny) -> None:
    model = tiny_model("llama", config={"is_causal": False})
    first, second = hidden_states(model, [5, 6, 7, 8, 9]), hidden_states(model, [5, 6, 7, 8, 30])
    assert not torch.allclose(first[:4], second[:4], atol=1e-6)
    assert not model.is_causal


def test_a_saved_model_loads_bit_equal_and_without_noise(
    saved: Saved,
    tiny_model: Tiny,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = saved("gemma2", "token-classification")
    capsys.readouterr()
    with caplog.at_level(logging.WARNING):
        model = load(
            ModelSettings(name=str(folder)), kind="token-classification", labels=LABELS, seed=Seed(9)
        )
    assert capsys.readouterr() == ("", "")
    assert not caplog.records
    assert model.new_parameters == ()
    names, original = model.layout.all, tiny_model("gemma2", "token-classification")
    assert_same_tensors(model.tensors(names), original.tensors(names))


@pytest.mark.parametrize("largest", [30_000, 10])  # which stops weights; which stops all
def test_a_model_for_which_there_is_no_room_is_an_error_that_names_it(
    tiny_model: Tiny, tmp_path: Path, largest: int
) -> None:
    model = tiny_model("llama")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        with pytest.raises(OSError, match="too large") as full:
            model.save(tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(full.value.filename).startswith(str(tmp_path / "model"))
    assert list(tmp_path.iterdir()) == []


def test_a_new_head_comes_from_the_seed_alone(saved: Saved) -> None:
    settings = ModelSettings(name=str(saved("llama", "causal-lm")))

    def head(seed: int) -> dict[str, Tensor]:
        torch.rand(seed + 1)  # whatever was drawn before has no influence
        model = load(settings, kind="token-classification", labels=LABELS, seed=Seed(seed))
        assert model.new_parameters == model.layout.head == ("score.weight", "score.bias")
        return model.snapshot(["score.weight"])

    torch.manual_seed(4)
    first = head(0)["score.weight"]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = load(settings, kind="token-classification", labels=LABELS, seed=Seed(0))
    assert torch.equal(again.module.score.weight, first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, head(1)["score.weight"])


def test_a_head_of_other_labels_is_replaced(saved: Saved) -> None:
    settings = ModelSettings(name=str(saved("bert", "token-classification")))
    model = load(settings, kind="token-classification", labels=("O", "X"), seed=Seed(0))
    assert set(model.new_parameters) == {"classifier.weight", "classifier.bias"}
    assert model.module.classifier.weight.shape == (2, 32)


def test_a_tied_head_is_not_new(saved: Saved) -> None:
    for family in ("gpt2", "llama-tied", "xlm-roberta"):
        model = load(ModelSettings(name=str(saved(family))), kind="causal-lm", seed=Seed(0))
        assert model.new_parameters == ()
        assert model.module.get_output_embeddings().weight is model.module.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("auto", torch.bfloat16)],
)
def test_dtype(saved: Saved, dtype: str, expected: torch.dtype) -> None:
    folder = saved("llama", "causal-lm", dtype="bfloat16")
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    model = load(ModelSettings(name=str(folder), dtype=dtype), kind="causal-lm", seed=Seed(0))
    assert {parameter.dtype for parameter in model.module.parameters()} == {expected}


def test_attention(tiny_model: Tiny, settings_of: SettingsOf) -> None:
    assert tiny_model("llama", attention="eager").module.config._attn_implementation == "eager"
    assert tiny_model("llama").module.config._attn_implementation == "sdpa"
    settings = settings_of("deberta-v2", attention="sdpa")
    refuses(settings, "failed", "DebertaV2ForTokenClassification", at="model")


def test_random_weights_for_the_architecture_of_a_folder(saved: Saved) -> None:
    folder = saved("gpt2")
    (folder / "model.safetensors").unlink()
    settings = ModelSettings(name=str(folder), init="random", config={"num_hidden_layers": 5})
    model = load(settings, kind="causal-lm", seed=Seed(0))
    assert len(model.layout.blocks) == 5
    again = load(settings, kind="causal-lm", seed=Seed(0))
    assert torch.equal(model.module.lm_head.weight, again.module.lm_head.weight)


def test_the_vocabulary_is_the_tokenizers_unless_given(settings_of: SettingsOf) -> None:
    config = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4}

    def settings(**more: int) -> ModelSettings:
        return settings_of("llama").model_copy(update={"config": {**config, **more}})

    assert read_config(settings()).vocab_size == 40
    assert read_config(settings(vocab_size=48)).vocab_size == 48
    refuses(settings(vocab_size=39), "conflict", "40 tokens", "39", at="model.tokenizer")


def test_padding_with_the_end_token_leaves_its_embedding_trainable(tiny_model: Tiny) -> None:
    model = tiny_model("gpt_neox", "causal-lm", config={"pad_token_id": None})
    assert model.tokenizer.pad_token_id == model.tokenizer.eos_token_id == 3
    embedding = model.module.get_input_embeddings()
    assert embedding.padding_idx is None
    assert embedding.weight[3].any()


def test_skeleton_has_the_layout_and_no_memory(settings_of: SettingsOf, tiny_model: Tiny) -> None:
    module = skeleton(settings_of("bert"), kind="token-classification", labels=LABELS)
    shapes = {name: (parameter.shape, parameter.device.type) for name, parameter in module.named_parameters()}
    real = tiny_model("bert").module
    assert shapes == {name: (parameter.shape, "meta") for name, parameter in real.named_parameters()}


def test_a_folder_without_a_model(saved: Saved) -> None:
    """As the folder `model` of a run with an adapter, which holds the configuration of the whole."""
    folder = saved()
    settings = ModelSettings(name=str(folder))
    (folder / "adapter_config.json").write_text("{}")
    (folder / "model.safetensors").unlink()
    refuses(settings, "holds_adapter", "fedstrata export RUN")
    (folder / "config.json").unlink()
    refuses(settings, "holds_adapter")
    (folder / "adapter_config.json").unlink()
    refuses(settings, "not_found", "config.json")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "JSON"),
        ("{}", "`model_type`"),
        ('{"model_type": "not-yet-invented"}', "`not-yet-invented`"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "got str"),
    ],
)
def test_an_unusable_config(saved: Saved, content: str, expected: str) -> None:
    folder = saved()
    (folder / "config.json").write_text(content)
    refuses(ModelSettings(name=str(folder)), "unreadable", expected)


@pytest.mark.claim("SECURITY#no-model-code")
def test_code_that_a_model_brings_with_it_does_not_run(saved: Saved, tmp_path: Path) -> None:
    """Its configuration, its tokenizer and its model each name a class of a file beside them."""
    folder, ran = saved(), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    named = {
        "config.json": {"AutoConfig": "own.C", "AutoModel": "own.M", "AutoModelForCausalLM": "own.M"},
        "tokenizer_config.json": {"AutoTokenizer": ["own.T", "own.T"]},
    }
    for name, classes in named.items():
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**settings, "auto_map": classes}))
    load(ModelSettings(name=str(folder)), kind="causal-lm", seed=Seed(0))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own"}))
    with pytest.raises(ConfigurationError):
        load(ModelSettings(name=str(folder)), kind="causal-lm", seed=Seed(0))
    assert not ran.exists()


@pytest.mark.claim("SECURITY#safetensors")
def test_a_config_cannot_point_at_pickled_weights(saved: Saved) -> None:
    folder = saved()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "adapter_model.bin"}))
    (folder / "adapter_model.bin").write_bytes(b"not to be opened")
    assert load(ModelSettings(name=str(folder)), kind="causal-lm", seed=Seed(0)).new_parameters == ()


def test_broken_weights(saved: Saved) -> None:
    folder = saved()
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    refuses(ModelSettings(name=str(folder)), "unreadable", at="model", kind="causal-lm")


@pytest.mark.parametrize(
    ("config", "path", "code", "values"),
    [
        ({"num_hidden_layers": 3}, "model.name", "wrong_weights", ["9 tensors", "model.layers.2"]),
        ({"intermediate_size": 64}, "model.name", "wrong_weights", ["(48, 32)", "(64, 32)"]),
        (
            {"num_hiden_layers": 3},
            "model.config.num_hiden_layers",
            "unknown_key",
            ["LlamaConfig", "'num_hidden_layers'"],
        ),
        ({"attention_dropout": "much"}, "model.config.attention_dropout", "invalid", ["'much'"]),
        ({"model_type": "bert"}, "model.config.model_type", "conflict", []),
    ],
)
def test_changes_of_a_configuration_that_its_weights_do_not_fit(
    saved: Saved, config: dict[str, object], path: str, code: str, values: list[str]
) -> None:
    refuses(ModelSettings(name=str(saved()), config=config), code, *values, at=path, kind="causal-lm")


def test_a_model_may_be_cut_short(saved: Saved) -> None:
    settings = ModelSettings(name=str(saved()), config={"num_hidden_layers": 1})
    assert len(load(settings, kind="causal-lm", seed=Seed(0)).layout.blocks) == 1


def test_all_overrides_are_checked_at_once(settings_of: SettingsOf) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_config(settings_of("llama", config={"num_layers": 3, "heads": 2}))
    assert problems_of(caught.value) == [
        ("model.config.num_layers", "unknown_key"),
        ("model.config.heads", "unknown_key"),
    ]
    impossible = settings_of("llama", config={"hidden_size": 30})
    refuses(impossible, "invalid", "(30)", "(4)", at="model.config")


def test_older_names_of_a_setting_are_taken(settings_of: SettingsOf) -> None:
    assert read_config(settings_of("llama", config={"rope_theta": 5e5})).rope_parameters["rope_theta"] == 5e5
    config = {"n_layer": 4, "num_hidden_layers": 4}
    assert read_config(settings_of("gpt2", config=config)).num_hidden_layers == 4


def test_an_unknown_model_type(tokenizer_folder: Path) -> None:
    settings = ModelSettings(init="random", config={"model_type": "lama"}, tokenizer=str(tokenizer_folder))
    refuses(settings, "unknown_name", "'lama'", "llama", at="model.config.model_type")


def test_an_architecture_without_such_a_head(settings_of: SettingsOf) -> None:
    values = ["causal-lm", "token-classification, sequence-classification"]
    refuses(settings_of("modernbert"), "not_supported", *values, kind="causal-lm")


@pytest.mark.slow
def test_a_slow_tokenizer(saved: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')
    settings = ModelSettings(name=str(saved()), tokenizer=str(folder))
    refuses(settings, "no_offsets", "CanineTokenizer", at="model.tokenizer", kind="causal-lm")


def test_a_folder_without_a_vocabulary(saved: Saved) -> None:
    """transformers would make a BERT tokenizer of the five special tokens."""
    folder = saved("bert", "token-classification")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    refuses(ModelSettings(name=str(folder)), "not_found", "vocabulary")
    (folder / "tokenizer.json").write_text("{")
    refuses(ModelSettings(name=str(folder)), "unreadable", "tokenizer")


def test_a_tokenizer_that_cannot_pad(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(tokenizer_folder, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({key: config[key] for key in config if key != "eos_token"})
    )
    with refused(ConfigurationError, "lacks_tokens", at="model.tokenizer"):
        read_tokenizer(ModelSettings(tokenizer=str(folder)))


def test_reloading_in_transformers_gives_the_same_logits(saved: Saved) -> None:
    folder = saved("modernbert", "sequence-classification")
    ours = load(ModelSettings(name=str(folder)), kind="sequence-classification", labels=LABELS, seed=Seed(0))
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(ours.module(input_ids=ids).logits, theirs(input_ids=ids).logits)
