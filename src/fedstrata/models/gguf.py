"""GGUF files, the format of llama.cpp: read by transformers and the `gguf` library, kept as safetensors."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from fedstrata.core.errors import refused
from fedstrata.core.files import hash_of, new_folder
from fedstrata.models.transformers_calls import explained, quiet

SUFFIX = ".gguf"
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
"""Names of these two matrices in a GGUF file."""


def converted(path: Path, setting: str) -> Path:
    """Returns a folder with the model of a GGUF file, which is converted when it is first asked for.

    Converting takes minutes. The folder lies in the user's cache (`XDG_CACHE_HOME`) under the file's hash.

    Args:
        path: The file.
        setting: The setting that names it.

    Raises:
        ConfigurationError: The `gguf` library is not installed, or transformers cannot read the file.
    """
    require_gguf(setting)
    stat = path.stat()
    return _converted(path.resolve(), stat.st_size, stat.st_mtime_ns, setting)


@cache
def _converted(path: Path, size: int, changed: int, setting: str) -> Path:
    """Returns the folder of a file; size and time tell a file apart from what it was before."""
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache_folder / "fedstrata" / "gguf" / hash_of(path)
    if not folder.is_dir():
        convert(path, folder, setting=setting)
    return folder


def require_gguf(setting: str) -> None:
    """Refuses where the `gguf` library is not installed.

    Raises:
        ConfigurationError: It is not.
    """
    if importlib.util.find_spec("gguf") is None:
        message = "needs the package gguf to read a GGUF file; pip install 'fedstrata[gguf]'"
        raise refused(setting, message, "not_installed")


def convert(path: Path, folder: Path, *, tied: bool | None = None, setting: str = "model.name") -> None:
    """Writes the model of a GGUF file as bfloat16 safetensors with its tokenizer.

    Args:
        path: The file.
        folder: The folder to write; it appears when it is complete.
        tied: Whether embedding and head are one matrix in the original model. A file may hold both, quantised
            differently; then the one with more bits is kept. None leaves them as transformers reads them.
        setting: The setting to name in errors.

    Raises:
        ConfigurationError: transformers cannot read it.
    """
    with quiet(), explained(setting, f"{path.name!r} cannot be read", "unreadable"):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
        )
    if tied:
        _tie(model, path)
    # transformers does not save a model that it has read as quantised, although these weights no longer are.
    model.hf_quantizer, model.is_quantized = None, False
    for owner, name in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(owner, name):
            delattr(owner, name)
    with quiet(), new_folder(folder) as unfinished:
        model.to(torch.bfloat16).save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)


def _tie(model: PreTrainedModel, path: Path) -> None:
    """Makes embedding and head one matrix again: the one that the file holds with more bits."""
    from gguf import GGUFReader  # noqa: PLC0415 - an extra

    sizes = {
        str(tensor.name): int(tensor.n_bytes)
        for tensor in GGUFReader(path).tensors
        if tensor.name in (_EMBEDDING, _HEAD)
    }
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if sizes.get(_HEAD, 0) > sizes[_EMBEDDING]:
        embedding.weight = head.weight
    model.config.tie_word_embeddings = True
    model.tie_weights()
