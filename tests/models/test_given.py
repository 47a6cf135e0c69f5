"""Models of one's own: a factory by its reference, and modules that are no transformers models."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import own_models
import pytest
import torch
from support import TINY, Finished, assert_same_tensors, executed, refused
from tiny_models import LABELS, refuses
from torch import Tensor, nn

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare
from fedstrata.models.given import MODELS, keep_model
from fedstrata.models.load import load
from fedstrata.models.state import Model
from fedstrata.results.export import export
from fedstrata.results.result import open_result

WITHOUT_MODEL = tuple(each for each in TINY if not each.startswith("model."))
PLAIN = "model.name=own_models:plain"
TOP = {"body.encoder.layers.2", "body.encoder.norm", "body.head.1"}
"""Parts of the module that layer skipping trains of it: the top block, the norm and the head."""


def run(folder: Path, *overrides: str, resume: bool = False) -> Finished:
    begun = () if resume else (*WITHOUT_MODEL, "federation.rounds=1")
    return executed(folder, [*begun, *overrides], resume=resume)


def loaded(name: str, **changes: Any) -> Model:
    settings = ModelSettings(name=name, **changes)
    return load(settings, kind="token-classification", labels=LABELS, seed=Seed(0))


@pytest.mark.slow
def test_a_module_of_ones_own_is_trained_saved_gone_on_with_and_opened(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", PLAIN, "federation.rounds=2")
    run(tmp_path / "part", PLAIN)
    resumed = run(tmp_path / "part", "federation.rounds=2", resume=True)
    assert {".".join(name.split(".")[: 4 if "layers" in name else 3]) for name in whole.state.tensors} == TOP
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    opened = open_result(whole.folder).model
    assert_same_tensors(opened.tensors(list(whole.state.tensors)), whole.state.tensors)


def test_what_runs_after_the_blocks_is_the_head_wherever_it_is_registered() -> None:
    layout = loaded("own_models:plain").layout
    assert layout.head == ("body.head.1.weight", "body.head.1.bias")
    assert layout.final_norm == ("body.encoder.norm.weight", "body.encoder.norm.bias")
    assert layout.embedding == ("body.embed.weight",)
    assert [len(block) for block in layout.blocks] == [12, 12, 12]


def test_a_factory_is_drawn_from_the_seed_and_may_give_a_transformers_model() -> None:
    one, same = loaded("own_models:bert"), loaded("own_models:bert")
    assert one.fingerprint(one.layout.all) == same.fingerprint(same.layout.all)
    assert one.module.config.id2label == dict(enumerate(LABELS))


@pytest.mark.parametrize(
    ("settings", "path", "code", "values"),
    [
        ({"name": "nowhere.at_all:make"}, "model.name", "not_importable", ["'nowhere'"]),
        ({"name": "own_models:missing"}, "model.name", "not_importable", ["'own_models:missing'"]),
        ({"name": "own_models:WIDTH"}, "model.name", "wrong_type", ["'own_models:WIDTH'", "(kind, labels)"]),
        ({"name": "own_models:tokenizer"}, "model.name", "failed", ["'own_models:tokenizer'", "TypeError"]),
        ({"name": "own_models:plain", "dtype": "bfloat16"}, "model.dtype", "no_effect", []),
        ({"name": "own_models:plain", "weights": "/nowhere"}, "model.weights", "not_found", ["safetensors"]),
        ({"name": "own_models:two_lists"}, "model.blocks", "missing", ["encoder.layers: 3 x Transformer"]),
        (
            {"name": "own_models:two_lists", "blocks": "encoder"},
            "model.blocks",
            "unknown_name",
            ["'encoder'"],
        ),
        ({"name": "own_models:plain", "blocks": "encoder.layers"}, "model.blocks", "no_effect", []),
        ({"name": "own_models:bert", "blocks": "bert.encoder.layer"}, "model.blocks", "no_effect", []),
        ({"name": "mini", "blocks": "encoder.layer"}, "model.blocks", "no_effect", []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_one_problem(
    settings: dict[str, str], path: str, code: str, values: list[str]
) -> None:
    refuses(ModelSettings(**settings), code, *values, at=path)


def changed(**parts: Any) -> Callable[[str, tuple[str, ...]], Any]:
    """A factory of the tagger with some of its parts, or methods, replaced."""

    def make(kind: str, labels: tuple[str, ...]) -> Any:
        module, tokenizer = own_models.plain(kind, labels)
        for name, part in parts.items():
            setattr(module, name, part(module) if name != "forward" else part.__get__(module))
        return module, tokenizer

    return make


def of_words(self: nn.Module, words: Tensor) -> Tensor:
    raise NotImplementedError


def of_blocks_backwards(self: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    states = self.embed(input_ids)
    for block in reversed(self.encoder.layers):
        states = block(states)
    return self.head(states)


def of_states(self: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    return self.encoder(self.embed(input_ids))


@pytest.mark.parametrize(
    ("factory", "path", "code", "said"),
    [
        (changed(forward=of_words), "model.name", "not_callable", "no input_ids and no attention_mask"),
        (changed(forward=of_states), "model.name", "wrong_shape", "(2, 3, 32)"),
        (changed(forward=of_blocks_backwards), "model.blocks", "not_supported", "encoder.layers.2, encoder"),
        (changed(embed=lambda _: nn.Embedding(7, 32)), "model.name", "not_callable", "IndexError"),
        (changed(each=lambda _: "token"), "model.name", "sees_ahead", ""),
        (changed(encoder=lambda own: nn.Sequential(*own.encoder.layers)), "model.name", "no_blocks", "List"),
        (lambda *given: own_models.plain(*given)[0], "model.name", "wrong_type", "(module, tokenizer)"),
        (lambda *given: (nn.Linear(2, 2), object()), "model.name", "no_offsets", "object"),
    ],
)
def test_what_a_module_must_offer_is_checked_by_calling_it(
    factory: Any, path: str, code: str, said: str
) -> None:
    kind = "causal-lm" if code == "sees_ahead" else "token-classification"
    refuses(ModelSettings(name=MODELS.name_of(factory)), code, said, at=path, kind=kind)


@pytest.mark.parametrize(
    ("overrides", "path", "code", "values"),
    [
        (("task={name: extract}",), "model.name", "not_supported", ["task extract"]),
        (("method={name: fl_llama}",), "model.name", "not_supported", ["fl_llama"]),
        (("adapter={kind: prefix}",), "adapter.kind", "not_supported", ["prefix"]),
        (("training.checkpointing=true",), "training.checkpointing", "not_supported", ["PlainModel"]),
        (("model.init=random",), "model.init", "no_effect", []),
    ],
)
def test_what_a_run_cannot_do_with_it_is_said_before_it_begins(
    overrides: tuple[str, ...], path: str, code: str, values: list[str]
) -> None:
    with refused(ConfigurationError, code, at=path, values=values):
        prepare(read_source(None, [*WITHOUT_MODEL[:3], PLAIN, *overrides]))


def test_one_that_no_other_process_can_import_stays_in_this_one() -> None:
    name = MODELS.name_of(changed())
    with refused(ConfigurationError, "not_importable", at="workers", values=[name]):
        prepare(read_source(None, [*WITHOUT_MODEL, f"model.name={name}", "workers=2"]))


def test_an_installed_package_names_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "own_models-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: own-models\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[fedstrata.models]\ntagger = own_models:plain\n")
    (tmp_path / "tagger").mkdir()  # a folder of the same name
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    vars(MODELS).pop("installed", None)  # as in a process that has not looked for packages yet
    try:
        assert loaded("tagger").layout.blocks_path == "body.encoder.layers"
    finally:
        vars(MODELS).pop("installed", None)


@pytest.mark.parametrize(
    "adapter", ["null", pytest.param("{kind: bottleneck, targets: [linear2]}", marks=pytest.mark.slow)]
)
def test_the_code_of_an_exported_card_runs(
    adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(tmp_path / "run", PLAIN, f"adapter={adapter}")
    export(open_result(done.folder), tmp_path / "out", licence=None, language=None, with_names=False)
    card = (tmp_path / "out" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path / "out")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the card's own code is what is tested
    now = dict(names["module" if adapter == "null" else "model"].named_parameters())
    for name, tensor in done.state.tensors.items():
        assert torch.equal(now[name.removeprefix("body.")], tensor)
    assert "huggingface.co/own_models" not in card


def test_a_loaded_model_is_kept_and_is_what_the_section_names(tmp_path: Path) -> None:
    module, tokenizer = own_models.bert("token-classification", LABELS)
    section = keep_model(module, tokenizer, tmp_path / "inputs" / "model")
    again = load(ModelSettings(**section), kind="token-classification", labels=LABELS, seed=Seed(1))
    assert again.new_parameters == ()
    assert_same_tensors(again.tensors(again.layout.all), dict(module.named_parameters()))


def test_a_module_is_kept_with_its_factory_and_never_pickled(tmp_path: Path) -> None:
    module, tokenizer = own_models.plain("token-classification", LABELS)
    with refused(ConfigurationError, "not_supported", at="model", values=["Tagger"]):
        keep_model(module, tokenizer, tmp_path / "model")
    section = keep_model(module, tokenizer, tmp_path / "model", factory=own_models.plain)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["model.safetensors"]
    again = loaded(section.pop("name"), **section)
    assert_same_tensors(again.tensors(again.layout.all), dict(module.named_parameters(prefix="body")))
    other = keep_model(nn.Linear(2, 2), tokenizer, tmp_path / "other", factory="own_models:plain")
    settings = ModelSettings(name="own_models:plain", weights=other["weights"])
    refuses(settings, "wrong_weights", at="model.weights")
