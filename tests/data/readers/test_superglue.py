"""SuperGLUE's files: what becomes of the fields of each task, and which task a file is of."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support import refused

from fedstrata.core.errors import DataError
from fedstrata.data.readers import read


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


PASSAGE = "Ann met Bo Li.\nBo paid."
RECORD = {
    "source": "x",
    "passage": {
        "text": PASSAGE,
        "entities": [{"start": 8, "end": 12}, {"start": 0, "end": 2}, {"start": 0, "end": 2}],
    },
    "qas": [
        {"query": "@placeholder paid.", "answers": [{"start": 8, "end": 12, "text": "Bo Li"}], "idx": 1},
        {"query": "Who is @placeholder?", "answers": [{"start": 0, "end": 2, "text": "Somebody"}], "idx": 2},
    ],
}
MULTIRC = {
    "idx": 3,
    "passage": {
        "text": PASSAGE,
        "questions": [
            {"question": "Who paid?", "answers": [{"text": "Ann", "label": 0}, {"text": "Bo", "label": 1}]},
            {"question": "Who left?", "answers": [{"text": "", "label": 0}]},
        ],
    },
}


def wsc(noun: str, label: bool | None, **more: Any) -> dict[str, Any]:
    target = {"span1_text": noun, "span1_index": 0, "span2_text": "He", "span2_index": 4}
    return {"text": "Al saw Bo. Then he, who left.", "target": target, "label": label, **more}


COPA = {"premise": "It fell.", "choice1": "a", "choice2": "b", "question": "cause", "label": 1}
RTE = {"premise": "A dog.", "hypothesis": "A pet.", "label": 0, "idx": 9}
CHOICES = {"choice1": "Bo Li", "choice2": "Ann"}
Fields = tuple[str, str | None, tuple[str, ...], dict[str, str]]
TASKS: dict[str, tuple[list[dict[str, Any]], list[Fields]]] = {
    "RTE": ([RTE], [("A dog.", "A pet.", ("entailment",), {})]),
    "CB": (
        [RTE | {"label": 1}, RTE | {"label": "neutral"}, RTE | {"label": -1}],
        [("A dog.", "A pet.", labels, {}) for labels in (("contradiction",), ("neutral",), ())],
    ),
    "BoolQ": (
        [
            {"question": "is it", "passage": "It is.", "label": True},
            {"question": "is it", "passage": "It is not.", "answer": False, "title": "x"},
        ],
        [("It is.", "is it", ("true",), {}), ("It is not.", "is it", ("false",), {})],
    ),
    "WiC": (
        [{"word": "feel", "sentence1": "I feel.", "sentence2": "Feel it.", "label": False, "start1": 2}],
        [("I feel.", "Feel it.", ("false",), {"word": "feel"})],
    ),
    "COPA": (
        [COPA],
        [("It fell.", None, ("choice2",), {"question": "cause", "choice1": "a", "choice2": "b"})],
    ),
    "MultiRC": (
        [MULTIRC],
        [
            (PASSAGE, "Who paid?", ("choice2",), {"choice1": "Ann", "choice2": "Bo"}),
            (PASSAGE, "Who left?", ("none",), {"choice1": ""}),
        ],
    ),
    "ReCoRD": (
        [RECORD],
        [
            (PASSAGE, "@placeholder paid.", ("choice1",), CHOICES),
            (PASSAGE, "Who is @placeholder?", ("none",), CHOICES),
        ],
    ),
    "WSC": (
        [
            wsc("Al", False),
            wsc("Bo", True, candidates=["al", "Al's cat"]),
            wsc("Cy", None) | {"text": "No one but *a b* saw him."},
        ],
        [
            (
                "Al saw Bo. Then *he*, who left.",
                None,
                ("choice2",),
                {"pronoun": "He", "choice1": "Al", "choice2": "Bo", "rival1": "Al's cat"},
            ),
            ("No one but *a *b** saw him.", None, (), {"pronoun": "He", "choice1": "Cy"}),
        ],
    ),
}
"""By task what a file holds, and the text, the second text, the labels and the metadata of each document."""


@pytest.mark.parametrize("task", TASKS)
def test_the_fields_of_each_task(tmp_path: Path, task: str) -> None:
    rows, expected = TASKS[task]
    found = read(write(tmp_path / task / "x.jsonl", *rows), "superglue")
    assert all(next(iter(own.metadata)) == "superglue" for own in found)
    assert [(own.id, own.text, own.text_pair, own.labels, {**own.metadata}) for own in found] == [
        (f"x-{number}", *texts, {"superglue": task.lower(), **metadata})
        for number, (*texts, metadata) in enumerate(expected, start=1)
    ]


@pytest.mark.parametrize(
    "name", ["copa_train.jsonl", "COPA/train.jsonl.gz", "COPA/a/train.jsonl", "rte/Copa-train.jsonl"]
)
def test_a_task_is_told_by_the_nearest_name(tmp_path: Path, name: str) -> None:
    (document,) = read(write(tmp_path / name, COPA), "superglue")
    assert document.metadata["superglue"] == "copa"


def test_files_are_splits_and_those_without_labels_what_the_settings_say(tmp_path: Path) -> None:
    unlabelled = {key: value for key, value in COPA.items() if key != "label"}
    for name in ("train", "val"):
        write(tmp_path / "COPA" / f"{name}.jsonl", COPA)
    test = write(tmp_path / "COPA" / "test.jsonl", unlabelled)
    with refused(DataError, "not_annotated", at="test.jsonl", values=["data.unannotated: skip"]):
        read(tmp_path / "COPA", "superglue")
    splits = [own.metadata["split"] for own in read(tmp_path / "COPA", "superglue", unannotated="skip")]
    assert splits == ["train", "validation"]
    kept = {own.id: own.labels for own in read(tmp_path / "COPA", "superglue", unannotated="keep")}
    assert kept == {"test/test-1": (), "train/train-1": ("choice2",), "val/val-1": ("choice2",)}
    assert read(test, "superglue")[0].labels == ()  # the input of a prediction
