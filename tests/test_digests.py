"""`scripts/digests.py` finds what differs between two runs, and nothing where only names and texts do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import REPOSITORY, load_script

script = load_script("scripts/digest_differences.py")

SUMMARY = {"metrics": {"f1": 0.5}, "rounds": 2, "note": "a text", "total_seconds": 3.0}
EVENTS = [
    {"event": "client", "round": 1, "client": "a", "loss": 0.5},
    {"event": "client", "round": 1, "client": "b", "loss": float("nan")},
    {"event": "round", "round": 1, "failed": False, "seconds": 2.0},
]
TENSORS: dict[str, torch.Tensor | None] = {
    "w": torch.arange(6.0).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
}
NAMES = script.Names(
    keys={
        **{"total_seconds": None, "seconds": None},
        **{"loss": "mean_loss", "client": "site", "metrics.f1": "scores.strict.f1"},
    },
    files={r"model/model\.safetensors": "weights.safetensors", r"(\w+)\.jsonl": r"\1.jsonl"},
    events=("event", "round", "site"),
)


def write(folder: Path) -> Path:
    """What a run leaves."""
    for name in ("model", "found"):
        (folder / name).mkdir(parents=True)
    tensors()(folder)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    (folder / "record.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    (folder / "found" / "notes.jsonl").write_text('{"label": "problem", "start": 3}\n')
    (folder / "report.html").write_text(folder.name)
    return folder


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Replaces what occurs in a file of a run."""

    def change(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return change


def tensors(**others: torch.Tensor | None) -> Callable[[Path], None]:
    """Puts other tensors into a run's model, or leaves them out."""
    new = {name: tensor for name, tensor in (TENSORS | others).items() if tensor is not None}
    return lambda run: save_file(new, run / "model" / "model.safetensors")


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "tensor": (
        tensors(w=torch.zeros(2, 3)),
        "weights.safetensors w: float32 [2, 3] differs by up to 5, of values up to 5",
    ),
    "missing tensor": (tensors(half=None), "weights.safetensors half: bfloat16 [3] -> absent"),
    "dtype": (tensors(half=torch.ones(3)), "weights.safetensors half: bfloat16 [3] -> float32 [3]"),
    "number": (edited("summary.json", '"rounds": 2', '"rounds": 3'), "summary.json rounds: 2 -> 3"),
    "null": (edited("summary.json", "0.5", "null"), "summary.json scores.strict.f1: 0.5 -> absent"),
    "event": (edited("record.jsonl", "false", "true"), "record.jsonl round 1 failed: false -> true"),
    "label": (
        edited("found/notes.jsonl", "problem", "test"),
        'found/notes.jsonl 0.label: "problem" -> "test"',
    ),
    "file": (lambda run: (run / "summary.json").unlink(), "summary.json: only the old side has this file"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found(what: str, tmp_path: Path) -> None:
    change, told = CHANGES[what]
    old, new = write(tmp_path / "old"), write(tmp_path / "new")
    assert not list(script.differences(old, new, NAMES))
    change(new)
    assert list(script.differences(old, new, NAMES)) == [told]


def test_names_texts_and_order_are_no_difference(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old"), write(tmp_path / "new")
    edited("record.jsonl", '"loss"', '"mean_loss"')(new)
    edited("record.jsonl", '"client"', '"site"')(new)
    lines = (new / "record.jsonl").read_text().splitlines(keepends=True)
    (new / "record.jsonl").write_text("".join(lines[::-1]))
    summary = {"scores": {"strict": {"f1": 0.5}}, "rounds": 2, "note": "another", "total_seconds": 9.0}
    (new / "summary.json").write_text(json.dumps(dict(reversed(summary.items())), indent=2))
    (new / "model" / "model.safetensors").rename(new / "weights.safetensors")
    assert not list(script.differences(old, new, NAMES))


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("git") or not (REPOSITORY / ".git").exists(), reason="needs git and a clone"
)
def test_a_commit_equals_itself() -> None:
    command = [sys.executable, "scripts/digests.py", "compare", "HEAD", "--only", "no rounds", "--jobs", "1"]
    told = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ, capture_output=True, text=True, check=False
    )
    assert "0 of 1 cases differ" in told.stdout, told.stdout + told.stderr
    assert told.returncode == 0
