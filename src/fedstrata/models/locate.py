"""From the name of a model to a folder on this machine.

A name is `mini` (shipped with fedstrata), a folder, a GGUF file, `package:DISTRIBUTION` (a model that an
installed Python distribution carries; its code is never imported), or a hub id, which is downloaded into
the hub's own cache. Only configuration, tokenizer and safetensors files are ever asked for.
"""

import importlib.metadata
import json
import re
from pathlib import Path

from fedstrata.core.errors import refused
from fedstrata.models.gguf import SUFFIX as GGUF
from fedstrata.models.gguf import converted

MINI = Path(__file__).parent / "mini"
SHIPPED = "mini"
"""The name of the model that comes with fedstrata."""
PACKAGE_PREFIX = "package:"
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_CONFIGURATION_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
_WEIGHT_FILES = ("model.safetensors", "model-*.safetensors")
_ALLOWED = "`mini`, a folder, a GGUF file, `package:DISTRIBUTION` or a hub id such as `org/model`"


def locate(name: str, *, revision: str | None = None, weights: bool, setting: str = "model.name") -> Path:
    """Finds the folder of a model or a tokenizer; a hub id is downloaded unless the cache holds it.

    Args:
        name: `mini`, a folder, a GGUF file, `package:DISTRIBUTION` or a hub id.
        revision: Branch, tag or commit of a hub id.
        weights: Whether the weights are needed too.
        setting: The setting the name comes from, for messages.

    Raises:
        ConfigurationError: There is no such thing, or the hub does not give it.
    """
    if name == SHIPPED:
        if not MINI.is_dir():
            raise refused(setting, "'mini' is not part of this installation of fedstrata", "not_installed")
        return MINI
    if name.startswith(PACKAGE_PREFIX):
        return _in_package(name, setting)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder
    if folder.suffix.lower() == GGUF and folder.is_file():
        return converted(folder, setting)
    if not _HUB_ID.fullmatch(name) or folder.exists():
        found = "is a file" if folder.is_file() else "is no folder, and cannot be a hub id"
        raise refused(
            setting,
            f"{name!r} {found}; allowed are {_ALLOWED}",
            "wrong_type" if folder.is_file() else "wrong_form",
        )
    return _from_hub(name, revision, weights, setting)


def refuse_adapter(folder: Path, name: str) -> None:
    """Refuses a folder that holds an adapter: it is no model without the one it was trained on.

    Raises:
        ConfigurationError: It does.
    """
    if (folder / "adapter_config.json").is_file():
        message = (
            f"{name!r} holds an adapter and not the model that it was trained on; `fedstrata export RUN "
            "--out FOLDER` writes both as one model, which can be named here"
        )
        raise refused("model.name", message, "holds_adapter")


def check_weights(folder: Path, name: str, auto_class: str) -> None:
    """Checks that a folder holds complete safetensors weights.

    Args:
        folder: The model's folder.
        name: What the user calls it.
        auto_class: The transformers class that loads it, for the advice how to convert other formats.

    Raises:
        ConfigurationError: It holds none, only pickled ones, or parts are missing.
    """
    if (folder / WEIGHTS).is_file():
        return
    refuse_adapter(folder, name)
    index = folder / WEIGHTS_INDEX
    if index.is_file():
        _check_shards(index, name)
        return
    pickled = sorted(
        path.name for path in folder.iterdir() if path.suffix in {".bin", ".pt", ".pth", ".ckpt"}
    )
    held = f"only {', '.join(pickled)}, which may run code when opened" if pickled else f"no {WEIGHTS}"
    command = (
        f"from transformers import {auto_class} as M; M.from_pretrained({name!r}).save_pretrained('NEW')"
    )
    raise refused(
        "model.name",
        f"{name!r} holds {held}. Only safetensors weights are loaded; if you trust a file in another format, "
        f'convert it once with: python -c "{command}"',
        "runs_code" if pickled else "not_found",
    )


def _check_shards(index: Path, name: str) -> None:
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{WEIGHTS_INDEX} is not readable ({type(error).__name__})"
        raise refused("model.name", f"{name!r}: {reason}", "unreadable") from None
    pickled = [shard for shard in shards if not shard.endswith(".safetensors")]
    if pickled:
        raise refused(
            "model.name",
            f"{name!r}: {WEIGHTS_INDEX} names {pickled[0]}, which is no safetensors file",
            "runs_code",
        )
    absent = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent:
        raise refused(
            "model.name",
            f"{name!r} lacks weights that {WEIGHTS_INDEX} names: {', '.join(absent)}",
            "not_found",
        )


def _in_package(name: str, setting: str) -> Path:
    distribution = name.removeprefix(PACKAGE_PREFIX)
    try:
        files = importlib.metadata.files(distribution) or ()
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise refused(
            setting, f"{name!r}: no distribution {distribution!r} is installed here", "not_installed"
        ) from None
    configurations = {Path(str(file.locate())).parent for file in files if file.name == "config.json"}
    folders = sorted(folder for folder in configurations if (folder / WEIGHTS).is_file())
    if len(folders) != 1:
        found = ", ".join(map(str, folders)) or "none"
        raise refused(
            setting,
            f"{name!r} must hold one folder with config.json and {WEIGHTS}; found {found}",
            "duplicate" if folders else "not_found",
        )
    return folders[0]


def _from_hub(name: str, revision: str | None, weights: bool, setting: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - a folder needs no HTTP client

    patterns = [*_CONFIGURATION_FILES, *(_WEIGHT_FILES if weights else ())]
    try:
        # "*/*" leaves out sub-folders: other formats, other precisions, training logs.
        found = snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"])
    except Exception as error:
        # Any: the hub library lets its HTTP client's errors through, and has changed that client before.
        why, code = _hub_failure(error, revision)
        raise refused(setting, f"{name!r} {why}", code) from None
    return Path(found)


def _hub_failure(error: Exception, revision: str | None) -> tuple[str, str]:
    """Returns what the hub has not done, and the code of that."""
    from huggingface_hub import errors  # noqa: PLC0415

    if isinstance(error, errors.GatedRepoError):
        why = "is gated on the Hugging Face hub: accept its licence there, then log in with `hf auth login`"
        return why, "gated"
    if isinstance(error, errors.RepositoryNotFoundError):
        why = f"is no folder, and the Hugging Face hub has no such public model; allowed are {_ALLOWED}"
        return why, "not_found"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"has no revision {revision!r} on the Hugging Face hub", "unknown_name"
    if isinstance(error, errors.LocalEntryNotFoundError):
        why = (
            "is no folder, is not in the hub's cache on this machine, and the Hugging Face hub cannot be "
            "reached; without a network give a folder"
        )
        return why, "offline"
    why = f"could not be downloaded from the Hugging Face hub ({type(error).__name__})"
    return why, "download_failed"
