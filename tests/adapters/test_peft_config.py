"""A configuration of PEFT's as a section of ours: the same adapter, or a refusal that names what is not."""

from __future__ import annotations

from typing import Any

import pytest
from peft import IA3Config, LoraConfig, PrefixTuningConfig, get_peft_model
from pydantic import TypeAdapter
from support import problems_of, refused
from tiny_models import Tiny

from fedstrata.adapters import section_of
from fedstrata.adapters.attach import attach
from fedstrata.adapters.bottleneck import BottleneckConfig
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import AdapterSettings


def test_a_lora_is_the_one_that_peft_makes_of_it(tiny_model: Tiny) -> None:
    config = LoraConfig(
        r=3, lora_alpha=5, lora_dropout=0.2, target_modules=["query", "value"], task_type="TOKEN_CLS"
    )
    settings = TypeAdapter[Any](AdapterSettings).validate_python(section_of(config))
    model, other = tiny_model("bert"), tiny_model("bert")
    theirs = get_peft_model(other.module, config)
    ours = attach(model, settings, kind="token-classification", seed=Seed(0)).module

    def loras(module: Any) -> dict[str, tuple[int, ...]]:
        return {name: tuple(own.shape) for name, own in module.named_parameters() if ".lora_" in name}

    assert loras(ours) == loras(theirs)
    layer = "base_model.model.bert.encoder.layer.0.attention.self.query"
    for module in (ours, theirs):
        assert module.get_submodule(layer).scaling == {"default": 5 / 3}
        assert module.get_submodule(f"{layer}.lora_dropout.default").p == 0.2


def test_bottleneck_and_prefix_are_sections_too() -> None:
    bottleneck = BottleneckConfig(width=4, activation="relu", target_modules=["output.dense"])
    section = {"kind": "bottleneck", "width": 4, "activation": "relu", "targets": ["output.dense"]}
    assert section_of(bottleneck) == section
    assert section_of(PrefixTuningConfig(num_virtual_tokens=7)) == {"kind": "prefix", "tokens": 7}


def test_what_is_not_done_here_is_refused_by_name_all_of_it_at_once() -> None:
    config = LoraConfig(
        target_modules="all-linear",
        rank_pattern={"query": 4},
        use_dora=True,
        bias="all",
        modules_to_save=["classifier"],
    )
    with pytest.raises(ConfigurationError) as caught:
        section_of(config)
    named = [problem.message.partition("=")[0] for problem in caught.value.problems]
    assert sorted(named) == ["bias", "modules_to_save", "rank_pattern", "use_dora"]
    assert problems_of(caught.value) == [("adapter", "not_supported")] * 4


@pytest.mark.parametrize(
    ("config", "code", "values"),
    [
        (LoraConfig(), "wrong_form", ["target_modules=None", "LoraConfig"]),
        (LoraConfig(target_modules=r".*\.query"), "wrong_form", ["target_modules=", "query"]),
        (PrefixTuningConfig(prefix_projection=True), "not_supported", ["prefix_projection=True"]),
        (IA3Config(), "wrong_type", ["not a IA3Config"]),
        ("lora", "wrong_type", ["not a str"]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_another_choice_than_ours_is_refused(config: Any, code: str, values: list[str]) -> None:
    with refused(ConfigurationError, code, at="adapter", values=values):
        section_of(config)
