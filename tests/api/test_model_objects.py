"""Models, tokenizers and adapters that are given to a run as objects."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import own_models
import pytest
from peft import LoraConfig
from support import refused
from torch import nn
from transformers import BertConfig, BertModel

import fedstrata as fs

USUAL: dict[str, Any] = {
    "task": {"name": "ner", "max_length": 64, "stride": 8},
    "method": {"name": "layer_skipping", "top": 1},
    "rounds": 1,
    "progress": False,
    "settings": {"data.types": ["drug", "problem"], "data.synthetic.sites": 2, "data.synthetic.notes": 8},
}
LAYER = "encoder.layer.{}.output.dense.weight"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bert() -> BertModel:
    """A tiny random model, as a user has loaded it."""
    config = BertConfig(
        vocab_size=len(own_models.tokenizer()),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
    )
    return BertModel(config)


def test_a_loaded_model_is_kept_trained_and_gone_on_with(bert: BertModel) -> None:
    """Its lower blocks, which the method leaves frozen, are those that were given."""
    result = fs.run(model=bert, tokenizer=own_models.tokenizer(), out="run", **USUAL)
    kept = result.folder / "inputs" / "model"
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    given, learnt = bert.state_dict(), result.model.bert.state_dict()
    same = [learnt[name].equal(given[name]) for name in map(LAYER.format, (0, 2))]
    assert same == [True, False]
    assert len(fs.resume("run", rounds=2, progress=False).history) == 2
    with refused(fs.ConfigurationError, "exists", at="model", values=["run"]):
        fs.resume("run", rounds=3, model=bert, progress=False)


def test_a_factory_may_be_given_as_it_is() -> None:
    result = fs.run(model=own_models.plain, out="run", **USUAL)
    assert "own_models:plain" in (result.folder / "config.yaml").read_text()
    assert result.state == "finished"


def test_an_adapter_may_be_pefts() -> None:
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])
    result = fs.run(adapter=lora, out="run", **USUAL)
    adapters = {
        name.rpartition(".lora_")[0] for name, _ in result.model.named_parameters() if "lora_" in name
    }
    assert {name.rpartition(".")[2] for name in adapters} == {"q_proj", "v_proj"}
    with refused(fs.ConfigurationError, "not_supported", at="adapter", values=["use_dora=True"]):
        fs.run(adapter=LoraConfig(target_modules=["q_proj"], use_dora=True), out="other", **USUAL)
    assert not Path("other").exists()


def test_what_does_not_go_together_is_refused(bert: BertModel) -> None:
    """And nothing is left behind."""
    own = own_models.tokenizer()
    wrong: list[tuple[dict[str, Any], str, str, str]] = [
        ({"model": bert}, "tokenizer", "missing", "BertModel"),
        ({"model": "mini", "tokenizer": own}, "tokenizer", "no_effect", "model.tokenizer"),
        ({"model": nn.Linear(2, 2), "tokenizer": own}, "model", "not_supported", "Linear"),
        ({"columns": {"text": "note"}}, "columns", "no_effect", "data"),
    ]
    for options, path, code, value in wrong:
        with refused(fs.ConfigurationError, code, at=path, values=[value]):
            fs.run(out="run", **options, **USUAL)
    assert not Path("run").exists()
