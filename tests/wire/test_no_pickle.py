"""Whatever is read that came from elsewhere: a pickle in its place is refused, and its code does not run."""

from __future__ import annotations

import ast
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY

from fedstrata.core.errors import FedstrataError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.types import Message
from fedstrata.models.load import load
from fedstrata.transport.credentials import read_token, read_tokens
from fedstrata.transport.header import Header, Kind, pack, unpack
from fedstrata.transport.kit import open_kit
from fedstrata.transport.members import read_greeting
from fedstrata.wire import frame

SOURCES = REPOSITORY / "src" / "fedstrata"
OWN = {"engine/workers/process.py"}
"""Processes of one run on one machine, which the run itself has started, send each other pickles."""


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.made),)


def in_a_file(read: Callable[[Path], object], name: str) -> Callable[[Path, bytes], object]:
    """Returns what reads a file of this name that holds what it is given."""

    def reads(folder: Path, content: bytes) -> object:
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
        return read(folder / name)

    return reads


def read_kit(folder: Path, content: bytes) -> object:
    with zipfile.ZipFile(folder / "north.zip", "w") as archive:
        for name in ("kit.yaml", "policy.yaml", "site.yaml"):
            archive.writestr(name, content)
    return open_kit(folder / "north.zip")


def read_model(folder: Path, content: bytes) -> object:
    (folder / "model.safetensors").write_bytes(content)
    return load(ModelSettings(name=str(folder)), kind="causal-lm", seed=Seed(0))


ENTRANCES: dict[str, Callable[[Path, bytes], object]] = {
    "header": lambda folder, content: unpack(content),
    "frame": lambda folder, content: frame.decode(frame.split(content), Message),
    "greeting": lambda folder, content: read_greeting(
        "north", pack(Header(Kind.HELLO), [memoryview(content)])
    ),
    "file of a frame": in_a_file(frame.read, "round-00001.safetensors"),
    "token": in_a_file(read_token, "token"),
    "tokens": in_a_file(read_tokens, "tokens"),
    "kit": read_kit,
    "kit by its bytes": in_a_file(open_kit, "north.zip"),
}


@pytest.fixture
def bomb(tmp_path: Path) -> bytes:
    """A pickle that would make the folder `ran`, and does where it is unpickled."""
    content = pickle.dumps(Bomb(tmp_path / "ran"))
    pickle.loads(content)  # noqa: S301 - to see that it works
    (tmp_path / "ran").rmdir()
    return content


@pytest.mark.claim("SECURITY#no-pickle")
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_pickle_is_refused_and_does_not_run(entrance: str, bomb: bytes, tmp_path: Path) -> None:
    with pytest.raises(FedstrataError):
        ENTRANCES[entrance](tmp_path, bomb)
    assert not (tmp_path / "ran").exists()


@pytest.mark.claim("SECURITY#no-pickle")
@pytest.mark.claim("SECURITY#safetensors")
def test_a_pickle_in_place_of_weights_does_not_run(
    saved: Callable[..., Path], bomb: bytes, tmp_path: Path
) -> None:
    with pytest.raises(FedstrataError):
        read_model(saved(), bomb)
    assert not (tmp_path / "ran").exists()


@pytest.mark.claim("SECURITY#no-pickle")
def test_no_module_has_what_unpickles() -> None:
    """Neither by its name nor by what torch, numpy or pandas have of it."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    calls = {"torch.load", "np.load", "numpy.load", "pd.read_pickle", "pandas.read_pickle"}
    found = set()
    for path in SOURCES.rglob("*.py"):
        text = path.read_text("utf-8")
        if not re.search("|".join((*modules, r"\.\s*load\b", "read_pickle")), text):
            continue  # a name that is nowhere in it; to walk through all would take seconds
        for node in ast.walk(ast.parse(text)):
            named = {each.name for each in node.names} if isinstance(node, ast.Import) else set()
            named |= {str(node.module)} if isinstance(node, ast.ImportFrom) else set()
            if named & modules or (isinstance(node, ast.Call) and ast.unparse(node.func) in calls):
                found.add(str(path.relative_to(SOURCES)))
    assert found == OWN
