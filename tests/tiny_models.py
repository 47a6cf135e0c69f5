"""Tiny random models of every family, and a tiny tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import problems_of, refused
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models.load import load
from fedstrata.models.state import Model

Tiny = Callable[..., Model]
Saved = Callable[..., Path]
SettingsOf = Callable[..., ModelSettings]

BLOCKS = 2
LABELS = ("O", "B-problem", "I-problem")

COMMON: Mapping[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
GROUPED: Mapping[str, Any] = {**COMMON, "num_key_value_heads": 2, "head_dim": 8}
GPT: Mapping[str, Any] = {key: value for key, value in COMMON.items() if key != "intermediate_size"}
ENCODER: Mapping[str, Any] = {**COMMON, "type_vocab_size": 2}
MASKED: Mapping[str, Any] = {
    key: ENCODER[key] for key in ENCODER if key not in {"bos_token_id", "eos_token_id"}
}

CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "llama": GROUPED,
    "llama-tied": {**GROUPED, "model_type": "llama", "tie_word_embeddings": True},
    "mistral": GROUPED,
    "qwen2": {key: value for key, value in GROUPED.items() if key != "head_dim"},
    "qwen3": GROUPED,
    "gemma": GROUPED,
    "gemma2": GROUPED,
    "gemma3_text": GROUPED,
    "gemma3": {
        "text_config": dict(GROUPED),
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
    },
    "phi": COMMON,
    "phi3": {**COMMON, "num_key_value_heads": 2},
    "gpt2": GPT,
    "gpt_neox": COMMON,
    "bert": ENCODER,
    "roberta": {**ENCODER, "max_position_embeddings": 66},
    "xlm-roberta": {**ENCODER, "max_position_embeddings": 66},
    "distilbert": {
        "vocab_size": 64,
        "dim": 32,
        "n_layers": BLOCKS,
        "n_heads": 4,
        "hidden_dim": 48,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    },
    "deberta": {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {  # as DeBERTa-v3 and, with the convolution, DeBERTa-v2-xlarge
        **ENCODER,
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "modernbert": {**COMMON, "cls_token_id": 2, "sep_token_id": 3, "global_attn_every_n_layers": 2},
    # Found without a table entry:
    "bloom": {key: value for key, value in GPT.items() if key != "max_position_embeddings"},
    "opt": {**GPT, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "openai-gpt": {key: value for key, value in GPT.items() if not key.endswith("_token_id")},
    "mixtral": {**GROUPED, "num_local_experts": BLOCKS, "num_experts_per_tok": 1},
    "electra": {**ENCODER, "embedding_size": 16},
    "mpnet": COMMON,
    "mobilebert": {
        **MASKED,
        "embedding_size": 32,
        "intra_bottleneck_size": 32,
        "num_feedforward_networks": BLOCKS,
    },
}

WITHOUT_CAUSAL_LM = {"distilbert", "deberta", "deberta-v2", "modernbert", "mpnet", "mobilebert"}
WITHOUT_TOKEN_CLASSIFICATION = {"gemma3_text", "gemma3", "opt", "openai-gpt"}

VARIANTS = [
    (family, kind)
    for family in CONFIGURATIONS
    for kind, without in (
        ("causal-lm", WITHOUT_CAUSAL_LM),
        ("token-classification", WITHOUT_TOKEN_CLASSIFICATION),
        ("sequence-classification", set()),
    )
    if family not in without
]
"""Every family with every kind of model that transformers has for it."""


def variants(quick: Container[object]) -> pytest.MarkDecorator:
    """Every family with every kind; those are slow that are not quick, by family or with their kind."""
    slow = [one for one in VARIANTS if one[0] not in quick and one not in quick]
    marked = [pytest.param(one, marks=pytest.mark.slow if one in slow else ()) for one in VARIANTS]
    return pytest.mark.parametrize("variant", marked, ids=map("-".join, VARIANTS), indirect=True)


@pytest.fixture(params=VARIANTS, ids="-".join)
def variant(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Every family with every kind in turn."""
    return request.param


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A word-level tokenizer of 40 tokens, saved; it has an end-of-sequence token and no padding token."""
    tokens = ["[UNK]", "[CLS]", "<s>", "</s>", *(f"w{number}" for number in range(36))]
    names = {"unk_token": tokens[0], "bos_token": tokens[2], "eos_token": tokens[3]}
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=tokens[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return folder


@pytest.fixture
def settings_of(tokenizer_folder: Path) -> SettingsOf:
    """Makes the settings of a tiny random model of a family."""

    def make(family: str, **changes: Any) -> ModelSettings:
        config = {"model_type": family, **CONFIGURATIONS[family], **changes.pop("config", {})}
        return ModelSettings(init="random", config=config, tokenizer=str(tokenizer_folder), **changes)

    return make


@pytest.fixture
def tiny_model(settings_of: SettingsOf) -> Tiny:
    """Makes a tiny random model of a family."""

    def make(family: str, kind: str = "token-classification", *, seed: int = 0, **changes: Any) -> Model:
        labels = () if kind == "causal-lm" else LABELS
        return load(settings_of(family, **changes), kind=kind, labels=labels, seed=Seed(seed))

    return make


@pytest.fixture
def saved(tiny_model: Tiny, tmp_path: Path) -> Saved:
    """Saves a tiny model of a family and returns its folder."""

    def make(family: str = "llama", kind: str = "causal-lm", **changes: object) -> Path:
        folder = tmp_path / f"{family}-{kind}"
        tiny_model(family, kind, **changes).save(folder)
        return folder

    return make


def refuses(
    settings: ModelSettings,
    code: str,
    *values: str,
    at: str = "model.name",
    kind: str = "token-classification",
) -> None:
    """Holds that a model is not loaded for one reason, whose message is a single line with these values."""
    with refused(ConfigurationError, code, at=at, values=values) as caught:
        load(settings, kind=kind, labels=LABELS, seed=Seed(0))
    assert len(problems_of(caught.value)) == 1
    assert "\n" not in caught.value.problems[0].message
