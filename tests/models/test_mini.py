"""The model in the package: its size, its shape, and that it never saw a note of the demo."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from support import REPOSITORY, load_script
from transformers import AutoConfig, AutoTokenizer

from fedstrata.data.synthetic import generate

FOLDER = files("fedstrata.models") / "mini"


def test_it_is_small_bf16_llama_with_8_blocks() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 8_000_000
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
    config = AutoConfig.from_pretrained(FOLDER)
    assert (config.model_type, config.num_hidden_layers, config.tie_word_embeddings) == ("llama", 8, True)


TOKENIZER = cache(lambda: AutoTokenizer.from_pretrained(FOLDER))


@given(st.text(max_size=60))
def test_its_tokenizer_loses_no_byte(text: str) -> None:
    tokenizer = TOKENIZER()
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_the_log_in_the_repository_is_that_of_this_model() -> None:
    lines = [
        json.loads(line) for line in (REPOSITORY / "scripts/pretrain_mini.log.jsonl").read_text().splitlines()
    ]
    assert lines[-1]["sha256"] == hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("few", [("--shards", "1", "--notes", "200"), ()], ids=["few", "all"])
def test_its_pretraining_notes_and_the_demos_never_overlap(few: tuple[str, ...]) -> None:
    """Of fewer notes to a shard each is one of those that there are of more."""
    script = load_script("scripts/pretrain_mini.py")
    seen = set(script.corpus(script.arguments(["--out", "x", *few])))
    demo = {note.text for seed in range(3) for note in generate(seed=seed, sites=4, notes=200)}
    assert len(demo) == 600
    assert not demo & seen
